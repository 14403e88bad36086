"""Tensors in memory against the checkpoint: every kind of damage is found and named, and a clean load is clean."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from coldctl.errors import (
    ChangedError,
    CorruptedError,
    FaultError,
    InputError,
    OutOfMemoryError,
    StoppedError,
    UnreadableError,
)
from coldctl.events import NULL, Events
from coldctl.jobs.repack import RepackOptions, repack
from coldctl.loader.device.protocol import Device
from coldctl.loader.format import manifest, rules
from coldctl.loader.format.checkpoint import open_checkpoint
from coldctl.loader.load.integrity import Expected, check
from coldctl.loader.load.parts import Part, Parts
from coldctl.loader.load.place import Placement, place
from coldctl.loader.load.reread import read_again
from coldctl.loader.load.wanted import Gather, Wanted, whole
from coldctl.results.load import IntegrityFacts
from tests.tiny import Made, header_of, made, write_sharded

KIB, MIB = 1 << 10, 1 << 20

BIG_BYTES = 9 * MIB + 8 * KIB
TENSORS = [
    {"big": made("F32", BIG_BYTES // 4), "odd": made("U8", 4 * MIB + 5), "empty": made("F32", 0, 3)},
    {"pages": made("BF16", 32 * KIB), "tiny": made("U8", 3), "last": made("F16", 101)},
]
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


class HostDevice:
    """As much of a device as a check asks for. Its memory is the host's, as torch has it."""

    name = "cuda:0"

    def __init__(self) -> None:
        self.copied_bytes = 0

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), 0xA5, dtype=torch.uint8)

    def copy_plainly(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source)
        self.copied_bytes += len(source)


