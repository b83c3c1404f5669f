"""A report on one page: tables, learning curves and pictures, in a single HTML file."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from scenemem.formats.atomic import atomic_file
from scenemem.learning.run_folder import RunFolder
from scenemem.viewer.curves import Curve, draw_curves

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1.5rem; }
table { border-collapse: collapse; width: 100%; }
.wide { overflow-x: auto; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
td { font-variant-numeric: tabular-nums; }
svg, img { max-width: 100%; height: auto; }
figure { margin: 1rem 0; }
figcaption { opacity: .8; }
"""


@dataclass(frozen=True)
class Section:
    """A headline and the HTML below it."""

    title: str
    body: str


def write_report(file: str | os.PathLike[str], title: str, sections: Iterable[Section]) -> None:
    """Write a self-contained page; it appears complete or not at all."""
    body = "\n".join(
        f"<section><h2>{escape(section.title)}</h2>\n{section.body}\n</section>" for section in sections
    )
    page = (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{escape(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{_STYLE}</style></head>\n<body><main><h1>{escape(title)}</h1>\n{body}\n</main></body></html>\n"
    )
    with atomic_file(file) as partial:
        partial.write_text(page, encoding="utf-8")


def metric_section(title: str, rows: Mapping[str, Mapping[str, float]], metrics: Sequence[str]) -> Section:
    """One row per agent, one column per metric."""
    cells = ([agent, *(f"{means[name]:.3f}" for name in metrics)] for agent, means in rows.items())
    return table_section(title, ("agent", *metrics), cells)


def table_section(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Section:
    """A table whose first column names the rows."""
    columns = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    lines = (
        f"<tr><th scope='row'>{escape(first)}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in rows
    )
    table = f"<table><thead><tr>{columns}</tr></thead><tbody>\n" + "\n".join(lines) + "\n</tbody></table>"
    label = escape(title, quote=True)
    return Section(title, f'<div class="wide" tabindex="0" role="region" aria-label="{label}">{table}</div>')


def curve_section(runs: Mapping[str, RunFolder], metric: str) -> Section:
    """How a validation metric grew during training."""
    curves: dict[str, Curve] = {
        name: [
            (line["iteration"], line["validation"][metric]) for line in run.logged() if "validation" in line
        ]
        for name, run in runs.items()
    }
    title = f"{metric.upper()} on held-out training buildings"
    return Section(
        "Learning curves",
        f"<figure>{draw_curves(curves, title=title, value=metric.upper())}"
        f"<figcaption>{escape(title)}</figcaption></figure>",
    )


def picture_section(title: str, text: str, drawing: str, photograph: bytes) -> Section:
    """A drawing (SVG), a picture (PNG) and the words that go with them."""
    inline = base64.b64encode(photograph).decode()
    drawing = drawing[drawing.index("<svg") :]
    return Section(
        title,
        f"<p>{escape(text)}</p>\n<figure class='wide'>{drawing}</figure>\n"
        f"<figure><img alt='What one sees at the start' src='data:image/png;base64,{inline}'>"
        "<figcaption>What one sees at the start, north in the middle</figcaption></figure>",
    )
