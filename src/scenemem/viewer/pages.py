"""Self-contained HTML pages made with jinja2 templates; nothing in them is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from scenemem.formats.atomic import StrPath, atomic_file

_LEAST_CONTENTS = 4  # sections before a page gets a table of contents


@dataclass(frozen=True)
class Section:
    """A part of a report: its headline and the HTML below it."""

    title: str
    body: Markup


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    spans: Sequence[tuple[str, int]] = ()  # a line above the head: names, and columns each stands over
    quiet: Sequence[int] = ()  # numbers of rows that only serve for comparison


@cache
def _template(name: str) -> Template:
    return Environment(
        loader=PackageLoader("scenemem.viewer"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template(name)


def render(template: str, **values: Any) -> str:
    """A template filled with values; text is escaped, ``Markup`` is not."""
    return _template(template).render(values)


def render_macro(template: str, macro: str, *values: Any, **named: Any) -> Markup:
    """What a macro of a template makes of some values."""
    return Markup(getattr(_template(template).module, macro)(*values, **named))  # escaped by the template


def section(title: str, macro: str, *values: Any, **named: Any) -> Section:
    """A section whose body is a macro of ``sections.html``."""
    return Section(title, render_macro("sections.html", macro, *values, **named))


def note_section(title: str, text: str) -> Section:
    """A section that is one paragraph."""
    return section(title, "note", text)


def write_report(file: StrPath, title: str, sections: Iterable[Section], *, lead: str = "") -> None:
    """Write a page of sections below a headline and a lead, with a table of contents when there are many."""
    shown, style = list(sections), styles("charts", "report", "cards")
    words = {"title": title, "lead": lead, "contents": len(shown) >= _LEAST_CONTENTS}
    write_page(file, render("report.html", sections=shown, style=style, **words))


def write_page(file: StrPath, page: str | bytes) -> int:
    """Write a page or a picture, complete or not at all, and return its size in bytes."""
    content = page.encode() if isinstance(page, str) else page
    with atomic_file(file) as partial:
        return partial.write_bytes(content)


@cache
def static_text(name: str) -> str:
    """A static file as text."""
    return (files("scenemem.viewer") / "static" / name).read_text(encoding="utf-8")


@cache
def styles(*names: str) -> Markup:
    """Style sheets, one after the other."""
    return Markup("".join(static_text(f"{name}.css") for name in names))  # our own files


@cache
def scripts(*names: str) -> Markup:
    """Scripts that share one scope and leave nothing outside it."""
    body = "\n".join(static_text(f"{name}.js") for name in names)
    return Markup(f'(() => {{\n"use strict";\n{body}\n}})();\n')  # our own files


def embedded(value: object) -> Markup:
    """JSON that can stand inside a script element, whatever text it holds."""
    text = msgspec.json.encode(value).decode()
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # nothing in it can end the element


def content_policy(style: str, script: str = "") -> str:
    """A content security policy that allows a page nothing but itself: no network, no other script."""

    def digest(text: str) -> str:
        return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    own = f"script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'"
    return f"default-src 'none'; img-src data:; {own}; base-uri 'none'; form-action 'none'"
