"""HTML and SVG elements whose text is escaped unless it is markup already, so that forgetting cannot happen."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape as escape_html

from coldctl.report.escape import escape


class Safe(str):
    """Markup. `element` and `join` make it, and put it into the page as it is; every other string they escape."""

    __slots__ = ()


Child = str | None
Attribute = str | float | bool | None

NOTHING = Safe("")


def element(name: str, *children: Child, **attributes: Attribute) -> Safe:
    """`<name …>children</name>`. Attributes that are None or False are left out; `class_` and `aria_label` are written
    `class` and `aria-label`. Control and other invisible characters in text are made visible first."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    return Safe(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child], separator: Child = None) -> Safe:
    """The children one after the other; None is left out."""
    return Safe(_text(separator).join(_text(child) for child in children if child is not None))


def _text(child: Child) -> str:
    if child is None or isinstance(child, Safe):
        return child or ""
    return escape_html(escape(child), quote=False)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = escape(value) if isinstance(value, str) else f"{value:.6g}"
    return f' {name}="{escape_html(text)}"'
