"""``scenemem compare RUN RUN ...``: mean and standard deviation over seeds, one row per preset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.table import Table

from scenemem.commands.console import console, open_data, output, print_json, use_threads
from scenemem.commands.eval import walk_run
from scenemem.commands.tables import SIDE_BY_SIDE
from scenemem.errors import UserError
from scenemem.evaluation.tables import Rows, as_markdown, cell_rows, spreads
from scenemem.formats.atomic import atomic_file
from scenemem.learning.run_folder import RunFolder
from scenemem.viewer.report import table_section, write_report


def compare(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    split: str = "val_unseen",
    data: Path | None = None,
    *,
    checkpoint: Literal["best", "last"] = "last",
    out: Path | None = None,
    threads: int = 1,
    json: bool = False,
) -> None:
    """Evaluate runs on a split and print mean +- standard deviation per preset.

    Args:
        runs: run folders; runs of the same preset are one row.
        split: which episodes.
        data: the data folder; the embedded houses when left out.
        checkpoint: the last weights of the runs, or those that did best on their selection split.
        out: also write the table to this file, as Markdown (.md) or HTML (.html).
        threads: torch threads; more than one only pays on an otherwise idle machine.
        json: print one JSON object instead of a table.
    """
    if not runs:
        raise UserError("name at least one run folder: scenemem compare RUN RUN ...")
    if out is not None and out.suffix not in (".md", ".html"):
        raise UserError(
            f"{out}: unknown kind of table '{out.suffix}'; expected a name ending in .md or .html"
        )
    use_threads(threads)
    folder = open_data(data)
    measured = []
    for path in runs:
        run = RunFolder(path)
        world, walked = walk_run(run, split, folder, checkpoint)
        measured.append((str(run.describe()["name"]), walked.measured(world).means()))
    rows = spreads(measured)
    if out is not None:
        _write(out, rows, split)
        console.print(f"written to {out}", markup=False, highlight=False)
    if json:
        print_json({"split": split, "rows": rows})
        return
    table = Table("agent", "n", *SIDE_BY_SIDE, title=split)
    for cells in cell_rows(rows, SIDE_BY_SIDE):
        table.add_row(*cells)
    output.print(table)


def _write(out: Path, rows: Rows, split: str) -> None:
    if out.suffix == ".html":
        cells = cell_rows(rows, SIDE_BY_SIDE)
        write_report(out, "Comparison", [table_section(split, ("agent", "n", *SIDE_BY_SIDE), cells)])
        return
    with atomic_file(out) as partial:
        partial.write_text(as_markdown(rows, SIDE_BY_SIDE), encoding="utf-8")
