"""The text of every result: what must be said is said, and nothing from a file reaches the terminal as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coldctl.report.text import evict, prewarm, repack, status, verify
from coldctl.report.text.phrases import extents
from coldctl.report.text.style import PLAIN, Style
from coldctl.report.text.table import table
from coldctl.results.facts import AlignmentCount, FailedRange, OrderFacts, SkippedFile
from coldctl.results.pages import EvictResult, StatusFile, StatusResult, WarmResult
from coldctl.results.repack import RepackedFile, RepackResult
from coldctl.results.verify import Finding, VerifiedFile, VerifyResult

GIB = 1 << 30

REPACKED = RepackResult(
    source="/src",
    target="/dst",
    align="page",
    order="name",
    order_facts=None,
    dry_run=False,
    bytes=15 * GIB,
    tensors=291,
    files=[
        RepackedFile("model-00001-of-00002.safetensors", 10 * GIB, 90, 86, True, None, True),
        RepackedFile("model-00002-of-00002.safetensors", 5 * GIB, 1, None, None, "tmpfs has no extents", False),
    ],
    aligned_tensors=290,
    aligned_bytes=15 * GIB - 1,
    fillers=0,
    every_adds_fillers=12,
    refused_by=["nemo 2.x"],
    sidecars=["config.json", "tokenizer.json"],
    skipped=[SkippedFile("pytorch_model.bin", "weights of another format")],
    removed=[],
    seconds=10.0,
    peak_anon_bytes=1,
)

VERIFIED = VerifyResult(
    path="/m",
    findings=[],
    unjudged=[],
    files=1,
    tensors=4,
    bytes=1_000_100,
    tensor_bytes=1_000_000,
    digests_listed=4,
    digests_checked=4,
    digests_reason=None,
    alignment=[AlignmentCount("4096", 3, 999_999), AlignmentCount("natural", 4, 1_000_000)],
    layout=[VerifiedFile("model.safetensors", 1_000_100, 900, 3, False, None)],
    seconds=0.5,
)

ERROR = Finding("digest.tensor", "error", "model.safetensors", "w", "the digest differs", "restore it")
WARNING = Finding("file.suffix", "warning", None, None, "an odd name", "rename it")

WARMED = WarmResult(
    path="/m",
    filesystem="ext4",
    order="name",
    order_facts=None,
    dry_run=False,
    bytes=15 * GIB,
    resident_before_bytes=3 * GIB,
    resident_after_bytes=15 * GIB,
    residency_method="mincore",
    residency_bound_bytes=0,
    residency_reason=None,
    planned_bytes=12 * GIB,
    read_bytes=12 * GIB,
    seconds=6.0,
    cpu_seconds=0.7,
    reader="populate",
    streams=4,
    budget_bytes=40 * GIB,
    budget_reason="auto",
    complete=True,
    incomplete_reason=None,
)

EVICTED = EvictResult(
    path="/m",
    dry_run=False,
    bytes=15 * GIB,
    resident_before_bytes=15 * GIB,
    resident_after_bytes=0,
    residency_method="mincore",
    residency_bound_bytes=0,
    residency_reason=None,
    read_bytes=0,
    seconds=0.5,
    reader=None,
    streams=0,
    budget_bytes=None,
    complete=True,
    failed=[],
    kept=[],
)

STATUS = StatusResult(
    path="/m",
    filesystem="xfs",
    bytes=4096,
    resident_bytes=1024,
    residency_method="mincore",
    residency_bound_bytes=0,
    residency_reason=None,
    tensors=3,
    manifest=False,
    ignored=["model.gguf"],
    files=[
        StatusFile(
            "a.safetensors", 4096, 1024, "mincore", 0, [1.0, 0.0, 0.01, 0.99], None, 1, 1, True, None, 2, 4000, 3
        )
    ],
)

HOSTILE = "\x1b[2J\u202e\n" + "x" * 500


def test_repack_says_what_is_aligned_and_what_every_would_add() -> None:
    lines = repack.render(REPACKED, PLAIN).splitlines()
    assert lines[0] == "repacked /src into /dst"
    assert lines[1] == "  291 tensors, 15.0 GiB in 2 files, 10.0 s (1.61 GB/s)"
    assert lines[2] == "  290 of 291 tensors, 99.9 % of bytes on a page (align page, order name)"
    assert lines[3] == ("  --align every would add 12 filler tensors; known to refuse such a checkpoint: nemo 2.x")
    assert lines[4:] == [
        "files",
        "  model-00001-of-00002.safetensors  10.0 GiB  90 runs, 86 at best",
        "  model-00002-of-00002.safetensors   5.0 GiB  1 run, not judged: tmpfs has no extents  not preallocated",
        "came along: config.json, tokenizer.json",
        "left behind: pytorch_model.bin: weights of another format",
    ]


def test_a_dry_run_of_repack_claims_nothing() -> None:
    text = repack.render(replace(REPACKED, dry_run=True), PLAIN)
    assert text.startswith("dry run: would repack /src into /dst\n")
    assert "nothing was written" in text
    assert "runs" not in text


def test_repack_with_fillers_counts_them() -> None:
    text = repack.render(replace(REPACKED, align="every", fillers=1, every_adds_fillers=0, refused_by=[]), PLAIN)
    assert "  1 filler tensor added\n" in text
    assert "would add" not in text


@pytest.mark.parametrize(
    ("findings", "unjudged", "verdict"),
    [
        ([], [], "clean"),
        ([WARNING, WARNING], [], "clean, 2 warnings"),
        ([ERROR, ERROR, ERROR, WARNING], [], "3 errors, 1 warning"),
        ([], ["a.safetensors"], "could not judge: a.safetensors"),
        ([ERROR], ["a.safetensors"], "1 error, could not judge: a.safetensors"),
    ],
)
def test_the_last_line_of_verify_is_its_verdict(findings: list[Finding], unjudged: list[str], verdict: str) -> None:
    text = verify.render(replace(VERIFIED, findings=findings, unjudged=unjudged), PLAIN)
    assert text.splitlines()[-1] == verdict


def test_verify_leads_with_its_findings() -> None:
    text = verify.render(replace(VERIFIED, findings=[ERROR, WARNING]), PLAIN)
    assert text.startswith(
        "error digest.tensor  model.safetensors  tensor w\n"
        "  the digest differs\n"
        "  hint: restore it\n"
        "warning file.suffix\n"
        "  an odd name\n"
        "  hint: rename it\n"
        "checked /m: 1 file, 4 tensors, "
    )


def test_verify_says_what_was_looked_at() -> None:
    assert verify.render(VERIFIED, PLAIN).splitlines() == [
        "checked /m: 1 file, 4 tensors, 976.7 KiB, 0.50 s (2 MB/s)",
        "digests: 4 of 4 tensors checked",
        "alignment",
        "   4096 B  3 of 4 tensors  99.9 % of bytes",
        "  natural  4 of 4 tensors   100 % of bytes",
        "extents",
        "  model.safetensors  976.7 KiB  900 runs, 3 at best: fragmented",
        "clean",
    ]


def test_digests_that_were_not_checked_are_not_called_good() -> None:
    text = verify.render(replace(VERIFIED, digests_checked=0, digests_reason="there is no coldctl.json"), PLAIN)
    assert "digests: not checked: there is no coldctl.json\n" in text
    assert "B/s" not in text


def test_the_thousandth_finding_of_one_rule_is_counted_only() -> None:
    text = verify.render(replace(VERIFIED, findings=[ERROR] * 1000 + [WARNING]), PLAIN)
    assert text.count("error digest.tensor") == 20
    assert "and 980 more findings of digest.tensor: --json has them all" in text
    assert "warning file.suffix" in text
    assert text.splitlines()[-1] == "1,000 errors, 1 warning"


def test_prewarm_says_what_it_decided_and_did() -> None:
    assert prewarm.render(WARMED, PLAIN).splitlines() == [
        "/m: 15.0 GiB on ext4, order name, budget 40.0 GiB (auto), populate with 4 streams",
        "resident: 3.0 GiB (20 %) before, 15.0 GiB (100 %) after",
        "read: 12.0 GiB in 6.00 s (2.15 GB/s), 0.70 s of CPU",
        "complete",
    ]


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({"read_bytes": 0}, "complete: it was warm already"),
        (
            {"complete": False, "incomplete_reason": "budget", "read_bytes": 5 * GIB},
            "not complete: stopped by the budget, 7.0 GiB left out (--budget SIZE or none reads more)",
        ),
        (
            {"complete": False, "incomplete_reason": "unproved"},
            "not complete: all of it was read, but what stayed in memory cannot be told",
        ),
        (
            {"complete": False, "incomplete_reason": "left-memory", "resident_after_bytes": 14 * GIB},
            "not complete: pages left memory again while others were read",
        ),
        ({"complete": False, "failed": [FailedRange("a", 0, 1, "EIO")]}, "not complete: 1 range could not be read"),
        ({"dry_run": True}, "dry run: all of it fits the budget"),
        ({"dry_run": True, "complete": False}, "dry run: the budget would stop it"),
    ],
)
def test_the_last_line_of_prewarm_is_its_outcome(changes: dict[str, Any], last: str) -> None:
    assert prewarm.render(replace(WARMED, **changes), PLAIN).splitlines()[-1] == last


def test_prewarm_names_what_could_not_be_read_with_its_offset() -> None:
    failed = [FailedRange("a.safetensors", 8192, 4096, "Input/output error")] * 30
    text = prewarm.render(replace(WARMED, complete=False, failed=failed), PLAIN)
    assert text.count("  failed: a.safetensors at byte 8192, 4.0 KiB: Input/output error\n") == 20
    assert "  and 10 more: --json has them all\n" in text


def test_a_residency_that_is_unknown_or_sampled_says_so() -> None:
    unknown = replace(WARMED, resident_before_bytes=None, resident_after_bytes=None, residency_reason="not the owner")
    assert "resident: unknown (not the owner) before, unknown (not the owner) after" in prewarm.render(unknown, PLAIN)
    sampled = replace(WARMED, residency_method="sampled", residency_bound_bytes=GIB)
    assert "15.0 GiB (100 %) after, sampled, within 1.0 GiB" in prewarm.render(sampled, PLAIN)


def test_evict_says_what_stayed_and_why() -> None:
    kept = replace(
        EVICTED, complete=False, resident_after_bytes=GIB, kept=[SkippedFile("a", "1.0 GiB: mapped by a process")]
    )
    assert evict.render(kept, PLAIN).splitlines() == [
        "/m: 15.0 GiB",
        "resident: 15.0 GiB (100 %) before, 1.0 GiB (6.6 %) after, 0.50 s",
        "kept: a: 1.0 GiB: mapped by a process",
        "not complete: pages stayed in memory",
    ]
    assert evict.render(EVICTED, PLAIN).splitlines()[-1] == "complete"
    unknown = replace(EVICTED, complete=False, resident_after_bytes=None)
    assert evict.render(unknown, PLAIN).splitlines()[-1] == "not complete: what stayed could not be measured"
    assert (
        evict.render(replace(EVICTED, dry_run=True), PLAIN).splitlines()[-1]
        == "dry run: would drop 15.0 GiB; nothing was evicted"
    )


def test_status_shows_each_file_and_the_totals() -> None:
    assert status.render(STATUS, PLAIN).splitlines() == [
        "/m on xfs",
        "  file              size  resident  map     on a page  extents",
        "  a.safetensors  4.0 KiB      25 %  [█ ░▓]        2/3  1 run, 1 at best",
        "total: 1 file, 3 tensors, 4.0 KiB, resident 1.0 KiB (25 %), 2 of 3 tensors on a page",
        "manifest: none (coldctl repack writes one)",
        "ignored: model.gguf",
    ]


@pytest.mark.parametrize(
    ("share", "block", "plain"),
    [(0.0, " ", " "), (0.0001, "░", "."), (0.4, "▒", ":"), (0.7, "▓", "+"), (0.9999, "▓", "+"), (1.0, "█", "#")],
)
def test_the_map_is_blank_only_for_none_and_full_only_for_all(share: float, block: str, plain: str) -> None:
    assert status.residency_map([share], Style(unicode=True)) == block
    assert status.residency_map([share], Style(unicode=False)) == plain


def test_a_file_whose_residency_is_unknown_has_no_map() -> None:
    file = replace(STATUS.files[0], resident_bytes=None, residency_method=None, residency_map=None)
    unknown = replace(
        STATUS, resident_bytes=None, residency_method=None, residency_reason="not the owner", files=[file]
    )
    text = status.render(unknown, PLAIN)
    assert "residency is unknown: not the owner\n" in text
    assert "[" not in text


def test_a_sampled_status_says_so_with_its_bound() -> None:
    sampled = replace(STATUS, residency_method="sampled", residency_bound_bytes=2048, residency_reason="not the owner")
    text = status.render(sampled, PLAIN)
    assert "resident 1.0 KiB (25 %), sampled, within 2.0 KiB, " in text
    assert "residency is sampled: not the owner\n" in text


@pytest.mark.parametrize(
    ("found", "ideal", "contiguous", "reason", "text"),
    [
        (1, 1, True, None, "1 run, 1 at best"),
        (1200, 3, False, None, "1,200 runs, 3 at best: fragmented"),
        (4, None, None, "compressed", "4 runs, not judged: compressed"),
        (None, None, None, "tmpfs", "unknown: tmpfs"),
        (None, None, None, None, "unknown"),
    ],
)
def test_extents_are_told_against_the_best_there_can_be(
    found: int | None, ideal: int | None, contiguous: bool | None, reason: str | None, text: str
) -> None:
    assert extents(found, ideal, contiguous, reason) == text


def test_repack_says_what_it_removes() -> None:
    removed = replace(REPACKED, removed=["old.safetensors", *(f"{n}" for n in range(9))])
    assert "removed: old.safetensors, 0, 1, 2, 3, 4, 5, 6 and 2 more" in repack.render(removed, PLAIN).splitlines()
    foreseen = replace(REPACKED, removed=["old.safetensors"], dry_run=True)
    assert "would remove: old.safetensors" in repack.render(foreseen, PLAIN).splitlines()
    assert "remove" not in repack.render(REPACKED, PLAIN)


def test_columns_line_up_for_wide_and_combining_characters() -> None:
    assert table([("模型", "1"), ("e\u0301", "10"), ("abcd", "100")], right=(1,), indent="") == [
        "模型    1",
        "e\u0301      10",
        "abcd  100",
    ]
    assert table([]) == []


CASES: list[tuple[Callable[[Any, Style], str], Any]] = [
    (
        repack.render,
        replace(
            REPACKED,
            source=HOSTILE,
            target=HOSTILE,
            files=[RepackedFile(HOSTILE, 1, None, None, None, HOSTILE, True)],
            refused_by=[HOSTILE],
            sidecars=[HOSTILE],
            skipped=[SkippedFile(HOSTILE, HOSTILE)],
            removed=[HOSTILE],
        ),
    ),
    (
        verify.render,
        replace(
            VERIFIED,
            path=HOSTILE,
            findings=[Finding("header.gap", "error", HOSTILE, HOSTILE, HOSTILE, HOSTILE)],
            unjudged=[HOSTILE],
            digests_reason=HOSTILE,
            layout=[VerifiedFile(HOSTILE, 1, None, None, None, HOSTILE)],
        ),
    ),
    (
        prewarm.render,
        replace(
            WARMED,
            path=HOSTILE,
            filesystem=HOSTILE,
            reader=HOSTILE,
            budget_reason=HOSTILE,
            resident_before_bytes=None,
            residency_reason=HOSTILE,
            failed=[FailedRange(HOSTILE, 0, 1, HOSTILE)],
        ),
    ),
    (
        evict.render,
        replace(
            EVICTED,
            path=HOSTILE,
            resident_before_bytes=None,
            residency_reason=HOSTILE,
            failed=[FailedRange(HOSTILE, 0, 1, HOSTILE)],
            kept=[SkippedFile(HOSTILE, HOSTILE)],
        ),
    ),
    (
        status.render,
        replace(
            STATUS,
            path=HOSTILE,
            filesystem=HOSTILE,
            ignored=[HOSTILE],
            files=[StatusFile(HOSTILE, 1, None, None, 0, None, HOSTILE, None, None, None, HOSTILE, 0, 0, 1)],
        ),
    ),
]


@pytest.mark.parametrize(("render", "result"), CASES)
def test_nothing_hostile_reaches_the_terminal(render: Callable[[Any, Style], str], result: Any) -> None:
    text = render(result, PLAIN)
    assert r"\x1b[2J\u202e\n" in text
    assert all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize(("render", "result"), [*CASES, (verify.render, replace(VERIFIED, findings=[ERROR, WARNING]))])
def test_without_colour_there_is_none_and_with_it_only_that(render: Callable[[Any, Style], str], result: Any) -> None:
    coloured = render(result, Style(colour=True))
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == render(result, PLAIN)


@pytest.mark.parametrize(
    ("order", "facts", "words"),
    [
        ("name", None, "order name,"),
        ("layers", OrderFacts(32, 5), "order layers (32 layers),"),
        ("layers", OrderFacts(0, 0), "order layers (no layer in the names, so all is one),"),
        ("attention-first", OrderFacts(1, 3 * GIB), "order attention-first (1 layer, 20 % of bytes are attention),"),
    ],
)
def test_an_order_says_what_it_went_by(order: str, facts: OrderFacts | None, words: str) -> None:
    assert words in prewarm.render(replace(WARMED, order=order, order_facts=facts), PLAIN)