class Load(NamedTuple):
    """A checkpoint in `folder`, and what memory holds of it: `arena`, where `placement` says."""

    folder: Path
    placement: Placement
    arena: NDArray[np.uint8]

    def at(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor in memory."""
        wanted, at_bytes = next(each for each in self.placement.placed if each.wanted.name == name)
        return self.arena[at_bytes : at_bytes + wanted.nbytes]


def check_with(
    memory: Callable[[NDArray[np.uint8]], Any], device: HostDevice | None, load: Load, *, exact: bool, events: Events
) -> IntegrityFacts:
    return check(
        load.placement.placed,
        memory(load.arena),
        expected=Expected.beside(str(load.folder)),
        device=cast(Device | None, device),
        exact=exact,
        events=events,
    )


def on_device(load: Load, *, exact: bool = False, events: Events = NULL) -> IntegrityFacts:
    return check_with(torch.from_numpy, HostDevice(), load, exact=exact, events=events)


def on_host_torch(load: Load, *, exact: bool = False, events: Events = NULL) -> IntegrityFacts:
    return check_with(torch.from_numpy, None, load, exact=exact, events=events)


def on_host_numpy(load: Load, *, exact: bool = False, events: Events = NULL) -> IntegrityFacts:
    return check_with(lambda arena: arena, None, load, exact=exact, events=events)


everywhere = pytest.mark.parametrize("checked", [on_device, on_host_torch, on_host_numpy])


def read(wanted: Sequence[Wanted], folder: Path) -> Load:
    """A load by hand: the bytes of the files, copied to where they belong, the rest of the arena poisoned."""
    placement = place(wanted)
    arena = np.full(placement.arena_bytes, 0x5A, dtype=np.uint8)
    for each, at_bytes in placement.placed:
        raw = (folder / each.source.name).read_bytes()
        if each.gather is None:
            held = raw[each.offset_bytes : each.offset_bytes + each.nbytes]
        else:
            strips, strip_bytes, pitch_bytes = each.gather
            begins = range(each.offset_bytes, each.offset_bytes + strips * pitch_bytes, pitch_bytes)
            held = b"".join(raw[begin : begin + strip_bytes] for begin in begins)
        arena[at_bytes : at_bytes + each.nbytes] = np.frombuffer(held, dtype=np.uint8)
    return Load(folder, placement, arena)


def load(folder: Path) -> Load:
    shards = open_checkpoint(folder).shards
    return read([whole(shard.source, tensor) for shard in shards for tensor in shard.header.tensors], folder)


def write(folder: Path, tensors: Sequence[dict[str, Made]] = TENSORS) -> Path:
    """A repacked checkpoint, with its manifest."""
    write_sharded(folder / "source", tensors)
    repack(RepackOptions(str(folder / "source"), str(folder / "weights"), order="file"))
    return folder / "weights"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return write(tmp_path)


@pytest.fixture
def bare(weights: Path) -> Path:
    """The same without a manifest."""
    (weights / "coldctl.json").unlink()
    return weights


def change_manifest(folder: Path, tensor: str, **changes: object) -> None:
    listed = manifest.load(str(folder))
    assert listed
    tensors = [msgspec.structs.replace(t, **changes) if t.name == tensor else t for t in listed.tensors]
    tensors.sort(key=manifest.position)
    (folder / "coldctl.json").write_bytes(manifest.encode(msgspec.structs.replace(listed, tensors=tensors)))


def place_in_file(folder: Path, name: str) -> tuple[Path, int]:
    for path in (folder / shard for shard in SHARDS):
        data_begins, header = header_of(path)
        if name in header:
            return path, data_begins + header[name]["data_offsets"][0]
    raise AssertionError(name)


def flip_in_file(folder: Path, name: str, byte: int) -> None:
    path, begins = place_in_file(folder, name)
    with path.open("r+b") as file:
        file.seek(begins + byte)
        old = file.read(1)[0]
        file.seek(begins + byte)
        file.write(bytes([old ^ 1]))


# What can go wrong on the way, each in the tensor that it names and from a byte that is worked out by hand.


def flip_a_bit(load: Load) -> None:
    load.at("big")[5 * MIB + 77] ^= 0x10


def swap_two_pages(load: Load) -> None:
    pages = load.at("pages").reshape(-1, 4096)
    pages[[2, 9]] = pages[[9, 2]]


def leave_a_stale_region(load: Load) -> None:
    """What another chunk brought to the same slot of a ring."""
    big = load.at("big")
    big[8 * MIB : 9 * MIB] = big[4 * MIB : 5 * MIB]


def lose_the_tail_byte(load: Load) -> None:
    load.at("odd")[4 * MIB + 4] ^= 0xFF


def shift_by_a_word(load: Load) -> None:
    load.at("last")[8:] = load.at("last")[:-8].copy()


class Damage(NamedTuple):
    """`block` is where it is by the sums, `first` the first byte of the tensor that differs."""

    do: Callable[[Load], None]
    tensor: str
    file: str
    block: str
    first: int


DAMAGES = [
    Damage(flip_a_bit, "big", SHARDS[0], "bytes 4194304 to 8388608", 5 * MIB + 77),
    Damage(swap_two_pages, "pages", SHARDS[1], "bytes 0 to 65536", 2 * 4096),
    Damage(leave_a_stale_region, "big", SHARDS[0], "bytes 8388608 to 9445376", 8 * MIB),
    Damage(lose_the_tail_byte, "odd", SHARDS[0], "bytes 4194304 to 4194309", 4 * MIB + 4),
    Damage(shift_by_a_word, "last", SHARDS[1], "bytes 0 to 202", 8),
]
damaged = pytest.mark.parametrize("damage", DAMAGES, ids=[each.do.__name__ for each in DAMAGES])


def assert_corrupted(damage: Damage, where: str, check: Callable[[], IntegrityFacts]) -> None:
    with pytest.raises(CorruptedError) as caught:
        check()
    error = caught.value
    assert (error.file, error.tensor, error.stage) == (damage.file, damage.tensor, "verify")
    says = f"{damage.file}: tensor {damage.tensor} differs in memory from the file, {where} of it (stage verify)"
    assert error.message == says


@everywhere
def test_a_clean_load_is_held_against_the_manifest_alone(checked: Any, weights: Path) -> None:
    """The files are not even opened: they are gone."""
    loaded = load(weights)
    for name in SHARDS:
        (weights / name).unlink()
    facts = checked(loaded)
    assert (facts.manifest_tensors, facts.file_tensors, facts.exact) == (6, 0, False)
    assert facts.seconds > 0


@everywhere
def test_a_clean_load_without_a_manifest_is_held_against_the_files(checked: Any, bare: Path) -> None:
    facts = checked(load(bare))
    assert (facts.manifest_tensors, facts.file_tensors, facts.exact) == (0, 6, False)


@everywhere
def test_an_exact_check_of_a_clean_load_looks_at_the_files_only(checked: Any, weights: Path) -> None:
    change_manifest(weights, "big", block_sums="0" * 96)
    facts = checked(load(weights), exact=True)
    assert (facts.manifest_tensors, facts.file_tensors, facts.exact) == (0, 6, True)


@everywhere
@damaged
def test_damage_is_found_by_the_manifest_and_named(checked: Any, weights: Path, damage: Damage) -> None:
    loaded = load(weights)
    damage.do(loaded)
    assert_corrupted(damage, f"within {damage.block}", lambda: checked(loaded))


@everywhere
@damaged
def test_damage_is_found_by_the_file_and_named(checked: Any, bare: Path, damage: Damage) -> None:
    """On a device by block sums; on the host every byte is compared anyway."""
    loaded = load(bare)
    damage.do(loaded)
    where = f"within {damage.block}" if checked is on_device else f"first at byte {damage.first}"
    assert_corrupted(damage, where, lambda: checked(loaded))


@everywhere
@damaged
def test_an_exact_check_names_the_first_byte_that_differs(checked: Any, weights: Path, damage: Damage) -> None:
    loaded = load(weights)
    damage.do(loaded)
    assert_corrupted(damage, f"first at byte {damage.first}", lambda: checked(loaded, exact=True))


@everywhere
@pytest.mark.parametrize("exact", [False, True])
def test_the_first_tensor_of_the_plan_is_named_and_others_are_counted(checked: Any, weights: Path, exact: bool) -> None:
    loaded = load(weights)
    for name in ("tiny", "odd", "last"):
        loaded.at(name)[0] ^= 1
    loaded.at("odd")[-1] ^= 1
    with pytest.raises(CorruptedError, match=r"and so do 2 more tensors") as caught:
        checked(loaded, exact=exact)
    assert caught.value.tensor == "odd"


def test_the_order_of_the_plan_counts_and_not_whose_sums_are_known(weights: Path) -> None:
    change_manifest(weights, "odd", dtype="I8")
    loaded = load(weights)
    for name in ("odd", "pages"):
        loaded.at(name)[0] ^= 1
    with pytest.raises(CorruptedError, match=r"and so does 1 more tensor\)") as caught:
        on_host_numpy(loaded)
    assert caught.value.tensor == "odd"


@everywhere
def test_a_file_that_was_damaged_after_the_manifest_was_written_is_named_as_such(checked: Any, weights: Path) -> None:
    flip_in_file(weights, "big", 8 * MIB + 1)
    loaded = load(weights)
    message = f"^{SHARDS[0]}: bytes 8388608 to 9445376 of tensor big differ from what was written"
    with pytest.raises(FaultError, match=message) as caught:
        checked(loaded)
    error = caught.value
    assert (error.rule, error.file, error.tensor, error.stage) == ("digest.mismatch", SHARDS[0], "big", "verify")
    assert error.hint == rules.RULES["digest.mismatch"].hint
    assert checked(loaded, exact=True).file_tensors == 6


@everywhere
def test_sums_that_were_changed_in_the_manifest_contradict_the_file(checked: Any, weights: Path) -> None:
    listed = manifest.load(str(weights))
    assert listed
    sums = next(tensor.block_sums for tensor in listed.tensors if tensor.name == "odd")
    change_manifest(weights, "odd", block_sums=sums[:-1] + f"{int(sums[-1], 16) ^ 1:x}")
    with pytest.raises(FaultError, match="bytes 4194304 to 4194309 of tensor odd differ from what was written") as it:
        checked(load(weights))
    assert (it.value.rule, it.value.tensor) == ("digest.mismatch", "odd")


@everywhere
@pytest.mark.parametrize(
    "changes",
    [{"dtype": "I32"}, {"shape": (1, BIG_BYTES // 4)}, {"offset_bytes": 0}, {"name": "other"}, {"nbytes": 4}],
)
def test_a_tensor_that_the_manifest_lists_otherwise_is_held_against_the_file(
    checked: Any, weights: Path, changes: dict[str, object]
) -> None:
    change_manifest(weights, "big", **changes)
    loaded = load(weights)
    facts = checked(loaded)
    assert (facts.manifest_tensors, facts.file_tensors) == (5, 1)
    flip_a_bit(loaded)
    with pytest.raises(CorruptedError) as caught:
        checked(loaded)
    assert caught.value.tensor == "big"


def test_a_manifest_of_another_file_says_nothing(weights: Path) -> None:
    listed = manifest.load(str(weights))
    assert listed
    moved = [msgspec.structs.replace(tensor, file="a.safetensors") for tensor in listed.tensors if tensor.name == "big"]
    facts = check(
        load(weights).placement.placed,
        load(weights).arena,
        expected=Expected(msgspec.structs.replace(listed, tensors=moved)),
        device=None,
        exact=False,
    )
    assert (facts.manifest_tensors, facts.file_tensors) == (0, 6)


@pytest.mark.parametrize("block_sums", ["", "0" * 95, "0" * 64, "0" * 95 + "x"])
def test_a_manifest_without_sums_for_each_block_cannot_be_used(weights: Path, block_sums: str) -> None:
    change_manifest(weights, "big", block_sums=block_sums)
    with pytest.raises(FaultError, match="32 hex digits of block sums for each 4 MiB of tensor big") as caught:
        on_host_numpy(load(weights))
    assert (caught.value.rule, caught.value.file, caught.value.tensor) == ("manifest.tensor", SHARDS[0], "big")


def test_a_malformed_manifest_is_not_passed_over(weights: Path) -> None:
    (weights / "coldctl.json").write_text("{}\n")
    with pytest.raises(FaultError) as caught:
        Expected.beside(str(weights))
    assert caught.value.rule == "manifest.malformed"


def parts_of_a_matrix(folder: Path) -> list[Wanted]:
    """Of a U8 matrix of 3000 rows and 4096 columns: rows 1000 to 2500, and of every row the columns 3000 to 4000."""
    shard = open_checkpoint(folder).shards[0]
    matrix = next(tensor for tensor in shard.header.tensors if tensor.name == "matrix")
    rows = Wanted("matrix", "U8", (1500, 4096), shard.source, matrix.offset_bytes + 1000 * 4096, 1500 * 4096, matrix)
    gather = Gather(strips=3000, strip_bytes=1000, pitch_bytes=4096)
    columns = Wanted(
        "columns", "U8", (3000, 1000), shard.source, matrix.offset_bytes + 3000, 3000 * 1000, matrix, gather
    )
    return [rows, columns]


@everywhere
@pytest.mark.parametrize("exact", [False, True])
def test_parts_of_a_tensor_are_held_against_the_file(checked: Any, tmp_path: Path, exact: bool) -> None:
    folder = write(tmp_path, [{"matrix": made("U8", 3000, 4096)}])
    loaded = read(parts_of_a_matrix(folder), folder)
    assert checked(loaded, exact=exact).file_tensors == 2
    loaded.at("columns")[2_999_999] ^= 1
    bytewise = exact or checked is not on_device
    where = "first at byte 2999999 of it" if bytewise else "within bytes 0 to 3000000 of it"
    with pytest.raises(CorruptedError, match=f"tensor columns differs .* {where}"):
        checked(loaded, exact=exact)
    loaded.at("matrix")[6_143_999] ^= 1
    where = "first at byte 6143999 of it" if bytewise else "within bytes 4194304 to 6144000 of it"
    with pytest.raises(CorruptedError, match=f"tensor matrix differs .* {where} .and so does 1 more"):
        checked(loaded, exact=exact)


@everywhere
@pytest.mark.parametrize("strip_bytes", [1000, 3000, 4096 * 1024 - 8])
def test_blocks_of_a_gathered_tensor_begin_inside_strips(checked: Any, tmp_path: Path, strip_bytes: int) -> None:
    """Strips of which no whole number fits a block of 4 MiB, the last but one byte damaged in the second block."""
    pitch_bytes = strip_bytes + 8
    strips = 6 * MIB // strip_bytes + 1
    folder = write(tmp_path, [{"matrix": made("U8", strips, pitch_bytes)}])
    shard = open_checkpoint(folder).shards[0]
    matrix = shard.header.tensors[0]
    gather = Gather(strips, strip_bytes, pitch_bytes)
    shape, nbytes = (strips, strip_bytes), strips * strip_bytes
    loaded = read(
        [Wanted("columns", "U8", shape, shard.source, matrix.offset_bytes + 8, nbytes, matrix, gather)], folder
    )
    assert checked(loaded).file_tensors == 1
    loaded.at("columns")[nbytes - 2] ^= 1
    where = f"within bytes 4194304 to {nbytes}" if checked is on_device else f"first at byte {nbytes - 2}"
    with pytest.raises(CorruptedError, match=f"{where} of it"):
        checked(loaded)


@everywhere
def test_a_gathered_tensor_that_begins_where_the_one_before_it_ends_is_read_by_itself(
    checked: Any, tmp_path: Path
) -> None:
    """As for the first of two ranks: all of the norm, and of the matrix after it the left half of every row."""
    write_sharded(tmp_path, [{"norm": made("U8", 512), "matrix": made("U8", 64, 64)}])
    shard = open_checkpoint(tmp_path).shards[0]
    norm, matrix = shard.header.tensors
    assert norm.offset_bytes + norm.nbytes == matrix.offset_bytes
    left = Wanted("matrix", "U8", (64, 32), shard.source, matrix.offset_bytes, 2048, matrix, Gather(64, 32, 64))
    assert checked(read([whole(shard.source, norm), left], tmp_path), exact=True).file_tensors == 2


@everywhere
def test_neighbours_by_offset_but_not_by_file_are_read_apart(checked: Any, tmp_path: Path) -> None:
    write_sharded(tmp_path, [{f"a{n}": made("U8", 64, seed=n), f"b{n}": made("U8", 64, seed=-n)} for n in (1, 2)])
    one, two = open_checkpoint(tmp_path).shards
    (a1, b1), (a2, b2) = one.header.tensors, two.header.tensors
    assert a1.offset_bytes + 64 == b2.offset_bytes
    wanted = [whole(one.source, a1), whole(two.source, b2), whole(two.source, a2), whole(one.source, b1)]
    assert checked(read(wanted, tmp_path)).file_tensors == 4


@everywhere
@pytest.mark.parametrize("exact", [False, True])
def test_one_of_many_small_tensors_is_named(checked: Any, tmp_path: Path, exact: bool) -> None:
    """They stand side by side in the file and in slots of their own in memory."""
    tensors = {f"t{n:03d}": made("U8", 1 + n * 7 % 301, seed=n) for n in range(500)}
    folder = write(tmp_path, [tensors])
    (folder / "coldctl.json").unlink()
    loaded = load(folder)
    assert checked(loaded, exact=exact).file_tensors == 500
    loaded.at("t321")[-1] ^= 0x80
    with pytest.raises(CorruptedError) as caught:
        checked(loaded, exact=exact)
    assert caught.value.tensor == "t321"


def test_an_order_that_crosses_files_is_as_good_as_any(bare: Path) -> None:
    wanted = list(load(bare).placement.wanted)
    mixed = read([wanted[n] for n in (5, 0, 3, 1, 4, 2)], bare)
    assert on_device(mixed).file_tensors == on_host_numpy(mixed).file_tensors == 6
    mixed.at("tiny")[2] ^= 1
    with pytest.raises(CorruptedError) as caught:
        on_device(mixed)
    assert caught.value.tensor == "tiny"


def test_nothing_loaded_is_nothing_wrong(tmp_path: Path) -> None:
    nothing = Load(tmp_path, place([]), np.empty(0, dtype=np.uint8))
    for checked in (on_device, on_host_numpy):
        facts = checked(nothing)
        assert (facts.manifest_tensors, facts.file_tensors) == (0, 0)


def test_an_exact_check_brings_every_byte_to_the_device(weights: Path) -> None:
    device, loaded = HostDevice(), load(weights)
    check_with(torch.from_numpy, device, loaded, exact=True, events=NULL)
    assert device.copied_bytes == sum(len(tensor.data) for shard in TENSORS for tensor in shard.values())


def test_a_file_that_was_replaced_meanwhile_is_said_to_be_changed(bare: Path) -> None:
    loaded = load(bare)
    os.utime(bare / SHARDS[1], ns=(0, 0))
    with pytest.raises(ChangedError, match=f"{SHARDS[1]} was changed or replaced") as caught:
        on_host_numpy(loaded)
    assert caught.value.stage == "verify"


def test_a_file_that_changes_while_it_is_compared_proves_nothing(tmp_path: Path) -> None:
    """All of it has been read, and by one thread, when it changes."""
    (path,) = write_sharded(tmp_path, [{"t": made("U8", 64)}])

    class Meddling(Events):
        def advance(self, nbytes: int) -> None:
            os.utime(path, ns=(0, nbytes))

    with pytest.raises(ChangedError, match=f"{path.name} was changed or replaced") as caught:
        on_host_numpy(load(tmp_path), events=Meddling())
    assert (caught.value.file, caught.value.tensor, caught.value.stage) == (path.name, "t", "verify")


def test_a_file_that_changed_when_it_is_left_for_the_next_is_named_with_a_tensor_of_its_own(tmp_path: Path) -> None:
    """One part for each thread to begin with, so that whoever read the first file goes on to the second."""
    first, second = write_sharded(tmp_path, [{"a": made("U8", 64)}, {f"b{n}": made("U8", 4 * MIB) for n in range(6)}])

    class Meddling(Events):
        def advance(self, nbytes: int) -> None:
            if nbytes == 64:
                os.utime(first, ns=(0, 0))

    with pytest.raises(ChangedError, match=f"{first.name} was changed or replaced") as caught:
        on_host_numpy(load(tmp_path), exact=True, events=Meddling())
    assert (caught.value.file, caught.value.tensor, caught.value.stage) == (first.name, "a", "verify")
    assert second.name not in caught.value.message
    assert "tensor a" in caught.value.message


def test_memory_that_a_comparison_cannot_get_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    write_sharded(tmp_path, [{"t": made("U8", 64)}])
    (placed,) = load(tmp_path).placement.placed

    def use(part: Part, in_file: memoryview) -> None:  # noqa: ARG001
        np.empty(1 << 50, dtype=np.uint8)

    with pytest.raises(OutOfMemoryError, match="cannot get host memory") as caught:
        read_again(Parts([placed], [0]), lambda: use, NULL)
    assert (caught.value.tensor, caught.value.stage) == ("t", "verify")


def test_a_file_that_is_gone_cannot_be_compared(bare: Path) -> None:
    loaded = load(bare)
    (bare / SHARDS[0]).unlink()
    with pytest.raises(InputError, match="cannot open") as caught:
        on_device(loaded)
    assert caught.value.stage == "verify"


def test_bytes_that_cannot_be_read_again_are_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(bare)
    path, begins = place_in_file(bare, "tiny")
    preadv = os.preadv

    def failing(fd: int, buffers: Any, offset: int, *flags: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}") == str(path) and offset <= begins < offset + sum(map(len, buffers)):
            if offset < begins:
                return preadv(fd, [buffers[0][: begins - offset]], offset)
            raise OSError(5, "Input/output error")
        return preadv(fd, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(UnreadableError, match=f"at byte {begins}") as caught:
        on_host_numpy(loaded)
    assert (caught.value.file, caught.value.tensor, caught.value.stage) == (SHARDS[1], "tiny", "verify")


def test_a_device_without_room_for_the_sums_is_named(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", no_room)
    with pytest.raises(OutOfMemoryError, match=r"cuda:0 has no 128.0 MiB left") as caught:
        on_device(load(weights))
    assert caught.value.stage == "verify"


class Counting(Events):
    def __init__(self) -> None:
        self.total_bytes = self.done_bytes = 0

    def begin(self, label: str, total_bytes: int) -> None:
        assert label == "checking"
        self.total_bytes = total_bytes

    def advance(self, nbytes: int) -> None:
        self.done_bytes += nbytes


@everywhere
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ["big", "no such tensor"])
def test_progress_covers_every_byte_once(checked: Any, weights: Path, name: str, exact: bool) -> None:
    change_manifest(weights, name, dtype="I32")
    events = Counting()
    checked(load(weights), exact=exact, events=events)
    expected_bytes = sum(len(tensor.data) for shard in TENSORS for tensor in shard.values())
    assert (events.total_bytes, events.done_bytes) == (expected_bytes, expected_bytes)


@everywhere
def test_a_check_stops_when_asked_to(checked: Any, bare: Path) -> None:
    class Stopping(Events):
        def raise_if_stopped(self) -> None:
            raise StoppedError(15)

    with pytest.raises(StoppedError):
        checked(load(bare), events=Stopping())
