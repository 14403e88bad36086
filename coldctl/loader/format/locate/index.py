"""The index of a sharded checkpoint: the authority on which files belong to it, and so the first thing to distrust."""

from __future__ import annotations

import os

from coldctl.errors import from_os_error
from coldctl.loader.format import strictjson
from coldctl.loader.format.locate.folder import WEIGHTS_SUFFIX, Listing, ignore_rest, unfinished_note
from coldctl.loader.format.locate.model import Fault, Located
from coldctl.loader.format.locate.names import natural_key, objection, some
from coldctl.loader.regular import open_regular, read_at, refusal

MAX_INDEX_BYTES = 100_000_000
_METADATA = "__metadata__"


def with_index(root: str, index_name: str, listing: Listing) -> Located:
    """The checkpoint that the index at `root` names. Every name is judged before a file of that name is looked at.

    Raises EnvironmentLacksError or UnreadableError when the index itself cannot be read.
    """
    located = Located(root)
    located.index_name = index_name
    document = _document(located)
    if document is None:
        ignore_rest(located, listing, set(listing.weights))
        return located
    located.index_metadata = _metadata(document, located)
    located.weight_map = _weight_map(document, located)
    shards = _shards(located)
    missing = located.add_members([(name, os.path.join(root, name)) for name in shards])
    if missing:
        _report_missing(missing, len(shards), located, listing)
    ignore_rest(located, listing, set(shards or listing.weights))
    return located


def _document(located: Located) -> strictjson.Object | None:
    """The index's JSON object, or None with the fault in `located`."""
    name = str(located.index_name)
    data = _read(os.path.join(located.root, name), name, located)
    if data is None:
        return None
    rule, message = "index.json", ""
    try:
        document = strictjson.loads(data.decode())
        if isinstance(document, strictjson.Object):
            return document
        message = "the index is not a JSON object"
    except UnicodeDecodeError as error:
        rule, message = "index.utf8", f"the index is not UTF-8 at byte {error.start:,}"
    except strictjson.SurrogateError as error:
        rule, message = "index.utf8", f"the index is not text: {error.reason}"
    except strictjson.MalformedError as error:
        message = "the index is empty" if not data else f"the index is not JSON: {error.reason}"
    located.faults.append(Fault(rule, message + _kind(data), name))
    return None


def _kind(data: bytes) -> str:
    from coldctl.loader.format.sniff import PREFIX_BYTES, sniff

    kind = None if data[:1] in (b"{", b"[") else sniff(data[:PREFIX_BYTES])
    return f" (it is {kind[0]})" if kind else ""


def _read(path: str, name: str, located: Located) -> bytes | None:
    try:
        file, stat = open_regular(path)
        with file:
            if stat.st_size > MAX_INDEX_BYTES:
                located.faults.append(Fault("index.too-large", f"the index has {stat.st_size:,} bytes", name))
                return None
            return read_at(file.fileno(), 0, stat.st_size)
    except OSError as error:
        refused = refusal(error, path, name)
        if refused is None:
            raise from_os_error(error, "read", path) from error
        located.faults.append(Fault(refused[0], refused[1], name))
        return None


def _metadata(document: strictjson.Object, located: Located) -> dict[str, object] | None:
    for key in document.repeated:
        message = f'the index gives "{key}" more than once'
        located.faults.append(Fault("index.duplicate-key", message, located.index_name))
    metadata = document.get("metadata")
    if metadata is None and "metadata" not in document:
        return None
    if not isinstance(metadata, strictjson.Object):
        message = "the metadata of the index is not an object"
        located.faults.append(Fault("index.metadata", message, located.index_name))
        return None
    for key in metadata.repeated:
        message = f'the metadata of the index gives "{key}" more than once'
        located.faults.append(Fault("index.duplicate-key", message, located.index_name))
    return dict(metadata)


def _weight_map(document: strictjson.Object, located: Located) -> dict[str, str]:
    """Tensor names with the shards that they are in, as far as the index says it properly."""
    weight_map = document.get("weight_map")
    index_name = located.index_name
    if not isinstance(weight_map, strictjson.Object):
        state = "is not an object" if "weight_map" in document else "is missing"
        located.faults.append(Fault("index.weight-map", f"the weight_map of the index {state}", index_name))
        return {}
    if not weight_map:
        located.faults.append(Fault("index.weight-map", "the weight_map of the index is empty", index_name))
    for tensor in weight_map.repeated:
        message = f'the index gives tensor "{tensor}" more than once'
        located.faults.append(Fault("index.duplicate-key", message, index_name, tensor))
    proper: dict[str, str] = {}
    for tensor, shard in weight_map.items():
        if tensor == _METADATA:
            message = f"the index lists {_METADATA}, which is reserved, as a tensor"
            located.faults.append(Fault("index.reserved-name", message, index_name))
        elif isinstance(shard, str):
            proper[tensor] = shard
        else:
            message = f'the index gives no file name for tensor "{tensor}"'
            located.faults.append(Fault("index.weight-map", message, index_name, tensor))
    return proper


def _shards(located: Located) -> list[str]:
    """The shards whose names may be looked at, in natural order, with the faults of the others."""
    allowed = []
    for shard in sorted(set((located.weight_map or {}).values()), key=natural_key):
        problem = objection(shard) or _leaves_by_link(located.root, shard)
        if problem:
            message = f'the index names the shard "{shard}", which {problem}'
            located.faults.append(Fault("index.shard-name", message, located.index_name))
        elif not shard.endswith(WEIGHTS_SUFFIX):
            message = f'the index names "{shard}", which is not a {WEIGHTS_SUFFIX} file'
            located.faults.append(Fault("index.not-safetensors", message, located.index_name))
        else:
            if "/" in shard:
                located.faults.append(Fault("index.subfolder", f"{shard} lies in a subfolder", shard))
            allowed.append(shard)
    return allowed


def _leaves_by_link(root: str, shard: str) -> str | None:
    """A shard may itself be a link (a hub cache is made of them), but a linked folder on the way can be anywhere."""
    parts = shard.split("/")[:-1]
    for i in range(len(parts)):
        if os.path.islink(os.path.join(root, *parts[: i + 1])):
            return "lies in a linked folder"
    return None


def _report_missing(missing: list[str], named: int, located: Located, listing: Listing) -> None:
    used = set((located.weight_map or {}).values())
    strangers = [name for name in listing.weights if name not in used]
    if len(missing) == named and strangers:
        what = f"stale index: 0 of {named:,} shards are there"
        message = f"{what} ({some(missing)}), and {len(strangers):,} other files are: {some(strangers)}"
        located.faults.append(Fault("index.stale", message, located.index_name))
        return
    what = f"{len(missing):,} of {named:,} shards that the index names are missing: {some(missing)}"
    file = missing[0] if len(missing) == 1 else None
    located.faults.append(Fault("index.missing-shard", what + unfinished_note(missing, listing), file))
