"""The report of bench in a real browser: its colours, its width on any screen, its silence on the console."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coldctl.report.html.page import page
from tests.bench_full import full_result
from tests.bench_results import result as host_result
from tests.browser import png
from tests.browser.chromium import Chromium

WIDTHS = (360, 1280)
BACKGROUND = {"light": (0xFB, 0xFB, 0xF9), "dark": (0x11, 0x15, 0x18)}
INK = {"light": (0x1B, 0x20, 0x26), "dark": (0xE5, 0xE9, 0xEC)}

PROBE = """<script>
for (const part of document.querySelectorAll("details")) part.open = true;
function look() {
  const dots = [...document.querySelectorAll(".chart .sample")].map(dot => dot.getBoundingClientRect());
  const inside = dots.filter(box => box.width > 0 && box.left >= 0 && box.right <= innerWidth).length;
  const tables = [...document.querySelectorAll("table")];
  const shown = tables.filter(within).length;
  const still = tables.filter(table => table.scrollWidth <= table.parentElement.clientWidth).length;
  console.log([innerWidth, document.documentElement.scrollWidth, dots.length, inside].join(" "));
  console.log([innerWidth, "tables", tables.length, shown, still].join(" "));
}
function within(table) {
  const box = table.parentElement;
  const left = box.getBoundingClientRect().left, right = box.getBoundingClientRect().right;
  box.scrollLeft = 1e6;
  const end = table.getBoundingClientRect().right;
  box.scrollLeft = 0;
  const begin = table.getBoundingClientRect().left;
  const scrolls = getComputedStyle(box).overflowX === "auto";
  return scrolls && left >= 0 && right <= innerWidth && end <= right + 1 && begin >= left - 1;
}
addEventListener("resize", look);
look();
</script>"""
"""Says how wide the window is and how wide the page, how many runs are drawn and how many of them in the window; then
how many tables there are, how many of them can be scrolled from end to end in a box that is in the window, and how many
need no scrolling."""


@pytest.fixture
def chromium(tmp_path: Path) -> Chromium:
    return Chromium(tmp_path)


@pytest.fixture
def report(tmp_path: Path) -> Path:
    target = tmp_path / "report.html"
    target.write_text(page(full_result()), encoding="utf-8")
    return target


def probed(report: Path, addition: str = "") -> Path:
    """A copy of the page that may run the probe."""
    text = re.sub(r"<meta http-equiv=[^>]*>", "", report.read_text())
    target = report.with_name("probed.html")
    target.write_text(text.replace("</body>", f"{addition}{PROBE}</body>"))
    return target


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_drawn_in_the_scheme_of_its_reader(
    chromium: Chromium, report: Path, width: int, scheme: str
) -> None:
    picture, console = chromium.screenshot(report, width=width, dark=scheme == "dark")
    assert console == []
    assert png.size(picture) == (width, 900)
    rows = png.top_rows(picture, 160)
    edge = {pixel for row in rows for pixel in (row[0], row[-1])}
    assert edge == {BACKGROUND[scheme]}
    inked = sum(pixel == INK[scheme] for row in rows for pixel in row)
    assert inked > 500, "the heading is there"


@pytest.mark.parametrize("width", [*WIDTHS, 400, 700, 1600])
def test_nothing_is_wider_than_the_screen_and_every_run_is_on_it(chromium: Chromium, report: Path, width: int) -> None:
    _, console = chromium.screenshot(probed(report), width=width)
    runs = sum(run.error is None for run in full_result().runs)
    assert console[-2] == f"{width} {width} {runs} {runs}"


@pytest.mark.parametrize("width", [*WIDTHS, 400])
def test_every_table_can_be_seen_from_end_to_end(chromium: Chromium, report: Path, width: int) -> None:
    _, console = chromium.screenshot(probed(report), width=width)
    count = report.read_text().count("<table")
    assert console[-1].split()[:4] == [str(width), "tables", str(count), str(count)]


def test_the_stages_fit_a_narrow_screen(chromium: Chromium, tmp_path: Path) -> None:
    """Of the tables of a result without a sweep, only that of all figures is too wide for a telephone."""
    target = tmp_path / "host.html"
    target.write_text(page(host_result()))
    _, console = chromium.screenshot(probed(target), width=400)
    count = target.read_text().count("<table")
    assert console[-1] == f"400 tables {count} {count} {count - 1}"


def test_the_probe_notices_what_is_too_wide(chromium: Chromium, report: Path) -> None:
    _, console = chromium.screenshot(probed(report, '<div style="width: 3000px">wide</div>'), width=1280)
    assert int(console[-2].split()[1]) >= 3000


def test_the_probe_notices_a_table_that_is_cut(chromium: Chromium, report: Path) -> None:
    cut = '<div style="overflow-x: hidden"><table><tr><td style="min-width: 3000px">wide</td></tr></table></div>'
    _, console = chromium.screenshot(probed(report, cut), width=1280)
    count = report.read_text().count("<table")
    assert console[-1].split()[1:4] == ["tables", str(count + 1), str(count)]


def test_the_policy_of_the_page_stops_what_gets_into_it(chromium: Chromium, report: Path) -> None:
    injected = '<script>console.log("run")</script><p style="color: red">x</p><img src="http://127.0.0.1:9/x.png">'
    report.write_text(report.read_text().replace("</body>", f"{injected}</body>"))
    _, console = chromium.screenshot(report, width=1280)
    assert len(console) == 3, "the script, the style and the picture"
    assert all("Content Security Policy" in line for line in console)
