"""README.md is true: its commands print what it says, its tables are the code's, its links lead somewhere."""

from __future__ import annotations

import re

from coldctl.cli.invocation import COMMANDS
from tests.docs.readme import README, generated, generated_parts, run_all, sessions

TEXT = README.read_text()


def test_commands_print_what_the_readme_says() -> None:
    for said, ran in zip(sessions(TEXT), run_all(TEXT), strict=True):
        for step, fresh in zip(said, ran, strict=True):
            assert fresh.constant == step.constant, step.command


def test_what_was_measured_names_what_it_compared() -> None:
    measured = [step for steps in sessions(TEXT) for step in steps if step.measured]
    assert measured
    assert all(step.constant for step in measured)


def test_generated_parts_are_fresh() -> None:
    parts = generated_parts(TEXT)
    assert set(parts) == {"exit_codes", "engines", "figures", "fillers", "fp8"}
    for name, text in parts.items():
        assert text == generated(name), f"{name}: run python -m tests.docs.readme"


def test_every_command_has_an_example() -> None:
    commands = {step.command for steps in sessions(TEXT) for step in steps}
    for name in COMMANDS:
        assert any(command.startswith(f"coldctl {name} ") for command in commands), name


def test_links_within_the_page_lead_to_headings() -> None:
    headings = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", TEXT, re.M)
    }
    for target in re.findall(r"\]\(#([^)]+)\)", TEXT):
        assert target in headings, target
