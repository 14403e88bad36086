"""Reading: every byte of every tensor reaches the sink once, and a file that changes meanwhile is an error."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coldctl.errors import ChangedError, EnvironmentLacksError, InputError, StoppedError, UnreadableError
from coldctl.events import NULL, Events
from coldctl.loader import plan, reader
from coldctl.loader.format.checkpoint import Checkpoint, open_checkpoint
from coldctl.loader.format.header import Tensor
from coldctl.loader.plan import Segment
from coldctl.loader.source import LocalFile, Source
from tests.tiny import Tensors, made, write_shard, write_sharded

MIB = 1 << 20


class Recording:
    """A sink that keeps all, and checks that pieces ascend, on one thread for each tensor."""

    def __init__(self, on_piece: Callable[[], object] = lambda: None) -> None:
        self.data: dict[str, bytearray] = {}
        self.pieces: dict[str, list[int]] = {}
        self._threads: dict[str, int] = {}
        self._on_piece = on_piece

    def accept(self, source: Source, tensor: Tensor, start_bytes: int, piece: memoryview) -> None:  # noqa: ARG002
        self._on_piece()
        data = self.data.setdefault(tensor.name, bytearray())
        assert start_bytes == len(data)
        assert self._threads.setdefault(tensor.name, threading.get_ident()) == threading.get_ident()
        data += piece
        self.pieces.setdefault(tensor.name, []).append(len(piece))


def read_all(checkpoint: Checkpoint, sink: Recording, events: Events = NULL, piece_bytes: int = MIB) -> int:
    return reader.read(
        plan.tensor_segments(plan.ordered_tensors(checkpoint, "file")), sink, events, piece_bytes=piece_bytes
    )


def check(folder: Path, tensors: Tensors, piece_bytes: int = MIB) -> Recording:
    sink = Recording()
    read_all(open_checkpoint(folder), sink, piece_bytes=piece_bytes)
    assert {name: bytes(data) for name, data in sink.data.items()} == {n: t.data for n, t in tensors.items()}
    return sink


def test_tensors_of_all_sizes_arrive_whole(tmp_path: Path) -> None:
    tensors = {
        "one": made("U8", 1),
        "empty at the start": made("F32", 0, 4),
        "large": made("U8", 3 * MIB + 17),
        "empty in the middle": made("F32", 0),
        "exactly a buffer": made("U8", MIB),
        "a byte more": made("U8", MIB + 1),
        "scalar": made("F32"),
        "packed": made("F4", 6),
        "last, empty": made("U8", 0),
    }
    write_shard(tmp_path / "model.safetensors", tensors)
    sink = check(tmp_path, tensors)
    assert sink.pieces["large"] == [MIB, MIB, MIB, 17]
    assert sink.pieces["exactly a buffer"] == [MIB]
    assert sink.pieces["a byte more"] == [MIB, 1]
    assert sink.pieces["empty in the middle"] == [0]


def test_many_small_tensors_of_several_files_arrive_whole(tmp_path: Path) -> None:
    shards = [{f"{shard}.{n}": made("U8", n * 37 % 300, seed=shard) for n in range(1500)} for shard in range(4)]
    write_sharded(tmp_path, shards)
    check(tmp_path, {name: tensor for shard in shards for name, tensor in shard.items()})


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([0, 1, 7, 8, 31, 32, 33, 64, 100]), max_size=12))
def test_any_mix_of_sizes_around_a_small_buffer(tmp_path: Path, sizes: list[int]) -> None:
    tensors = {f"t{n}": made("U8", size, seed=n) for n, size in enumerate(sizes)}
    write_shard(tmp_path / "model.safetensors", tensors)
    sink = check(tmp_path, tensors, piece_bytes=32)
    assert all(piece <= 32 for pieces in sink.pieces.values() for piece in pieces)


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    class Counting(Events):
        total = 0
        lock = threading.Lock()

        def advance(self, nbytes: int) -> None:
            with self.lock:
                self.total += nbytes

    tensors = {"a": made("U8", 2 * MIB + 5), "b": made("U8", 9), "c": made("U8", 0)}
    write_shard(tmp_path / "model.safetensors", tensors)
    events = Counting()
    assert read_all(open_checkpoint(tmp_path), Recording(), events) >= 1
    assert events.total == 2 * MIB + 14


def big(tmp_path: Path) -> tuple[Path, Checkpoint]:
    path = tmp_path / "model.safetensors"
    write_shard(path, {"a": made("U8", 4 * MIB), "b": made("U8", 4 * MIB)})
    return path, open_checkpoint(tmp_path)


def test_a_file_that_shrinks_while_it_is_read_is_an_error_with_the_byte(tmp_path: Path) -> None:
    path, checkpoint = big(tmp_path)
    cut = 2 * MIB + 100
    with pytest.raises(ChangedError, match=f"model.safetensors ended at byte {cut} while it was read, expected"):
        read_all(checkpoint, Recording(lambda: os.truncate(path, cut)))


@pytest.mark.parametrize("change", ["write", "grow", "touch"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, change: str) -> None:
    path, checkpoint = big(tmp_path)

    def interfere() -> None:
        if change == "touch":
            os.utime(path, ns=(1, 1))
        else:
            with path.open("ab" if change == "grow" else "r+b") as file:
                file.write(b"x")

    with pytest.raises(ChangedError, match="was changed or replaced since its header was read"):
        read_all(checkpoint, Recording(interfere))


def test_a_file_that_was_replaced_since_its_header_was_read_is_an_error(tmp_path: Path) -> None:
    path, checkpoint = big(tmp_path)
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    os.replace(other, path)
    sink = Recording()
    with pytest.raises(ChangedError, match="changed or replaced"):
        read_all(checkpoint, sink)
    assert not sink.data


def test_a_file_that_became_a_pipe_is_an_error_and_does_not_hang(tmp_path: Path) -> None:
    path, checkpoint = big(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ChangedError):
        read_all(checkpoint, Recording())


def test_a_file_that_is_gone_or_forbidden_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, checkpoint = big(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match="cannot open"):
        read_all(checkpoint, Recording())

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(EnvironmentLacksError, match="Permission denied"):
        read_all(checkpoint, Recording())


def failing_preadv(bad_from: int) -> Callable[..., int]:
    """os.preadv on a disk whose blocks from the file's byte `bad_from` on cannot be read."""
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if offset >= bad_from:
            raise OSError(errno.EIO, "Input/output error")
        return real(fd, [buffers[0][: bad_from - offset]], offset, flags)

    return preadv


