"""coldctl.loader.load.tensors and mapped: the bits, shapes and dtypes of the safetensors library, without a copy."""

from __future__ import annotations

import copy
import gc
import math
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from coldctl.errors import EnvironmentLacksError, UsageError
from coldctl.loader.format.dtypes import BITS
from coldctl.loader.format.header import Tensor, read_header
from coldctl.loader.load.mapped import Mapping
from coldctl.loader.load.place import Placed, place
from coldctl.loader.load.tensors import (
    numpy_views,
    resolve_framework,
    torch_views,
)
from coldctl.loader.load.wanted import whole
from coldctl.loader.source import LocalFile, identity_of
from tests.tiny import Made, write_shard

SHAPES = [(4, 8), (16,), (2, 3, 4), (1, 8), (0,), (4, 0), (0, 4)]
NO_NUMPY = {"BF16", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3", "F6_E3M2"}


def torch_view(memory: torch.Tensor, placed: Placed) -> torch.Tensor:
    """One tensor alone."""
    (view,) = torch_views(memory, [placed]).values()
    return view


def numpy_view(memory: np.ndarray[Any, Any], placed: Placed) -> np.ndarray[Any, Any]:
    """One array alone."""
    (view,) = numpy_views(memory, [placed]).values()
    return view


def random_bytes(dtype: str, shape: tuple[int, ...], seed: int) -> bytes:
    nbytes = math.prod(shape) * BITS[dtype] // 8
    data = np.random.default_rng(seed).integers(0, 2 if dtype == "BOOL" else 256, nbytes, dtype=np.uint8)
    return data.tobytes()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every dtype in several shapes, scalars where they are whole bytes, each tensor at whatever byte is next."""
    path = tmp_path_factory.mktemp("tensors") / "all.safetensors"
    tensors = {"odd": Made("U8", (3,), b"abc")}
    for dtype in BITS:
        shapes = SHAPES if BITS[dtype] < 8 else [*SHAPES, ()]
        for seed, shape in enumerate(shapes):
            tensors[f"{dtype} {list(shape)}"] = Made(dtype, shape, random_bytes(dtype, shape, seed))
    write_shard(path, tensors)
    return path


def placed_in_an_arena(path: Path) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], list[Placed]]:
    source = LocalFile(path.name, str(path), identity_of(path.stat()))
    placement = place([whole(source, tensor) for tensor in read_header(str(path)).tensors])
    raw = np.fromfile(path, np.uint8)
    arena = np.zeros(placement.arena_bytes, np.uint8)
    placed = list(placement.placed)
    for wanted, at_bytes in placed:
        arena[at_bytes : at_bytes + wanted.nbytes] = raw[wanted.offset_bytes : wanted.offset_bytes + wanted.nbytes]
    return arena, placed


def placed_in_the_file(path: Path) -> list[Placed]:
    source = LocalFile(path.name, str(path), identity_of(path.stat()))
    return [Placed(whole(source, tensor), tensor.offset_bytes) for tensor in read_header(str(path)).tensors]


def at(dtype: str, shape: tuple[int, ...], at_bytes: int, name: str = "w") -> Placed:
    nbytes = math.prod(shape) * BITS[dtype] // 8
    source = LocalFile("f", "f", (0, 0, nbytes, 0))
    return Placed(whole(source, Tensor(name, dtype, shape, 0, nbytes)), at_bytes)


def bits_of(tensor: Any) -> bytes:
    """The bytes of a contiguous tensor of torch or numpy."""
    if isinstance(tensor, torch.Tensor):
        assert tensor.is_contiguous()
        tensor = tensor.reshape(-1).view(torch.uint8).numpy()
    return bytes(tensor.tobytes())


def assert_same_as_the_library(views: dict[str, Any], path: Path) -> None:
    with safe_open(path, "pt") as library:
        assert sorted(views) == list(library.keys())
        for name, ours in views.items():
            if name.startswith("F6"):
                continue  # the library refuses to make a tensor of it
            theirs = library.get_tensor(name)
            if theirs.dtype is torch.float4_e2m1fn_x2:
                theirs = theirs.view(torch.uint8)
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
            assert ours.stride() == theirs.stride(), name
            assert bits_of(ours) == bits_of(theirs), name


def assert_same_as_numpy_of_the_library(views: dict[str, Any], path: Path) -> None:
    with safe_open(path, "np") as library, safe_open(path, "pt") as bits:
        for name, ours in views.items():
            dtype = name.split()[0]
            if dtype not in NO_NUMPY:
                theirs = library.get_tensor(name)
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
                assert ours.tobytes() == theirs.tobytes(), name
            elif BITS[dtype] >= 8:
                assert ours.dtype == {8: np.uint8, 16: np.uint16}[BITS[dtype]], name
                assert ours.shape == tuple(bits.get_tensor(name).shape), name
                assert ours.tobytes() == bits_of(bits.get_tensor(name)), name


def test_torch_views_are_what_the_library_gives(file: Path) -> None:
    arena, placed = placed_in_an_arena(file)
    assert_same_as_the_library(torch_views(torch.from_numpy(arena), placed), file)


def test_numpy_views_are_what_the_library_gives(file: Path) -> None:
    arena, placed = placed_in_an_arena(file)
    assert_same_as_numpy_of_the_library(numpy_views(arena, placed), file)


def test_one_view_is_as_all_are(file: Path) -> None:
    arena, placed = placed_in_an_arena(file)
    memory = torch.from_numpy(arena)
    every, every_array = torch_views(memory, placed), numpy_views(arena, placed)
    for each in placed:
        alone, alone_array = torch_view(memory, each), numpy_view(arena, each)
        name = each.wanted.name
        assert (alone.dtype, alone.shape, bits_of(alone)) == (
            every[name].dtype,
            every[name].shape,
            bits_of(every[name]),
        )
        assert (alone_array.dtype, bits_of(alone_array)) == (every_array[name].dtype, bits_of(every_array[name]))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("F8_E4M3", torch.float8_e4m3fn),
        ("F8_E5M2", torch.float8_e5m2),
        ("F8_E8M0", torch.float8_e8m0fnu),
        ("F8_E4M3FNUZ", torch.float8_e4m3fnuz),
        ("F8_E5M2FNUZ", torch.float8_e5m2fnuz),
    ],
)
def test_all_256_values_of_f8_arrive_bit_for_bit(dtype: str, expected: torch.dtype) -> None:
    memory = torch.arange(256, dtype=torch.uint8)
    view = torch_view(memory, at(dtype, (16, 16), 0))
    assert view.dtype is expected
    assert bits_of(view) == bytes(range(256))
    assert numpy_view(memory.numpy(), at(dtype, (16, 16), 0)).tobytes() == bytes(range(256))


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("F4", (3, 4), (3, 2)),  # 16 bits a row
        ("F4", (2, 3, 6), (2, 3, 3)),
        ("F4", (2, 3), (3,)),  # 12 bits a row, 24 in all
        ("F4", (4, 0), (4, 0)),
        ("F4", (0, 3), (0,)),
        ("F6_E2M3", (5, 4), (5, 3)),  # 24 bits a row
        ("F6_E3M2", (4, 2), (6,)),  # 12 bits a row, 48 in all
        ("F6_E3M2", (8,), (6,)),
    ],
)
def test_elements_under_a_byte_come_as_bytes(dtype: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    memory = torch.arange(64, dtype=torch.uint8)
    view, array = torch_view(memory, at(dtype, shape, 8)), numpy_view(memory.numpy(), at(dtype, shape, 8))
    assert (view.dtype, tuple(view.shape)) == (torch.uint8, expected)
    assert (array.dtype, array.shape) == (np.dtype(np.uint8), expected)
    assert bits_of(view) == bits_of(array) == bytes(range(8, 8 + math.prod(expected)))


def test_views_lie_at_their_places_and_share_the_memory(file: Path) -> None:
    arena, placed = placed_in_an_arena(file)
    memory = torch.from_numpy(arena)
    views, arrays = torch_views(memory, placed), numpy_views(arena, placed)
    for wanted, at_bytes in placed:
        if wanted.nbytes:
            assert views[wanted.name].data_ptr() - memory.data_ptr() == at_bytes
            assert arrays[wanted.name].ctypes.data - arena.ctypes.data == at_bytes
    arena[:] = 0
    assert not any(any(bits_of(tensor)) for tensor in [*views.values(), *arrays.values()])


def test_views_count_from_where_the_memory_begins() -> None:
    larger = torch.arange(64, dtype=torch.uint8)
    view = torch_view(larger[16:], at("I16", (2, 2), 8))
    assert bits_of(view) == bytes(range(24, 32))
    assert bits_of(torch_view(larger[16:], at("I16", (2, 2), 9))) == bytes(range(25, 33))


def test_memory_that_ends_within_a_larger_element() -> None:
    memory = torch.arange(14, dtype=torch.uint8)
    views = torch_views(memory, [at("I64", (1,), 0, "eight"), at("I16", (3,), 8, "two"), at("F64", (0,), 14, "none")])
    assert [bits_of(view) for view in views.values()] == [bytes(range(8)), bytes(range(8, 14)), b""]


def test_empty_tensors_in_empty_memory() -> None:
    assert torch_view(torch.empty(0, dtype=torch.uint8), at("F32", (3, 0, 2), 0)).shape == (3, 0, 2)
    assert numpy_view(np.empty(0, np.uint8), at("F32", (3, 0, 2), 0)).shape == (3, 0, 2)


def test_an_empty_tensor_at_an_odd_end_of_little_memory() -> None:
    view = torch_view(torch.empty(5, dtype=torch.uint8), at("F32", (0, 2), 5))
    assert (view.dtype, tuple(view.shape)) == (torch.float32, (0, 2))


@pytest.mark.parametrize("dtype", [dtype for dtype in BITS if BITS[dtype] > 8])
@pytest.mark.parametrize("at_bytes", range(1, 16))
def test_a_tensor_at_any_byte_of_host_memory(dtype: str, at_bytes: int) -> None:
    memory = torch.arange(64, dtype=torch.uint8)
    expected = bytes(range(at_bytes, at_bytes + 4 * BITS[dtype] // 8))
    placed = at(dtype, (2, 2), at_bytes)
    view, array = torch_view(memory, placed), numpy_view(memory.numpy(), placed)
    assert view.data_ptr() - memory.data_ptr() == at_bytes
    assert bits_of(view) == bits_of(array) == expected
    assert torch.equal(view.clone().view(torch.uint8), view.view(torch.uint8))


def test_what_is_done_to_one_tensor_touches_no_other() -> None:
    memory = torch.zeros(32, dtype=torch.uint8)
    views = torch_views(memory, [at("F32", (2,), 0, "a"), at("F32", (2,), 8, "b"), at("F32", (2,), 16, "c")])
    a, b, c = views.values()
    a.mul_(torch.ones(2, requires_grad=True))
    assert a.requires_grad
    assert not b.requires_grad
    b.requires_grad_()
    loss = (b * c.requires_grad_()).sum()
    with torch.no_grad():
        a.add_(1)
    loss.backward()
    assert b.grad is not None
    assert memory.view(torch.float32)[:2].tolist() == [1.0, 1.0]


def test_views_are_ordinary_tensors() -> None:
    view = torch_view(torch.zeros(16, dtype=torch.uint8), at("F32", (2, 2), 0))
    assert not view.is_inference()
    assert view.is_leaf
    parameter = torch.nn.Parameter(view)
    parameter.sum().backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert torch.equal(copy.deepcopy(view), view)


def test_the_arena_is_freed_with_its_last_torch_view() -> None:
    arena = np.zeros(64, np.uint8)
    freed = weakref.ref(arena)
    views = torch_views(
        torch.from_numpy(arena), [at("F32", (2,), 0, "a"), at("F32", (2,), 17, "b"), at("U8", (1,), 40)]
    )
    del arena
    for name in ("w", "a"):
        del views[name]
        gc.collect()
        assert freed() is not None
    del views["b"]
    gc.collect()
    assert freed() is None


def test_the_arena_is_freed_with_its_last_numpy_view() -> None:
    arena = np.zeros(64, np.uint8)
    freed = weakref.ref(arena)
    views = numpy_views(arena, [at("F32", (2,), 0, "a"), at("F32", (2,), 17, "b")])
    del arena, views["a"]
    assert freed() is not None
    views.clear()
    assert freed() is None


def test_arrays_are_as_writable_as_their_memory() -> None:
    memory = np.zeros(16, np.uint8)
    assert numpy_view(memory, at("F32", (2,), 0)).flags.writeable
    memory.flags.writeable = False
    assert not numpy_view(memory, at("F32", (2,), 0)).flags.writeable


@pytest.fixture
def mapping(file: Path) -> Iterator[Mapping]:
    with file.open("rb") as opened:
        yield Mapping(opened.fileno(), file.stat().st_size)


def is_mapped(path: Path) -> bool:
    return any(line.rstrip().endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def test_torch_views_of_a_mapping_are_what_the_library_gives(file: Path, mapping: Mapping) -> None:
    placed = placed_in_the_file(file)
    assert any(at_bytes % 2 for wanted, at_bytes in placed if wanted.dtype == "F32")
    views = torch_views(mapping.torch_bytes(), placed)
    assert all(views[w.name].data_ptr() == mapping.address + at_bytes for w, at_bytes in placed if w.nbytes)
    assert_same_as_the_library(views, file)


def test_numpy_views_of_a_mapping_are_what_the_library_gives_and_read_only(file: Path, mapping: Mapping) -> None:
    views = numpy_views(mapping.numpy_bytes(), placed_in_the_file(file))
    assert_same_as_numpy_of_the_library(views, file)
    for array in views.values():
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_file_is_unmapped_with_the_last_view(tmp_path: Path, framework: str) -> None:
    path = tmp_path / "one.safetensors"
    write_shard(path, {"a": Made("F32", (2,), bytes(range(8))), "b": Made("U8", (1,), b"x")})
    with path.open("rb") as opened:
        mapping = Mapping(opened.fileno(), path.stat().st_size)
    placed = placed_in_the_file(path)
    if framework == "torch":
        views: dict[str, Any] = torch_views(mapping.torch_bytes(), placed)
    else:
        views = numpy_views(mapping.numpy_bytes(), placed)
    del mapping, views["b"]
    gc.collect()
    assert is_mapped(path)
    assert bits_of(views["a"]) == bytes(range(8))
    views.clear()
    gc.collect()
    assert not is_mapped(path)


def test_a_mapping_without_views_is_unmapped_with_itself(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5000))
    with path.open("rb") as opened:
        mapping = Mapping(opened.fileno(), 5000)
    assert is_mapped(path)
    del mapping
    gc.collect()
    assert not is_mapped(path)


def test_a_directory_cannot_be_mapped(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="device"):
            Mapping(fd, 4096)
    finally:
        os.close(fd)


def test_frameworks_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [resolve_framework(asked) for asked in ("auto", "torch", "numpy")] == ["torch", "torch", "numpy"]
    with pytest.raises(UsageError, match="jax"):
        resolve_framework("jax")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert resolve_framework("auto") == "numpy"
    with pytest.raises(EnvironmentLacksError, match="torch") as caught:
        resolve_framework("torch")
    assert caught.value.hint == "pip install coldctl[torch]"
