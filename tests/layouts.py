"""Layouts of tensors in files that do not exist, for the tests of plans: places, transfers, arrivals."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from coldctl.loader.format.header import Tensor
from coldctl.loader.load.wanted import Gather, Wanted
from coldctl.loader.source import LocalFile

ELEMENT_BYTES = {"U8": 1, "BF16": 2, "F32": 4, "F64": 8, "C64": 8}


class Size(NamedTuple):
    dtype: str
    elements: int

    @property
    def nbytes(self) -> int:
        return self.elements * ELEMENT_BYTES[self.dtype]


def file(name: str, data_begins: int, *sizes: Size) -> list[Wanted]:
    """The tensors of one file, one after the other, named `NAME.0`, `NAME.1` and so on."""
    source = LocalFile(name, f"/{name}", (1, 2, data_begins + sum(size.nbytes for size in sizes), 3))
    wanted, offset_bytes = [], data_begins
    for number, size in enumerate(sizes):
        tensor = Tensor(f"{name}.{number}", size.dtype, (size.elements,), offset_bytes, size.nbytes)
        wanted.append(Wanted(tensor.name, size.dtype, tensor.shape, source, offset_bytes, size.nbytes, tensor))
        offset_bytes += size.nbytes
    return wanted


def columns(whole: Wanted, strips: int, rank: int, ranks: int) -> Wanted:
    """The `rank`th of `ranks` parts of each of `strips` rows, as tp splits an o projection."""
    strip_bytes = whole.nbytes // strips // ranks
    assert strip_bytes * strips * ranks == whole.nbytes
    return msgspec.structs.replace(
        whole,
        shape=(strips, strip_bytes // ELEMENT_BYTES[whole.dtype]),
        offset_bytes=whole.offset_bytes + rank * strip_bytes,
        nbytes=strips * strip_bytes,
        gather=Gather(strips, strip_bytes, ranks * strip_bytes),
    )


def bytes_of_file(offset_bytes: int, nbytes: int, gather: Gather | None) -> NDArray[np.int64]:
    """Which bytes of the file a range is, or its strips are, in their order."""
    if gather is None:
        return np.arange(offset_bytes, offset_bytes + nbytes)
    starts = offset_bytes + np.arange(gather.strips) * gather.pitch_bytes
    return (starts[:, None] + np.arange(gather.strip_bytes)).reshape(-1)


@st.composite
def layouts(draw: st.DrawFn, element_counts: list[int], most_tensors: int) -> list[Wanted]:
    """Tensors of one to three files, of any dtypes, some left out, some gathered, in an order that jumps or not."""
    sizes = st.builds(Size, st.sampled_from(list(ELEMENT_BYTES)), st.sampled_from(element_counts))
    wanted: list[Wanted] = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        data_begins = draw(st.sampled_from([8, 16, 24, 4096, 4104, 8192, 9, 4099]))
        listed = file(name, data_begins, *draw(st.lists(sizes, max_size=most_tensors)))
        wanted += [_maybe_gathered(draw, each) for each in listed if draw(st.integers(0, 9))]
    return wanted if draw(st.booleans()) else draw(st.permutations(wanted))


def _maybe_gathered(draw: st.DrawFn, each: Wanted) -> Wanted:
    strips, ranks = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (2, 2), (5, 2), (3, 4)]))
    divides = each.nbytes % (strips * ranks * ELEMENT_BYTES[each.dtype]) == 0
    if not each.nbytes or not divides or strips == 1:
        return each
    return columns(each, strips, draw(st.integers(0, ranks - 1)), ranks)
