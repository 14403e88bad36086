"""How the figures of every report came about."""

from __future__ import annotations

from coldctl.report.html.markup import Safe, element
from coldctl.report.html.section import section
from coldctl.results.bench import BenchResult

_TOLD = {
    "A run": "is one load in a process of its own. Rounds take turns: each runs every way once for each cache "
    "state, in the reverse order of the round before.",
    "Seconds": "count from the first step of the load; importing torch and creating the CUDA context come before it. "
    "On the host they end when every byte has been touched, since a mapping has loaded nothing until then; on a GPU "
    "when all bytes are on the device.",
    "Cold and warm": "are measured: before a cold run less than 1 % of the files was in the page cache, before a warm "
    "one 99 % or more.",
    "The same bytes": "are summed in every run, page by page and tensor by tensor. A run that brought another sum, or "
    "another number of tensors or bytes, has failed.",
    "Units:": "1 GB/s is 10^9 bytes per second, 1 GiB is 2^30 bytes.",
}


def counting_section(_: BenchResult) -> Safe:
    return section(
        "How this is counted", None, *(element("p", element("b", what), " ", how) for what, how in _TOLD.items())
    )
