"""A file's bytes a second time, tensor by tensor, to compare memory with. Nothing here is shared with the ways in which
tensors are loaded: it reads through the page cache, strip by strip, so that one's mistake is not the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from coldctl._native import kernels
from coldctl.errors import ColdctlError, EnvironmentLacksError, InputError
from coldctl.events import Events
from coldctl.loader.load.parts import Part
from coldctl.loader.load.wanted import Gather
from coldctl.loader.pool import Worker, default_streams_cap, share_out
from coldctl.loader.scratch import scratch, shortage
from coldctl.loader.sink import BLOCK_BYTES
from coldctl.loader.source import LastOpened, OpenSource

STAGE = "verify"

_FIRST_THREADS = 2


Use = Callable[[Part, memoryview], None]
"""Takes the bytes that the file has for a part. They are valid during the call only."""


def read_again(parts: Iterable[Part], make_use: Callable[[], Use], events: Events) -> None:
    """Give the file's bytes of each part to a use, on several threads, each with its own use and its own 4 MiB.

    Raises UnreadableError and ChangedError with file, tensor and stage, OutOfMemoryError, StoppedError, and what the
    use raises.
    """

    @contextmanager
    def make_worker() -> Iterator[Worker[list[Part]]]:
        use = make_use()
        buffer = scratch(BLOCK_BYTES)
        with LastOpened(lambda source: source.open(), checked=True) as opened:

            def work(together: list[Part]) -> Iterator[int]:
                with _located(together):
                    source = opened.get(together[0].wanted.source, together[0].wanted.name)
                    piece = _read(source, together, buffer)
                at_bytes = 0
                for part in together:
                    with shortage(stage=STAGE, file=part.wanted.source.name, tensor=part.wanted.name):
                        use(part, piece[at_bytes : at_bytes + part.nbytes])
                    at_bytes += part.nbytes
                yield at_bytes

            yield work

    try:
        share_out(_together(parts), make_worker, events, first=_FIRST_THREADS, cap=default_streams_cap())
    except (InputError, EnvironmentLacksError) as error:
        error.locate(stage=STAGE)
        raise


def file_sums(parts: Iterable[Part], events: Events) -> dict[int, tuple[int, int]]:
    """The block sums of `parts` as their files are now, by number. Raises what `read_again` raises."""
    sums: dict[int, tuple[int, int]] = {}

    def use(part: Part, in_file: memoryview) -> None:
        sums[part.number] = kernels().word_sums(in_file, 0)

    read_again(parts, lambda: use, events)
    return sums


def _together(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts that one read brings in: neighbours in their file, 4 MiB of them. One of a gathered tensor alone."""
    together: list[Part] = []
    for part in parts:
        if together and not _continues(together, part):
            yield together
            together = []
        together.append(part)
    if together:
        yield together


def _continues(together: Sequence[Part], part: Part) -> bool:
    first, last = together[0], together[-1]
    return (
        last.wanted.source is part.wanted.source
        and last.wanted.gather is None
        and part.wanted.gather is None
        and last.offset_bytes + last.nbytes == part.offset_bytes
        and part.offset_bytes + part.nbytes - first.offset_bytes <= BLOCK_BYTES
    )


def _read(source: OpenSource, together: Sequence[Part], buffer: memoryview) -> memoryview:
    """The bytes of `together`, in `buffer`."""
    piece = buffer[: sum(part.nbytes for part in together)]
    first = together[0]
    if first.wanted.gather is None:
        source.read_into(piece, first.offset_bytes)
    else:
        _gather(source, first, first.wanted.gather, piece)
    return piece


def _gather(source: OpenSource, part: Part, gather: Gather, piece: memoryview) -> None:
    strip, within_bytes = divmod(part.start_bytes, gather.strip_bytes)
    done_bytes = 0
    while done_bytes < part.nbytes:
        nbytes = min(gather.strip_bytes - within_bytes, part.nbytes - done_bytes)
        offset_bytes = part.wanted.offset_bytes + strip * gather.pitch_bytes + within_bytes
        source.read_into(piece[done_bytes : done_bytes + nbytes], offset_bytes)
        done_bytes += nbytes
        strip, within_bytes = strip + 1, 0


@contextmanager
def _located(together: Sequence[Part]) -> Iterator[None]:
    """Have an error name the tensor whose bytes could not be read."""
    try:
        yield
    except ColdctlError as error:
        offset_bytes = error.offset_bytes or 0
        begun = [part for part in together if part.offset_bytes <= offset_bytes] or together[:1]
        error.locate(stage=STAGE, file=together[0].wanted.source.name, tensor=begun[-1].wanted.name)
        raise
