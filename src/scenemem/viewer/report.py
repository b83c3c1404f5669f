"""A report on one page: sections, tables, figures and pictures in one HTML file that needs no network."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from scenemem.formats.atomic import atomic_file
from scenemem.viewer.curves import legend

# nothing but what is in the page itself: no script, no font, no picture from anywhere else
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLES = ("report.css", "cards.css")
_LEAST_CONTENTS = 4  # sections before a page gets a table of contents


@dataclass(frozen=True)
class Section:
    """A headline and the HTML below it."""

    title: str
    body: str


def write_report(
    file: str | os.PathLike[str], title: str, sections: Iterable[Section], *, lead: str = ""
) -> None:
    """Write a self-contained page; it appears complete or not at all.

    Args:
        file: the page.
        title: its headline.
        sections: what it shows, in order.
        lead: a sentence below the headline.
    """
    numbered = list(enumerate(sections, start=1))
    body = "\n".join(
        f'<section aria-labelledby="part-{number}"><h2 id="part-{number}">{escape(section.title)}</h2>\n'
        f"{section.body}\n</section>"
        for number, section in numbered
    )
    contents = ""
    if len(numbered) >= _LEAST_CONTENTS:
        links = "".join(
            f'<li><a href="#part-{number}">{escape(section.title)}</a></li>' for number, section in numbered
        )
        contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>\n'
    static = files("scenemem.viewer").joinpath("static")
    style = "".join(static.joinpath(name).read_text(encoding="utf-8") for name in _STYLES)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n<header><h1>{escape(title)}</h1>"
        + (f"<p>{escape(lead)}</p>" if lead else "")
        + f"</header>\n{contents}{body}\n</main></body></html>\n"
    )
    with atomic_file(file) as partial:
        partial.write_text(page, encoding="utf-8")


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    spans: Sequence[tuple[str, int]] = (),
    quiet: Sequence[int] = (),
) -> str:
    """A table whose first column names the rows.

    Args:
        caption: what the table shows.
        head: the names of the columns.
        rows: the cells, the row's name first.
        spans: a line above the head: names and how many columns each stands over.
        quiet: numbers of rows that only serve for comparison.
    """
    above = "".join(_spanning(name, width) for name, width in spans)
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "\n".join(
        f"<tr{' class=quiet' if number in quiet else ''}>"
        f'<th scope="row">{escape(cells[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
        + "</tr>"
        for number, cells in enumerate(rows)
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table{' class=spanned' if spans else ''}>"
        f"<caption><span>{escape(caption)}</span></caption>\n<thead>"
        + (f"<tr>{above}</tr>" if above else "")
        + f"<tr>{columns}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>"
    )


def table_section(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Section:
    """A section that is one table."""
    return Section(title, table(title, head, rows))


def note(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def numbers(body: str) -> str:
    """Tables that can be unfolded below a figure."""
    return f"<details><summary>The numbers</summary>\n{body}\n</details>"


def figure(drawing: str, caption: str) -> str:
    """A drawing and what it shows."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def figures(names: Sequence[str], drawings: Iterable[str]) -> str:
    """Figures side by side under one legend of the series ``names``."""
    keys = "".join(f"<li>{key}{escape(name)}</li>" for key, name in zip(legend(names), names, strict=True))
    return f'<ul class="keys">{keys}</ul>\n<div class="figures">\n' + "\n".join(drawings) + "\n</div>"


def picture_section(title: str, text: str, drawing: str, photograph: bytes) -> Section:
    """A drawing (SVG), a picture (PNG) and the words that go with them."""
    inline = base64.b64encode(photograph).decode()
    drawing = drawing[drawing.index("<svg") :]
    return Section(
        title,
        f'{note(text)}\n<figure class="wide">{drawing}</figure>\n'
        f'<figure><img alt="What one sees at the start" src="data:image/png;base64,{inline}">'
        "<figcaption>What one sees at the start, north in the middle</figcaption></figure>",
    )


def _spanning(name: str, width: int) -> str:
    if not name:
        return f'<td colspan="{width}"></td>'
    return f'<th scope="colgroup" colspan="{width}">{escape(name)}</th>'
