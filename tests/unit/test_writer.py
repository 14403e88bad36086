"""The aligned writer: the file that comes out is read back by the safetensors library and byte by byte."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors import safe_open

from coldctl.errors import EnvironmentLacksError, FaultError, NoSpaceError, UnreadableError
from coldctl.loader import syscalls
from coldctl.loader.format.header import Tensor
from coldctl.loader.format.layout import Placed
from coldctl.loader.source import LocalFile
from coldctl.loader.writer import NewShard, ShardWriter, lay_out
from tests.tiny import Stored, header_of, read_shard

FILLER = "_coldctl_pad.00001.000001.self_attn.rotary_emb.inv_freq"
OLD = LocalFile("old.safetensors", "/nowhere", (0, 0, 0, 0))
DATA = {"a": bytes(range(256)) * 32, "b": b"\x01\x02\x03\x04\x05\x06", "c": b"last"}


def tensor(name: str) -> Tensor:
    return Tensor(name, "U8", (len(DATA[name]),), 0, len(DATA[name]))


def placed(name: str) -> tuple[Placed, str | None]:
    return Placed(name, "U8", (len(DATA[name]),), len(DATA[name]), tensor(name)), "old.safetensors"


def filler(nbytes: int) -> tuple[Placed, str | None]:
    return Placed(FILLER, "U8", (nbytes,), nbytes, None), None


def shard(metadata: dict[str, str] | None = None) -> NewShard:
    return lay_out("new.safetensors", [placed("a"), placed("b"), filler(4090), placed("c")], metadata)


@contextmanager
def writing(path: Path, new: NewShard) -> Iterator[ShardWriter]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        yield ShardWriter(new, descriptor)
    finally:
        os.close(descriptor)


def give_all(writer: ShardWriter, piece_bytes: int = 1 << 20) -> None:
    for name, data in DATA.items():
        for start in range(0, len(data), piece_bytes):
            writer.accept(OLD, tensor(name), start, memoryview(data)[start : start + piece_bytes])


def check(path: Path) -> None:
    stored = read_shard(path)
    begins = header_of(path)[0]
    assert begins % 4096 == 0
    assert stored == {
        "a": Stored("U8", (8192,), DATA["a"], begins),
        "b": Stored("U8", (6,), DATA["b"], begins + 8192),
        FILLER: Stored("U8", (4090,), bytes(4090), begins + 8198),
        "c": Stored("U8", (4,), DATA["c"], begins + 12288),
    }
    with safe_open(path, "numpy") as file:
        assert {name: file.get_tensor(name).tobytes() for name in DATA} == DATA


@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 20])
def test_pieces_end_up_where_the_header_says(tmp_path: Path, piece_bytes: int) -> None:
    with writing(tmp_path / "new", shard()) as writer:
        give_all(writer, piece_bytes)
    check(tmp_path / "new")


def test_pieces_may_come_in_any_order_from_many_threads(tmp_path: Path) -> None:
    with writing(tmp_path / "new", shard()) as writer:
        pieces = [(name, start) for name, data in DATA.items() for start in range(0, len(data), 16)][::-1]

        def give(own: list[tuple[str, int]]) -> None:
            for name, start in own:
                writer.accept(OLD, tensor(name), start, memoryview(DATA[name])[start : start + 16])

        threads = [threading.Thread(target=give, args=(pieces[first::4],)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    check(tmp_path / "new")


def test_metadata_is_kept_and_absent_stays_absent(tmp_path: Path) -> None:
    for metadata in (None, {}, {"format": "pt", "note": "ü"}):
        with writing(tmp_path / "new", shard(metadata)) as writer:
            give_all(writer)
        assert header_of(tmp_path / "new")[1].get("__metadata__") == metadata


def test_the_exact_size_is_allocated_before_the_first_piece(tmp_path: Path) -> None:
    new = shard()
    with writing(tmp_path / "new", new) as writer:
        status = (tmp_path / "new").stat()
        assert writer.preallocated
        assert status.st_size == new.size_bytes == len(new.header) + 12288 + 4
        assert status.st_blocks * 512 >= new.size_bytes


def test_a_filesystem_that_cannot_allocate_gets_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fallocate(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(syscalls, "fallocate", fallocate)
    with writing(tmp_path / "new", shard()) as writer:
        assert not writer.preallocated
        assert (tmp_path / "new").stat().st_size == shard().size_bytes
        give_all(writer)
    check(tmp_path / "new")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, memoryview(data)[:100], offset))
    with writing(tmp_path / "new", shard()) as writer:
        give_all(writer)
    check(tmp_path / "new")


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, NoSpaceError),
        (errno.EDQUOT, NoSpaceError),
        (errno.EFBIG, NoSpaceError),
        (errno.EIO, UnreadableError),
        (errno.EROFS, EnvironmentLacksError),
        (errno.EPERM, EnvironmentLacksError),
    ],
)
@pytest.mark.parametrize("call", ["pwrite", "fallocate"])
def test_failed_calls_become_the_errors_that_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, error: type[Exception]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os if call == "pwrite" else syscalls, call, fail)
    with pytest.raises(error, match=r"new\.safetensors: " + os.strerror(number)), writing(tmp_path / "new", shard()):
        pass


def test_what_was_written_is_pushed_to_the_device_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushes: list[tuple[int, ...]] = []
    monkeypatch.setattr("coldctl.loader.writer._PUSH_BYTES", 8192)
    monkeypatch.setattr(syscalls, "sync_file_range", lambda _, *range_: pushes.append(range_))
    with writing(tmp_path / "new", shard()) as writer:
        give_all(writer, 4096)
    # 4096 of header, 4090 of filler, and the first 4096 of `a` pass 8192; what follows does not again.
    assert pushes == [(0, 0)]


@pytest.mark.parametrize(("number", "fails"), [(errno.ENOSYS, False), (errno.ESPIPE, False), (errno.EIO, True)])
def test_a_kernel_that_cannot_push_will_do_but_a_disk_that_fails_will_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    def push(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("coldctl.loader.writer._PUSH_BYTES", 1)
    monkeypatch.setattr(syscalls, "sync_file_range", push)
    if fails:
        with pytest.raises(UnreadableError), writing(tmp_path / "new", shard()):
            pass
    else:
        with writing(tmp_path / "new", shard()) as writer:
            give_all(writer)
        check(tmp_path / "new")


def test_a_header_that_readers_refuse_is_not_made() -> None:
    long = Placed("n" * 100_000_000, "U8", (0,), 0, None)
    with pytest.raises(FaultError) as caught:
        lay_out("new.safetensors", [(long, None)], None)
    assert caught.value.rule == "header.too-large"
