"""What lies in a folder, and which of it is the checkpoint when no index says so."""

from __future__ import annotations

import os

from coldctl.errors import InputError
from coldctl.loader.format.locate.model import Fault, Located
from coldctl.loader.format.locate.names import natural_key, some

WEIGHTS_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_MAIN = "model"
_WEIGHT_LIKE = (".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx", ".npz", ".index.json")
_UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".aria2")
_COUNT_DIGITS = 9
_SUBFOLDERS_LOOKED_AT = 50


class Listing:
    """The names in a folder that matter, each list in natural order. Hidden files are left out: temp files of coldctl
    and of download tools among them."""

    __slots__ = ("indexes", "others", "subfolders", "unfinished", "weights")

    def __init__(self) -> None:
        self.weights: list[str] = []
        self.indexes: list[str] = []
        self.others: list[str] = []
        self.unfinished: list[str] = []
        self.subfolders: list[str] = []


def list_folder(folder: str) -> Listing:
    """The names in `folder`, not below it. Raises OSError as os.scandir does."""
    listing = Listing()
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                _sort_in(entry, listing)
    for names in (listing.weights, listing.indexes, listing.others, listing.unfinished, listing.subfolders):
        names.sort(key=natural_key)
    return listing


def _sort_in(entry: os.DirEntry[str], listing: Listing) -> None:
    name = entry.name
    if name.endswith(INDEX_SUFFIX):
        listing.indexes.append(name)
    elif _is_folder(entry):
        listing.subfolders.append(name)
    elif name.endswith(WEIGHTS_SUFFIX):
        listing.weights.append(name)
    elif name.endswith(_UNFINISHED):
        listing.unfinished.append(name)
    elif name.endswith(_WEIGHT_LIKE):
        listing.others.append(name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link loop: whoever looks closer will say so
        return False


def choose_index(root: str, listing: Listing) -> str | None:
    """The index that decides in `root`; None without one. Raises InputError when there are several equals."""
    if _MAIN + INDEX_SUFFIX in listing.indexes:
        return _MAIN + INDEX_SUFFIX
    if len(listing.indexes) > 1:
        raise InputError(
            f"{root} has {len(listing.indexes)} indexes: {some(listing.indexes)}", hint="name the index that you mean"
        )
    return listing.indexes[0] if listing.indexes else None


def without_index(root: str, listing: Listing) -> Located:
    """The checkpoint in a folder without an index. Raises InputError when it has no safetensors at all."""
    located = Located(root)
    chosen = _choose(listing, located)
    for name in located.add_members([(name, os.path.join(root, name)) for name in chosen]):
        located.faults.append(Fault("file.missing", f"{name} does not exist", name))
    ignore_rest(located, listing, set(chosen or listing.weights))
    return located


def ignore_rest(located: Located, listing: Listing, used: set[str]) -> None:
    """List what lies beside the checkpoint, and warn of what a loader could take for a part of it."""
    beside = [name for name in listing.weights if name not in used]
    other_indexes = [name for name in listing.indexes if name != located.index_name]
    located.ignored = sorted(beside + other_indexes + listing.others, key=natural_key)
    why = f"is not in {located.index_name}" if located.index_name else "is not part of the checkpoint"
    for name in beside:
        located.faults.append(Fault("folder.ignored", f"{name} {why} and is ignored", name))
    for name in listing.unfinished:
        located.faults.append(Fault("folder.incomplete", f"{name} is what an unfinished download left", name))


def unfinished_note(missing: list[str], listing: Listing) -> str:
    """A clause that names the unfinished downloads of the missing files; empty when there are none."""
    left = [name for name in listing.unfinished if name.startswith(tuple(missing))]
    return f"; unfinished: {some(left)}" if left else ""


def _choose(listing: Listing, located: Located) -> list[str]:
    """The names that make up the checkpoint, with the faults of the choice."""
    if _MAIN + WEIGHTS_SUFFIX in listing.weights:
        return [_MAIN + WEIGHTS_SUFFIX]
    sets = _shard_sets(listing.weights)
    if len(sets) > 1:
        names = [f"{prefix}-*-of-{count}{WEIGHTS_SUFFIX}" for prefix, _, count in sets]
        located.faults.append(Fault("folder.ambiguous", f"there are {len(sets)} sets of shards: {some(names)}"))
        return []
    if sets:
        (prefix, width, count), shards = next(iter(sets.items()))
        _check_numbers(prefix, width, count, shards, listing, located)
        return list(shards.values())
    if not listing.weights:
        raise InputError(
            f"no safetensors in {located.root}{_instead(listing)}", hint=_where_else(located.root, listing)
        )
    if len(listing.weights) > 1:
        taken = f"all {len(listing.weights)} {WEIGHTS_SUFFIX} files are taken as one checkpoint"
        located.faults.append(Fault("folder.no-index", f"without an index or numbered names {taken}"))
    return listing.weights


def _shard_sets(names: list[str]) -> dict[tuple[str, int, str], dict[int, str]]:
    """Shards by their number, by (prefix, digits of the number, count as written)."""
    sets: dict[tuple[str, int, str], dict[int, str]] = {}
    for name in names:
        head, _, count = name.removesuffix(WEIGHTS_SUFFIX).rpartition("-of-")
        prefix, _, number = head.rpartition("-")
        if prefix and _is_count(number) and _is_count(count):
            sets.setdefault((prefix, len(number), count), {})[int(number)] = name
    return sets


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _COUNT_DIGITS


def _check_numbers(
    prefix: str, width: int, count: str, shards: dict[int, str], listing: Listing, located: Located
) -> None:
    """Whether all shards are there. Some tools count from zero. The count is only a number in a name: nothing is
    allocated by it."""
    first = 0 if 0 in shards else 1
    after = first + int(count)
    for number, name in shards.items():
        if number >= after:
            located.faults.append(Fault("folder.shard-number", f"{name} has a number beyond its own count", name))
    missing_count = int(count) - sum(number < after for number in shards)
    if missing_count == 0:
        return
    missing: list[str] = []
    number = first
    while len(missing) < min(missing_count, 20):
        if number not in shards:
            missing.append(f"{prefix}-{number:0{width}}-of-{count}{WEIGHTS_SUFFIX}")
        number += 1
    what = f"{missing_count:,} of {int(count):,} shards are missing: {some(missing, missing_count)}"
    file = missing[0] if missing_count == 1 else None
    located.faults.append(Fault("folder.missing-shard", what + unfinished_note(missing, listing), file))


def _instead(listing: Listing) -> str:
    found = listing.unfinished + listing.others
    return f"; found {some(found)}" if found else ""


def _revision(root: str) -> str:
    """One that is there, as an example; how they are called where none can be seen."""
    try:
        there = list_folder(os.path.join(root, "snapshots")).subfolders
    except OSError:
        there = []
    return f"such as snapshots/{there[0]}" if there else "snapshots/<revision>"


def _where_else(root: str, listing: Listing) -> str:
    """Where the weights may be, when they are one step further down."""
    if "snapshots" in listing.subfolders:
        return f"this is a hub-cache entry: name the folder of one revision in it, {_revision(root)}"
    for name in listing.subfolders[:_SUBFOLDERS_LOOKED_AT]:
        try:
            below = list_folder(os.path.join(root, name))
        except OSError:
            continue
        if below.weights or below.indexes:
            return f"the subfolder {name} has some: name it instead"
    return "name a safetensors file, or a folder that holds some"
