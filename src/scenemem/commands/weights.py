"""``scenemem weights``: the weights that come with SceneMem, and how to pack others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from scenemem.commands.console import console, open_data, output, print_json, progress_bar, use_threads
from scenemem.errors import UserError
from scenemem.runs.folder import PREFIX, RunFolder, Which, published
from scenemem.runs.opened import CARD_METRICS, pack_weights


def weights(json: bool = False) -> None:
    """List the weights that come with SceneMem; ``weights:NAME`` stands for a run in every command.

    Args:
        json: print one JSON object instead of a table.
    """
    found = published()
    if json:
        print_json({entry.name: {**entry.description, "metrics": entry.metrics} for entry in found})
        return
    table = Table("name", "split", *CARD_METRICS, title="published weights")
    for entry in found:
        for split, metrics in entry.metrics.items():
            table.add_row(PREFIX + entry.name, split, *(f"{metrics[name]:.3f}" for name in CARD_METRICS))
    output.print(table)


def weights_pack(
    run: Annotated[Path, tyro.conf.Positional],
    out: Path,
    data: Path | None = None,
    *,
    splits: tuple[str, ...] = ("val_seen", "val_unseen"),
    checkpoint: Which = "last",
) -> None:
    """Pack the weights of a run in half precision, measure them, and write them with a model card.

    Args:
        run: the run folder.
        out: the file to write, NAME.safetensors; the card goes beside it, NAME.md.
        data: the data folder; the embedded houses when left out.
        splits: where to measure them.
        checkpoint: the last weights of the run, or those that did best on its selection split.
    """
    if out.suffix != ".safetensors":
        raise UserError(f"{out}: the name of packed weights ends in .safetensors")
    use_threads(1)
    card = pack_weights(RunFolder(run), out, open_data(data), splits, checkpoint, progress_bar)
    console.print(f"{out} ({out.stat().st_size / 1e6:.1f} MB) and {card}", highlight=False, soft_wrap=True)
