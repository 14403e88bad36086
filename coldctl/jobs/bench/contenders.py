"""The ways to load that are compared: coldctl's own, each with each, and the peers that are installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from coldctl.errors import UsageError
from coldctl.jobs.bench.child import peers
from coldctl.jobs.bench.options import DEVICE_MODES, HOST_MODES, PEERS, BenchOptions
from coldctl.jobs.bench.task import Task
from coldctl.loader.order import ORDERS, Order
from coldctl.results.bench import Contender
from coldctl.units import MIB, format_size

DEVICE_STREAMS = (1, 4)
MOST_HOST_STREAMS = 64
CHUNK_BYTES = (1 * MIB, 64 * MIB)
"""The smallest and the largest."""

SWEPT_HOST_STREAMS = (1, 2, 4)
SWEPT_CHUNKS_BYTES = (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)

_WITHOUT_STREAMS_AND_CHUNKS = {"map", "per-tensor", "mapped", "gds"}


def contenders(options: BenchOptions) -> tuple[list[Contender], list[str]]:
    """The contenders in the order in which a first round runs them, and notes: of each that is left out, and of what
    is asked of coldctl's own loads and not of the peers'.

    A mode that has neither streams nor chunks stands there once for each order, whatever was asked for. Raises
    UsageError for modes, streams, chunks, orders and peers that do not exist.
    """
    _check(options)
    ours = dict.fromkeys(_settings(options))
    versions = {peer: peers.installed(peer) for peer in options.compare}
    missing = [peer for peer, version in versions.items() if version is None]
    others = [
        Contender(peer, "peer", mode=None, streams=None, chunk_bytes=None, order=None, version=version)
        for peer, version in versions.items()
        if version is not None
    ]
    notes = [f"{peer} is not compared: {peers.BY_NAME[peer].distribution} is not installed" for peer in missing]
    notes += _one_row_each(options, ours)
    if others and (unlike := [name for name in ("verify", "first_layers") if getattr(options, name)]):
        notes.append(f"only coldctl's own loads are made with {' and '.join(unlike)}, those of the peers without")
    return [_own(*settings) for settings in ours] + others, notes


def _one_row_each(options: BenchOptions, ours: Iterable[Settings]) -> list[str]:
    """A note of the modes that what was asked for says nothing to."""
    asked = [what for what, values in (("streams", options.streams), ("chunks", options.chunks_bytes)) if values]
    modes = [mode for mode in dict.fromkeys(mode for mode, *_ in ours) if mode in _WITHOUT_STREAMS_AND_CHUNKS]
    return [f"{' and '.join(asked)} are not for mode {', '.join(modes)}"] if asked and modes else []


def task_of(contender: Contender, options: BenchOptions, files: Sequence[str], *, spans: bool) -> Task:
    """What a child is asked, to load as `contender` does. `files` are the paths of the shards, in order."""
    own = contender.kind == "coldctl"
    return Task(
        path=options.path,
        files=tuple(files),
        device=options.device,
        peer=None if own else contender.name,
        mode=contender.mode,
        streams=contender.streams,
        chunk_bytes=contender.chunk_bytes,
        order=contender.order,
        first_layers=options.first_layers if own else None,
        verify=options.verify and own,
        memory_fraction=options.memory_fraction,
        spans=spans and own,
    )


Settings = tuple[str, int | None, int | None, Order | None]
"""Mode, streams, bytes of a chunk, order: null where the loader's default is meant."""


def _settings(options: BenchOptions) -> Iterator[Settings]:
    modes, streams, chunks = _modes(options), _streams(options), _chunks(options)
    for mode, each, chunk, order in product(modes, streams, chunks, options.orders or (None,)):
        yield (mode, None, None, order) if mode in _WITHOUT_STREAMS_AND_CHUNKS else (mode, each, chunk, order)


def _modes(options: BenchOptions) -> tuple[str, ...]:
    return options.modes or (_existing_modes(options) if options.sweep else ("auto",))


def _streams(options: BenchOptions) -> tuple[int | None, ...]:
    swept = SWEPT_HOST_STREAMS if options.device == "cpu" else DEVICE_STREAMS
    return options.streams or (swept if options.sweep else (None,))


def _chunks(options: BenchOptions) -> tuple[int | None, ...]:
    return options.chunks_bytes or (SWEPT_CHUNKS_BYTES if options.sweep else (None,))


def _own(mode: str, streams: int | None, chunk_bytes: int | None, order: Order | None) -> Contender:
    parts = [mode]
    parts += [f"{streams} stream{'s' * (streams != 1)}"] if streams else []
    parts += [f"{chunk_bytes // MIB} MiB"] if chunk_bytes else []
    parts += [order] if order else []
    return Contender(", ".join(parts), "coldctl", mode, streams, chunk_bytes, order, version=None)


def _existing_modes(options: BenchOptions) -> tuple[str, ...]:
    return HOST_MODES if options.device == "cpu" else DEVICE_MODES


def _check(options: BenchOptions) -> None:
    where = "on the host" if options.device == "cpu" else "on a GPU"
    _all_exist(f"mode {where}", options.modes, _existing_modes(options))
    _all_exist("order", options.orders, ORDERS)
    _all_exist("peer", options.compare, PEERS)
    existing = range(1, MOST_HOST_STREAMS + 1) if options.device == "cpu" else DEVICE_STREAMS
    for streams in options.streams:
        if streams not in existing:
            hint = f"1 to {MOST_HOST_STREAMS} threads that read" if options.device == "cpu" else "1, or 4 (lanes)"
            raise UsageError(f"there is no way to load with {streams} streams {where}", hint=hint)
    least, most = CHUNK_BYTES
    for chunk_bytes in options.chunks_bytes:
        if not least <= chunk_bytes <= most or chunk_bytes % MIB:
            hint = f"whole MiB, {format_size(least)} to {format_size(most)}"
            raise UsageError(f"there are no chunks of {chunk_bytes} bytes", hint=hint)


def _all_exist(what: str, asked: Sequence[str], existing: Sequence[str]) -> None:
    for each in asked:
        if each not in existing:
            raise UsageError(f"no such {what}: {each!r}", hint=f"one of {', '.join(existing)}")
