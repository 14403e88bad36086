"""A section of the page: a heading, a sentence that says how to read what follows, and its content."""

from __future__ import annotations

from coldctl.report.html.markup import Child, Safe, element

CACHES = {"cold": "From a cold cache", "warm": "From a warm cache"}


def section(title: str, lead: Child, *children: Child) -> Safe:
    return element("section", element("h2", title), element("p", lead, class_="lead") if lead else None, *children)


def sentence(text: str) -> str:
    """`text` with a capital letter and a full stop."""
    return text[:1].upper() + stopped(text[1:])


def stopped(text: str) -> str:
    """`text` with a full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
