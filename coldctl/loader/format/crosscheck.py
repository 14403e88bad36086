"""The index held against the headers of its shards: each tensor in the one shard that the index says."""

from __future__ import annotations

from collections.abc import Mapping

from coldctl.loader.format.header import Header
from coldctl.loader.format.rules import Findings
from coldctl.results.verify import Finding


def crosscheck(
    headers: Mapping[str, Header],
    weight_map: Mapping[str, str] | None,
    metadata: Mapping[str, object] | None,
    index_name: str | None,
    whole: bool,
) -> list[Finding]:
    """Findings about tensors in the wrong place. `headers` by shard name; `weight_map` None where there is no index.

    Shards without a header are not judged; `whole` says that there are none, so that totals can be.
    """
    found = Findings(index_name)
    if len(headers) > 1 or weight_map is not None:  # one file alone has each name once
        holders = _holders(headers)
        _check_repeated(headers, holders, weight_map, found)
    if weight_map is not None:
        _check_indexed(headers, holders, weight_map, found)
        _check_unindexed(headers, weight_map, found)
    if whole and metadata is not None and "total_size" in metadata:
        _check_total(headers, metadata["total_size"], found)
    return found.listed()


def _holders(headers: Mapping[str, Header]) -> dict[str, str]:
    """The first shard that holds each tensor."""
    holders: dict[str, str] = {}
    for shard in reversed(list(headers)):
        holders.update(dict.fromkeys([tensor.name for tensor in headers[shard].tensors], shard))
    return holders


def _check_repeated(
    headers: Mapping[str, Header], holders: Mapping[str, str], weight_map: Mapping[str, str] | None, found: Findings
) -> None:
    if len(holders) == sum(len(header.tensors) for header in headers.values()):
        return
    for shard, header in headers.items():
        for tensor in header.tensors:
            first = holders[tensor.name]
            if first != shard:
                unsaid = "" if weight_map is not None else ", and no index says which of them counts"
                message = f'tensor "{tensor.name}" is in {first} and in {shard}{unsaid}'
                found.add("folder.duplicate-tensor", message, tensor=tensor.name)


def _check_indexed(
    headers: Mapping[str, Header], holders: Mapping[str, str], weight_map: Mapping[str, str], found: Findings
) -> None:
    held = {shard: {tensor.name for tensor in header.tensors} for shard, header in headers.items()}
    for name, shard in weight_map.items():
        if shard not in held or name in held[shard]:
            continue
        holder = holders.get(name)
        if holder is None:
            message = f'tensor "{name}" is not in {shard}, where the index says it is'
            found.add("index.missing-tensor", message, tensor=name)
        else:
            message = f'tensor "{name}" is in {holder}, not in {shard}, where the index says it is'
            found.add("index.wrong-shard", message, tensor=name)


def _check_unindexed(headers: Mapping[str, Header], weight_map: Mapping[str, str], found: Findings) -> None:
    for shard, header in headers.items():
        for tensor in header.tensors:
            if tensor.name not in weight_map:
                message = f'tensor "{tensor.name}" is in {shard}, but not in the index'
                found.add("index.unindexed-tensor", message, tensor=tensor.name)


def _check_total(headers: Mapping[str, Header], total: object, found: Findings) -> None:
    actual = sum(tensor.nbytes for header in headers.values() for tensor in header.tensors)
    if type(total) is not int:
        found.add(
            "index.total-size", f"the index's total_size is not a whole number; the tensors have {actual:,} bytes"
        )
    elif total != actual:
        found.add("index.total-size", f"the index's total_size is {total:,}, but the tensors have {actual:,} bytes")
