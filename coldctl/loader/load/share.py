"""The share of a checkpoint that one of several devices takes: of ranks, of stages, of the experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from coldctl.errors import UsageError
from coldctl.loader.format.header import Tensor
from coldctl.loader.load.split import part, split_dimensions
from coldctl.loader.load.wanted import Wanted, whole
from coldctl.loader.order import find_layers
from coldctl.loader.roles import expert_of, is_expert_stack
from coldctl.loader.source import Source

Keeps = Callable[[str], bool]


class Share(NamedTuple):
    """What one device takes, in the order of the plan. `replicated` names the tensors that others take whole, too."""

    wanted: tuple[Wanted, ...]
    replicated: tuple[str, ...]


def share(
    tensors: Sequence[tuple[Source, Tensor]],
    *,
    tp: tuple[int, int] | None = None,
    stage: tuple[int, int] | None = None,
    experts: tuple[int, int] | None = None,
) -> Share:
    """The share of `tensors`, which are all tensors of a checkpoint in the order of the plan. Each of `tp`, `stage` and
    `experts` is (i, n), the ith of n, and None is (0, 1): all. They combine: `tp` splits what the other two leave.

    - `tp`: q, k, v, gate, up, embedding and head are split on dim 0, o and down on dim 1, into equal parts.
      `replicated` names all that stays whole: norms, routers, what is fused, packed, transposed or of an unknown name,
      and modules that n does not divide (`coldctl.loader.load.split`).
    - `stage`: layers are split evenly, and the first layers % n stages take one more. What comes before the layers goes
      to the first stage (other towers, too), what follows them to the last.
    - `experts`: the experts of each block are split by ranges of their numbers, the first shares taking one more where
      n does not divide them. All that is no expert stays. Tensors that hold all experts of a block stay whole and
      are in `replicated`.

    Not promised: that rows are cut between heads. Where there are fewer kv heads than ranks, each rank gets a fraction
    of a head of k and v, while engines give each rank a whole head that several ranks share. Vocabularies are not
    padded. A bias of o or down is whole on every rank, to be added once. A head that is tied to the embedding is not in
    the files, so the last stage does not get it. All layers count alike, those of multi-token prediction too.

    Raises UsageError for i and n that are not 0 <= i < n, for more stages than layers, and for more shares than there
    are experts in a block.
    """
    rank, ranks = _checked("tp", tp)
    stage_keeps = _stage(tensors, *_checked("stage", stage))
    expert_share, expert_shares = _checked("experts", experts)
    experts_keep = _experts(tensors, expert_share, expert_shares)
    kept = [pair for pair in tensors if stage_keeps(pair[1].name) and experts_keep(pair[1].name)]

    split = split_dimensions((tensor for _, tensor in kept), ranks) if ranks > 1 else {}
    wanted = (
        part(source, tensor, split[tensor.name], rank, ranks) if tensor.name in split else whole(source, tensor)
        for source, tensor in kept
    )
    replicated = (
        tensor.name
        for _, tensor in kept
        if (ranks > 1 and tensor.name not in split) or (expert_shares > 1 and is_expert_stack(tensor.name))
    )
    return Share(tuple(wanted), tuple(replicated))


def _checked(option: str, ith_of: tuple[int, int] | None) -> tuple[int, int]:
    if ith_of is None:
        return (0, 1)
    if not 0 <= ith_of[0] < ith_of[1]:
        raise UsageError(f"{option}={ith_of}: expected (i, n) with 0 <= i < n", hint="count from 0: (0, 2) and (1, 2)")
    return ith_of


def _stage(tensors: Sequence[tuple[Source, Tensor]], i: int, n: int) -> Keeps:
    layers = find_layers(tensor for _, tensor in tensors)
    if n > max(layers.count, 1):
        raise UsageError(
            f"stage=({i}, {n}): {n} stages, but the checkpoint has {layers.count} layers",
            hint=f"take at most {max(layers.count, 1)} stages",
        )
    mine = _even_range(i, n, layers.count)
    first = mine.start if i > 0 else mine.start - 1
    stop = mine.stop if i < n - 1 else mine.stop + 1
    return lambda name: first <= layers.position(name) < stop


def _experts(tensors: Sequence[tuple[Source, Tensor]], i: int, n: int) -> Keeps:
    if n == 1:
        return lambda _: True
    counts = _expert_counts(tensors)
    if not counts and not any(is_expert_stack(tensor.name) for _, tensor in tensors):
        raise UsageError(f"experts=({i}, {n}): {n} shares, but the checkpoint has 0 experts", hint="load without it")
    if counts and n > min(counts.values()):
        block = min(counts, key=lambda block: counts[block])
        raise UsageError(
            f"experts=({i}, {n}): {n} shares, but {block} has {counts[block]} experts",
            hint=f"take at most {counts[block]} shares",
        )
    mine = {block: _even_range(i, n, count) for block, count in counts.items()}

    def keeps(name: str) -> bool:
        expert = expert_of(name)
        return expert is None or expert.number in mine[expert.block]

    return keeps


def _expert_counts(tensors: Sequence[tuple[Source, Tensor]]) -> dict[str, int]:
    """The experts of each block: the highest number, plus one."""
    counts: dict[str, int] = {}
    for _, tensor in tensors:
        if expert := expert_of(tensor.name):
            counts[expert.block] = max(counts.get(expert.block, 0), expert.number + 1)
    return counts


def _even_range(i: int, n: int, count: int) -> range:
    """The ith of n ranges that cover 0 … count - 1; the first count % n of them are one longer."""
    each, remainder = divmod(count, n)
    start = i * each + min(i, remainder)
    return range(start, start + each + (i < remainder))
