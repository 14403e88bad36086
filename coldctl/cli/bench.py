"""`coldctl bench`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from coldctl.cli.beside import FileBeside
from coldctl.cli.console import Console
from coldctl.cli.exits import exit_status
from coldctl.cli.failures import describe
from coldctl.cli.lists import Listed, count, listed, one_of
from coldctl.cli.options import CheckpointPath, Json, Quiet, share, size
from coldctl.cli.room import require_room_for_numpy

if TYPE_CHECKING:
    from coldctl.results.bench import BenchResult

EXIT_STATUS = exit_status(
    code_1="coldctl's own loads slower than allowed, beyond the spread",
    code_3="coldctl's own loads failed, or the baseline could judge none",
    code_5="no CUDA for the GPU that was asked for, or neither cold nor warm",
)


def command(
    context: typer.Context,
    path: CheckpointPath,
    device: Annotated[
        str,
        typer.Option(
            metavar="auto|cpu|cuda[:N]", help="Where to load to; auto: a GPU that torch can use, or the host."
        ),
    ] = "auto",
    mode: Annotated[
        Listed | None,
        typer.Option(
            parser=listed(str),
            metavar="MODE,...",
            help="Host: auto, buffered, direct, map, per-tensor. GPU: auto, ring, direct, mapped, per-tensor, gds.",
        ),
    ] = None,
    streams: Annotated[
        Listed | None,
        typer.Option(
            parser=listed(count), metavar="N,...", help="Copy streams on a GPU (1,4); threads that read on the host."
        ),
    ] = None,
    chunk: Annotated[
        Listed | None,
        typer.Option(
            parser=listed(size), metavar="SIZE,...", help="Bytes read, or pinned, at a time: 1MiB,8MiB,64MiB."
        ),
    ] = None,
    order: Annotated[
        Listed | None,
        typer.Option(
            parser=listed(one_of("file", "name", "layers", "attention-first")),
            metavar="ORDER,...",
            help="file, name, layers, attention-first. Default: file.",
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="All modes, with several streams and chunks where none are given.")
    ] = False,
    rounds: Annotated[
        int, typer.Option(min=1, metavar="INTEGER", help="How often each way is run in each cache state.")
    ] = 5,
    cache: Annotated[
        Listed | None,
        typer.Option(
            parser=listed(one_of("cold", "warm")),
            metavar="cold,warm",
            help="Out of the page cache, or in it. Default: both, in turn.",
        ),
    ] = None,
    compare: Annotated[
        Listed | None,
        typer.Option(
            parser=listed(str),
            metavar="PEER,...",
            help="safetensors, fastsafetensors, runai, instanttensor, tensorizer, torch.",
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check what was loaded, as a stage of its own.")] = False,
    first_layers: Annotated[
        int | None, typer.Option(min=1, metavar="INTEGER", help="Load these first, and say when they were ready.")
    ] = None,
    memory_fraction: Annotated[
        float | None,
        typer.Option(parser=share, metavar="SHARE", help="Most of the GPU's memory that torch may take: 90%."),
    ] = None,
    max_split_size: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="Blocks over this are not split by torch's allocator."),
    ] = None,
    trace: Annotated[
        str, typer.Option(metavar="FILE", help="Write what one more load did when, for ui.perfetto.dev.")
    ] = "",
    report: Annotated[str, typer.Option(metavar="FILE", help="Write a page to look at, in one HTML file.")] = "",
    baseline: Annotated[str, typer.Option(metavar="FILE", help="Compare with a former run's --json.")] = "",
    max_regression: Annotated[
        float | None,
        typer.Option(parser=share, metavar="SHARE", help="How much slower than it is no failure. Default: 10%."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say where the seconds of a load go, beside other loaders, beside the limits of the machine.

    \b
    Examples:
      coldctl bench /models/llama
      coldctl bench /models/llama --device cpu --mode auto,map --cache warm
      coldctl bench /models/llama --compare safetensors,fastsafetensors,runai
      coldctl bench /models/llama --sweep --report sweep.html --trace sweep.json
      coldctl bench /models/llama --json > before.json
      coldctl bench /models/llama --baseline before.json --max-regression 10%

    Every load is a process of its own, touches every byte, and must bring the same bytes. Cold means that the files
    were put out of the page cache and measured to be out of it: do not run this on a node whose engine is starting.
    """
    require_room_for_numpy()
    from coldctl.jobs.bench import BenchOptions, bench
    from coldctl.report.html.page import MARK as PAGE_MARK
    from coldctl.report.html.page import page
    from coldctl.report.text.bench import render
    from coldctl.report.trace import MARK as TRACE_MARK
    from coldctl.report.trace import trace as trace_of

    console: Console = context.obj
    options = BenchOptions(
        path=path,
        device=device,
        modes=mode or (),
        streams=streams or (),
        chunks_bytes=chunk or (),
        orders=order or (),
        sweep=sweep,
        rounds=rounds,
        caches=cache or ("cold", "warm"),
        compare=compare or (),
        verify=verify,
        first_layers=first_layers,
        memory_fraction=memory_fraction,
        max_split_size_bytes=max_split_size,
        baseline=baseline or None,
        max_regression=max_regression,
    )
    page_file = FileBeside(report, PAGE_MARK) if report else None
    trace_file = FileBeside(trace, TRACE_MARK) if trace else None
    if page_file and trace_file:
        page_file.require_other_than(trace_file)
    with console.events(json=json, quiet=quiet) as events:
        result = bench(options, events)
    failures = _write(result, [(page_file, page), (trace_file, trace_of)])
    told = [describe(error, command="bench", debug=False, environ=os.environ) for error in failures]
    exit_code = told[0].exit_code if told else _exit_code(result, options.modes)
    notes = [*result.notes, *(failure.message for failure in told)]
    console.show(replace(result, notes=notes), render, exit_code)
    for error in failures:
        console.fail(error)
    return exit_code


def _write(
    result: BenchResult, files: Iterable[tuple[FileBeside | None, Callable[[BenchResult], str]]]
) -> list[Exception]:
    """Write each file that was asked for. What goes wrong, a bug too, is returned: it must not cost the result."""
    failures: list[Exception] = []
    for file, text_of in files:
        try:
            if file:
                file.write(text_of(result))
        except Exception as error:
            failures.append(error)
    return failures


def _exit_code(result: BenchResult, named_modes: Collection[str]) -> int:
    """1 and 3 are about coldctl's own ways: a peer may be slower than it was, or fail, as it likes.

    Of the ways of a sweep that named no modes some may be missing on this machine; one has to load in each cache state,
    and what loads at all has to load each time. A baseline has to judge something.
    """
    modes = {each.name: each.mode for each in result.contenders if each.kind == "coldctl"}
    if any(each.regressed for each in result.regressions or ()):
        return 1
    if result.regressions is not None and not any(each.contender in modes for each in result.regressions):
        return 3
    own = [each for each in result.summaries if each.contender in modes]
    loaded = {each.cache for each in own if each.runs}
    failed = [each for each in own if each.failed]
    matters = (each.runs or each.cache not in loaded or modes[each.contender] in named_modes for each in failed)
    return 3 if any(matters) else 0
