"""``scenemem weights``: the weights that come with SceneMem, and how to pack others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from scenemem.commands.console import console, open_data, output, print_json, use_threads
from scenemem.commands.eval import Weights, open_run, summary, weights_file
from scenemem.errors import UserError
from scenemem.experiment import DEV_UNSEEN
from scenemem.formats.atomic import atomic_file
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import Checkpoint, read_checkpoint
from scenemem.learning.published import PREFIX, Published, halved, published, unpack, write_published
from scenemem.learning.run_folder import RunFolder

_SHOWN = ("sr", "spl", "osr", "ne")


def weights(json: bool = False) -> None:
    """List the weights that come with SceneMem; ``weights:NAME`` stands for a run in every command.

    Args:
        json: print one JSON object instead of a table.
    """
    found = published()
    if json:
        print_json({entry.name: {**entry.description, "metrics": entry.metrics} for entry in found})
        return
    table = Table("name", "split", *_SHOWN, title="published weights")
    for entry in found:
        for split, metrics in entry.metrics.items():
            table.add_row(PREFIX + entry.name, split, *(f"{metrics[name]:.3f}" for name in _SHOWN))
    output.print(table)


def weights_pack(
    run: Annotated[Path, tyro.conf.Positional],
    out: Path,
    data: Path | None = None,
    *,
    splits: tuple[str, ...] = ("val_seen", "val_unseen"),
    checkpoint: Weights = "last",
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
    folder, source = open_data(data), RunFolder(run)
    description = source.describe()
    # what it learnt from, without where that lay on this machine
    description["data"].pop("folder", None)
    learnt_from = description.get("augmentation", {})
    description["augmentation"] = {name: Path(place).name for name, place in learnt_from.items()}
    packed = halved(read_checkpoint(weights_file(source, checkpoint)))
    metrics = _measured(packed, description, folder, splits)
    write_published(out, packed, description, metrics)
    card = out.with_suffix(".md")
    with atomic_file(card) as partial:
        partial.write_text(model_card(Published(out.stem, out, read_checkpoint(out).facts)), encoding="utf-8")
    console.print(f"{out} ({out.stat().st_size / 1e6:.1f} MB) and {card}", highlight=False, soft_wrap=True)


def _measured(
    packed: Checkpoint, description: dict[str, Any], folder: DataFolder, splits: Sequence[str]
) -> dict[str, dict[str, float]]:
    """What the packed weights reach, not the ones they were made from."""
    with tempfile.TemporaryDirectory() as place:
        file, run = Path(place) / "packed.safetensors", RunFolder(Path(place) / "packed")
        write_published(file, packed, description, {})
        unpack(file, run.root)
        opened = open_run(run, folder, "last")
        world = opened.experiment.sight.world
        return {split: summary(opened.evaluate(split)[0], world, split)["metrics"] for split in splits}


def model_card(entry: Published) -> str:
    """What somebody who finds the file has to know, in Markdown."""
    facts, data, features = entry.facts, entry.description["data"], entry.facts["features"]
    held_out = facts["preset"]["selection"]["split"] == DEV_UNSEEN
    rows = [
        f"| {split} | " + " | ".join(f"{metrics[name]:.3f}" for name in _SHOWN) + " |"
        for split, metrics in entry.metrics.items()
    ]
    lines = [
        f"# {PREFIX}{entry.name}",
        "",
        f"Preset `{facts['name']}`, seed {facts['seed']}, {facts['progress']['iteration']} iterations, "
        f"{len(facts['vocabulary'])} words, half precision.",
        "",
        f"- Task: {facts['preset']['data']['task']}. Features: {facts['preset']['data']['features']} "
        f"({data['features']}), {features['width']} columns, SHA-256 `{features['sha256']}`.",
        "- Trained on "
        + ("the training buildings without dev_unseen." if held_out else "all training buildings."),
        f"- Made with {', '.join(f'{name} {text}' for name, text in entry.description['versions'].items())}.",
        "- Weights only: no data is included. Use them with features of the same checksum; buildings of",
        "  Matterport3D are under its own terms of use (non-commercial, academic).",
        "",
        f"| split | {' | '.join(_SHOWN)} |",
        f"|---{'|---' * len(_SHOWN)}|",
        *rows,
        "",
        f"`scenemem eval {PREFIX}{entry.name} --split val_unseen`, with `--data` for R2R, prints them.",
        "",
    ]
    return "\n".join(lines)
