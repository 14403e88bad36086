"""scripts/make_checkpoint.py, judged by the safetensors library, by arithmetic and by bit patterns."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from scripts.make_checkpoint import make_checkpoint
from scripts.synthetic.families import SHAPES

MIB = 1 << 20
SCRIPT = Path(__file__).parents[2] / "scripts" / "make_checkpoint.py"
WIDTHS = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1}


def raw_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name → dtype, shape, bytes, read with json alone."""
    data = path.read_bytes()
    header_bytes = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:header_bytes])
    entries.pop("__metadata__")
    return {
        name: (entry["dtype"], tuple(entry["shape"]), data[slice(*(header_bytes + at for at in entry["data_offsets"]))])
        for name, entry in entries.items()
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_library_opens_every_shard_and_the_index_names_every_tensor(tmp_path: Path, shape: str) -> None:
    paths = make_checkpoint(tmp_path, shape=shape, size_bytes=8 * MIB, shard_bytes=3 * MIB)
    assert len(paths) > 1
    shapes: dict[str, list[int]] = {}
    homes = {}
    nbytes = 0
    for path in paths:
        with safe_open(path, framework="numpy") as file:
            assert file.metadata() == {"format": "pt"}
            for name in file.keys():  # noqa: SIM118 (no mapping)
                view = file.get_slice(name)
                assert name not in shapes
                shapes[name], homes[name] = view.get_shape(), path.name
                nbytes += math.prod(view.get_shape()) * WIDTHS[view.get_dtype()]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index == {"metadata": {"total_size": nbytes}, "weight_map": homes}
    assert 0.9 * 8 * MIB <= nbytes <= 8 * MIB
    assert [path.name for path in paths] == [
        f"model-{number:05}-of-{len(paths):05}.safetensors" for number in range(1, len(paths) + 1)
    ]
    config = json.loads((tmp_path / "config.json").read_text())
    assert shapes["model.embed_tokens.weight"] == [config["vocab_size"], config["hidden_size"]]
    assert ("lm_head.weight" in shapes) == (not config["tie_word_embeddings"])
    layers = {int(name.split(".")[2]) for name in shapes if name.startswith("model.layers.")}
    assert layers == set(range(config["num_hidden_layers"]))


@pytest.mark.parametrize("size_mib", [4, 16, 48])
@pytest.mark.parametrize("shape", SHAPES)
def test_size_is_near_what_was_asked(tmp_path: Path, shape: str, size_mib: int) -> None:
    (path,) = make_checkpoint(tmp_path, shape=shape, size_bytes=size_mib * MIB, shard_bytes=1 << 40, sparse=True)
    assert path.name == "model.safetensors"
    assert not (tmp_path / "model.safetensors.index.json").exists()
    assert 0.9 * size_mib * MIB <= path.stat().st_size <= 1.1 * size_mib * MIB


def test_file_is_what_the_library_itself_would_write(tmp_path: Path) -> None:
    (path,) = make_checkpoint(tmp_path, shape="llama", size_bytes=4 * MIB, shard_bytes=1 << 40, dtype="f16")
    save_file(load_file(path), tmp_path / "again.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_no_shard_is_larger_than_asked_unless_one_tensor_is(tmp_path: Path) -> None:
    paths = make_checkpoint(tmp_path, shape="qwen", size_bytes=8 * MIB, shard_bytes=MIB)
    for path in paths:
        tensors = raw_tensors(path)
        assert sum(len(data) for _, _, data in tensors.values()) <= MIB or len(tensors) == 1


@pytest.mark.parametrize(("dtype", "code", "exponent"), [("bf16", "BF16", 0x7F80), ("f16", "F16", 0x7C00)])
def test_half_width_values_are_finite(tmp_path: Path, dtype: str, code: str, exponent: int) -> None:
    (path,) = make_checkpoint(tmp_path, shape="gemma", size_bytes=4 * MIB, shard_bytes=1 << 40, dtype=dtype)
    for name, (found, _, data) in raw_tensors(path).items():
        assert found == code
        bits = np.frombuffer(data, np.uint16) & exponent
        assert (bits != exponent).all(), name
        assert (bits != 0).all(), name


def test_fp8_weights_and_scales_are_finite_and_scales_have_one_value_a_block(tmp_path: Path) -> None:
    (path,) = make_checkpoint(tmp_path, shape="deepseek-moe", size_bytes=16 * MIB, shard_bytes=1 << 40)
    tensors = raw_tensors(path)
    scaled = [name for name, (dtype, _, _) in tensors.items() if dtype == "F8_E4M3"]
    assert any(".experts." in name for name in scaled)
    for name in scaled:
        _, (rows, columns), data = tensors[name]
        assert (np.frombuffer(data, np.uint8) & 0x7F != 0x7F).all(), name
        dtype, scale_shape, scale = tensors[f"{name}_scale_inv"]
        assert (dtype, scale_shape) == ("F32", (-(-rows // 128), -(-columns // 128)))
        values = np.frombuffer(scale, np.float32)
        assert np.isfinite(values).all()
        assert (values > 0).all()


def test_forced_tensor_count_is_exact(tmp_path: Path) -> None:
    paths = make_checkpoint(
        tmp_path, shape="deepseek-moe", size_bytes=64 * MIB, shard_bytes=1 << 40, sparse=True, tensor_count=20_011
    )
    with paths[0].open("rb") as file:
        entries = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    assert len(entries) == 20_011 + 1  # and __metadata__
    assert sum(name.endswith("_scale_inv") for name in entries) > 9_900


def test_same_seed_gives_the_same_tensors_in_any_sharding_and_another_seed_others(tmp_path: Path) -> None:
    def tensors(folder: str, shard_bytes: int, seed: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        paths = make_checkpoint(
            tmp_path / folder, shape="llama", size_bytes=4 * MIB, shard_bytes=shard_bytes, seed=seed
        )
        return {name: tensor for path in paths for name, tensor in raw_tensors(path).items()}

    whole = tensors("whole", 1 << 40, 7)
    assert tensors("sharded", MIB, 7) == whole
    other = tensors("other", 1 << 40, 8)
    assert all(other[name] != tensor for name, tensor in whole.items())


def test_sparse_takes_no_disk_but_has_its_full_size(tmp_path: Path) -> None:
    sizes = {}
    for sparse in (False, True):
        folder = tmp_path / str(sparse)
        (path,) = make_checkpoint(folder, shape="llama", size_bytes=16 * MIB, shard_bytes=1 << 40, sparse=sparse)
        sizes[sparse] = path.stat()
    assert sizes[True].st_size == sizes[False].st_size
    assert sizes[True].st_blocks * 512 < MIB


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_command_prints_the_files_it_wrote(tmp_path: Path) -> None:
    done = run(os.fspath(tmp_path / "new"), "--shape", "qwen", "--size", "4MiB", "--shard-size", "2MB", "--seed", "3")
    assert done.returncode == 0, done.stderr
    written = [Path(line) for line in done.stdout.splitlines()]
    assert written == sorted((tmp_path / "new").glob("*.safetensors"))
    assert len(written) >= 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--size", "8G"), "ambiguous size"),
        (("--size", "1KiB"), "does not fit"),
        (("--shape", "llama", "--tensors", "100"), "--tensors"),
        (("--shape", "deepseek-moe", "--tensors", "0"), "--tensors"),
    ],
)
def test_command_refuses_what_makes_no_sense(tmp_path: Path, arguments: tuple[str, ...], complaint: str) -> None:
    done = run(os.fspath(tmp_path / "new"), *arguments)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()