def test_bytes_that_cannot_be_read_are_an_error_with_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, checkpoint = big(tmp_path)
    monkeypatch.setattr(os, "preadv", failing_preadv(3 * MIB + 4096))
    with pytest.raises(UnreadableError, match=f"at byte {3 * MIB + 4096}: Input/output error") as caught:
        read_all(checkpoint, Recording())
    assert caught.value.exit_code == 3
    assert path.exists()


def test_unreadable_segments_are_handed_on_and_reading_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, checkpoint = big(tmp_path)
    a, b = checkpoint.shards[0].header.tensors
    source = checkpoint.shards[0].source
    segments = [Segment(source, t.offset_bytes, t.nbytes, (t,)) for t in (b, a)]
    monkeypatch.setattr(os, "preadv", failing_preadv(b.offset_bytes + 5))
    failed: list[tuple[str, str]] = []
    sink = Recording()
    reader.read(segments, sink, NULL, unreadable=lambda s, error: failed.append((s.tensors[0].name, error.message)))
    assert failed == [("b", f"cannot read model.safetensors at byte {b.offset_bytes + 5}: Input/output error")]
    assert len(sink.data["a"]) == 4 * MIB


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"a": made("U8", 5000), "b": made("U8", 10)}
    write_shard(tmp_path / "model.safetensors", tensors)
    checkpoint = open_checkpoint(tmp_path)
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:3]], offset))
    sink = Recording()
    read_all(checkpoint, sink)
    assert {name: bytes(data) for name, data in sink.data.items()} == {n: t.data for n, t in tensors.items()}


def test_an_error_of_the_sink_comes_out(tmp_path: Path) -> None:
    _, checkpoint = big(tmp_path)

    def explode() -> None:
        raise ValueError("the sink")

    with pytest.raises(ValueError, match="the sink"):
        read_all(checkpoint, Recording(explode))


def test_reading_stops_between_two_pieces(tmp_path: Path) -> None:
    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(15)

    _, checkpoint = big(tmp_path)
    sink = Recording()
    with pytest.raises(StoppedError):
        read_all(checkpoint, sink, Stopping())
    assert sum(len(data) for data in sink.data.values()) <= 2 * MIB


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    _, checkpoint = big(tmp_path)
    before = set(os.listdir("/proc/self/fd"))
    read_all(checkpoint, Recording())
    with pytest.raises(ChangedError):
        read_all(checkpoint, Recording(lambda: os.truncate(tmp_path / "model.safetensors", 5000)))
    assert set(os.listdir("/proc/self/fd")) == before


def test_an_open_source_reads_any_range(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)))
    status = path.stat()
    source = LocalFile("file", str(path), (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
    assert source.size_bytes == 256
    with source.open() as opened:
        buffer = bytearray(10)
        opened.read_into(memoryview(buffer), 100)
        assert buffer == bytes(range(100, 110))
        opened.read_into(memoryview(b"").cast("B"), 256)
        with pytest.raises(ChangedError, match="ended at byte 256"):
            opened.read_into(memoryview(buffer), 250)
