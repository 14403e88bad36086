"""Which files a path means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coldctl.errors import InputError
from coldctl.loader.format.locate import Located, locate
from coldctl.loader.format.locate.names import natural_key

INDEX = "model.safetensors.index.json"


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"never opened by locate")


def write_index(folder: Path, *shards: str, name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"weight_map": {f"t{i}": shard for i, shard in enumerate(shards)}}))


def members(located: Located) -> list[str]:
    return [member.name for member in located.members]


def rules(located: Located) -> list[str]:
    return [fault.rule for fault in located.faults]


def test_a_file_means_that_file_alone(tmp_path: Path) -> None:
    write(tmp_path, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    write_index(tmp_path, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    path = str(tmp_path / "model-00002-of-00002.safetensors")
    located = locate(path)
    assert [(m.name, m.path) for m in located.members] == [("model-00002-of-00002.safetensors", path)]
    assert (located.root, located.index_name, located.weight_map) == (str(tmp_path), None, None)
    assert (located.ignored, located.faults) == ([], [])


def test_a_relative_path_keeps_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "model.safetensors")
    monkeypatch.chdir(tmp_path)
    assert locate("model.safetensors").root == "."
    assert [member.path for member in locate(".").members] == ["./model.safetensors"]


def test_another_suffix_is_read_with_a_warning(tmp_path: Path) -> None:
    write(tmp_path, "0a1b2c")
    located = locate(str(tmp_path / "0a1b2c"))
    assert members(located) == ["0a1b2c"]
    assert rules(located) == ["file.suffix"]


def test_an_index_means_its_shards_in_natural_order(tmp_path: Path) -> None:
    names = [f"m-{i}.safetensors" for i in (10, 9, 1, 2)]
    write(tmp_path, *names, "other.safetensors", "pytorch_model.bin", "config.json")
    write_index(tmp_path, *names, name="m.safetensors.index.json")
    for path in (tmp_path, tmp_path / "m.safetensors.index.json"):
        located = locate(str(path))
        assert members(located) == [f"m-{i}.safetensors" for i in (1, 2, 9, 10)]
        assert located.index_name == "m.safetensors.index.json"
        assert located.weight_map == {f"t{i}": name for i, name in enumerate(names)}
        assert located.ignored == ["other.safetensors", "pytorch_model.bin"]
        assert rules(located) == ["folder.ignored"]


def test_the_main_index_goes_before_others(tmp_path: Path) -> None:
    write(tmp_path, "a.safetensors", "b.safetensors")
    write_index(tmp_path, "a.safetensors")
    write_index(tmp_path, "b.safetensors", name="x.safetensors.index.json")
    located = locate(str(tmp_path))
    assert members(located) == ["a.safetensors"]
    assert located.ignored == ["b.safetensors", "x.safetensors.index.json"]


def test_several_indexes_are_named(tmp_path: Path) -> None:
    write(tmp_path, "a.safetensors")
    write_index(tmp_path, "a.safetensors", name="x.safetensors.index.json")
    write_index(tmp_path, "a.safetensors", name="y.safetensors.index.json")
    with pytest.raises(InputError, match=r"x\.safetensors\.index\.json, y\.safetensors\.index\.json"):
        locate(str(tmp_path))


def test_names_are_judged_before_files_are_looked_at(tmp_path: Path) -> None:
    """Each of these exists and would be taken if its name were not judged first."""
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    write(folder, "a.safetensors")
    write(tmp_path, "outside.safetensors")
    bad = ["../outside.safetensors", str(tmp_path / "outside.safetensors"), "sub/../a.safetensors", "./a.safetensors"]
    write_index(folder, "a.safetensors", *bad)
    located = locate(str(folder))
    assert members(located) == ["a.safetensors"]
    assert rules(located) == ["index.shard-name"] * len(bad)


def test_missing_shards_are_named_in_one_line(tmp_path: Path) -> None:
    names = [f"model-{i:05}-of-00030.safetensors" for i in range(1, 31)]
    write(tmp_path, names[4])
    for with_index in (False, True):
        if with_index:
            write_index(tmp_path, *names)
        located = locate(str(tmp_path))
        assert members(located) == [names[4]]
        assert rules(located) == ["index.missing-shard" if with_index else "folder.missing-shard"]
        message = located.faults[0].message
        assert message.startswith("29 of 30 shards")
        assert all(name in message for name in names[:4])
        assert "and 19 more" in message


def test_the_count_in_a_name_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path, "m-000000007-of-999999999.safetensors")
    message = locate(str(tmp_path)).faults[0].message
    assert message.startswith("999,999,998 of 999,999,999 shards")
    assert "m-000000001-of-999999999.safetensors" in message


def test_a_stale_index_is_one_fault(tmp_path: Path) -> None:
    write(tmp_path, "model.safetensors", "adapter.safetensors")
    write_index(tmp_path, *[f"model-{i:05}-of-00005.safetensors" for i in range(1, 6)])
    located = locate(str(tmp_path))
    errors = [fault for fault in located.faults if fault.rule != "folder.ignored"]
    assert [fault.rule for fault in errors] == ["index.stale"]
    assert "0 of 5" in errors[0].message
    assert "2 other files" in errors[0].message


def test_a_subfolder_is_not_searched(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    write(tmp_path, "model.safetensors")
    write(tmp_path / "original", "consolidated.safetensors")
    located = locate(str(tmp_path))
    assert members(located) == ["model.safetensors"]
    assert located.ignored == []


@pytest.mark.parametrize("path", ["nowhere", "a\0b", "\ud800", "n" * 5000])
def test_no_such_path(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError):
        locate(f"{tmp_path}/{path}")


def test_natural_order() -> None:
    names = ["x-10", "x-9", "x-009", "x", "10", "9", "a", "x-" + "9" * 5000, "x-1" + "0" * 5000]
    ordered = sorted(names, key=natural_key)
    assert ordered == ["9", "10", "a", "x", "x-009", "x-9", "x-10", "x-" + "9" * 5000, "x-1" + "0" * 5000]


def test_a_probe_pays_for_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    write(tmp_path, "model.safetensors")
    code = (
        "import sys; from coldctl.loader.format.locate import locate; locate(sys.argv[1]);"
        "print(sorted({'json', 'dataclasses', 're', 'msgspec', 'numpy', 'rich', 'typer'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {"re"}


@pytest.mark.parametrize(
    ("revisions", "example"), [(["0a1b", "2c3d"], "such as snapshots/0a1b"), ([], "snapshots/<revision>")]
)
def test_a_hub_cache_entry_says_which_folder_to_name(tmp_path: Path, revisions: list[str], example: str) -> None:
    (tmp_path / "models--a--b" / "snapshots").mkdir(parents=True)
    for revision in revisions:
        (tmp_path / "models--a--b" / "snapshots" / revision).mkdir()
    with pytest.raises(InputError, match="no safetensors") as caught:
        locate(str(tmp_path / "models--a--b"))
    assert caught.value.hint == f"this is a hub-cache entry: name the folder of one revision in it, {example}"
