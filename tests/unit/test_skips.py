"""tests/skips.py, run inside pytest sessions of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

PLUGIN = Path(__file__).parents[1] / "skips.py"


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, body: str, *, ci: str | None) -> pytest.RunResult:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    if ci is None:
        monkeypatch.delenv("CI", raising=False)
    else:
        monkeypatch.setenv("CI", ci)
    pytester.makepyfile(skips=PLUGIN.read_text())
    pytester.makepyfile(test_it=f"import pytest\n{body}")
    return pytester.runpytest_subprocess("-p", "skips", "-p", "no:cacheprovider")


SKIPPED = "def test_passes(): pass\ndef test_skips(): pytest.skip({reason!r})\n"


@pytest.mark.parametrize("reason", ["no CUDA", "no CUDA: torch sees no device", "no GDS", "no AVX-512", "not root"])
def test_excused_reasons_pass_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    result = run(pytester, monkeypatch, SKIPPED.format(reason=reason), ci="true")
    assert result.ret == 0
    result.assert_outcomes(passed=1, skipped=1)


@pytest.mark.parametrize("reason", ["mkfs.xfs is not installed", "no CUDART", "there is no CUDA", ""])
def test_other_reasons_fail_in_ci_and_are_named(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    result = run(pytester, monkeypatch, SKIPPED.format(reason=reason), ci="true")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*skips that CI does not accept*", f"test_it.py::test_skips: {reason}*"])


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_any_reason_passes_outside_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, ci: str | None
) -> None:
    assert run(pytester, monkeypatch, SKIPPED.format(reason="too tired"), ci=ci).ret == 0


def test_a_module_that_skips_itself_fails_in_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "pytest.importorskip('no_such_module')\ndef test_never(): pass\n"
    result = run(pytester, monkeypatch, body, ci="true")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["test_it.py: could not import 'no_such_module'*"])


def test_a_mark_counts_like_a_call(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "@pytest.mark.skipif(True, reason='too tired')\ndef test_marked(): pass\n"
    result = run(pytester, monkeypatch, body, ci="true")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["test_it.py::test_marked: too tired"])


def test_an_expected_failure_is_no_skip(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "@pytest.mark.xfail(reason='known')\ndef test_known(): assert False\n"
    assert run(pytester, monkeypatch, body, ci="true").ret == 0


def test_a_failure_stays_a_failure(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(pytester, monkeypatch, "def test_fails(): assert False\n", ci="true")
    assert result.ret == 1
    result.assert_outcomes(failed=1)
