"""``scenemem score``: the metrics of a result file, ours or another system's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import msgspec
import tyro
from rich.table import Table

from scenemem.commands.console import open_data, output, print_json
from scenemem.evaluation.metrics import Metrics
from scenemem.evaluation.score import Scores, score_trajectories
from scenemem.formats.atomic import atomic_file
from scenemem.formats.submission import read_trajectories
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world

# what each metric is called in tables, and how it is shown
_SHOWN = {
    "tl": ("TL", "{:.2f} m", "length of the trajectory"),
    "ne": ("NE", "{:.2f} m", "distance from the last viewpoint to the goal"),
    "sr": ("SR", "{:.2%}", "stopped nearer than 3 m to the goal"),
    "osr": ("OSR", "{:.2%}", "came nearer than 3 m to the goal"),
    "spl": ("SPL", "{:.2%}", "success, weighted by shortest distance / length walked"),
    "spl_ref": ("SPL (reference)", "{:.2%}", "the same with the length of the reference path"),
    "cls": ("CLS", "{:.2%}", "coverage of the reference path, weighted by length"),
    "ndtw": ("nDTW", "{:.2%}", "fidelity to the reference path"),
    "sdtw": ("SDTW", "{:.2%}", "fidelity where successful, else 0"),
}


def score(
    file: Annotated[Path, tyro.conf.Positional],
    split: str,
    data: Path | None = None,
    task: str = "r2r",
    json: bool = False,
    per_episode: Path | None = None,
    partial: bool = False,
    allow_jumps: bool = False,
    keep_repeats: bool = False,
) -> None:
    """Score a result file (leaderboard or DUET style, plain or .gz).

    Args:
        file: the result file.
        split: which split it belongs to, e.g. val_unseen.
        data: data folder; without it the embedded houses.
        task: which task the split belongs to: r2r, r4r, reverie.
        json: print one JSON object with fractions and metres at full precision.
        per_episode: write the metrics of every instruction to this file as JSON lines.
        partial: allow instructions without a trajectory.
        allow_jumps: charge steps without an edge the geodesic distance instead of refusing them.
        keep_repeats: do not merge repeated viewpoints before nDTW and SDTW.
    """
    folder = open_data(data)
    world = load_world(folder.connectivity)
    scores = score_trajectories(
        world,
        load_split(folder, world, task, split),
        read_trajectories(file),
        partial=partial,
        allow_jumps=allow_jumps,
        collapse=not keep_repeats,
        source=file,
    )
    if per_episode is not None:
        _write_per_episode(per_episode, scores)
    means = scores.metrics.means()
    if json:
        count = len(scores.instruction_ids)
        print_json({"split": split, "n": count, "missing": scores.missing, "metrics": means})
    else:
        output.print(_table(split, scores, means))


def _table(split: str, scores: Scores, means: dict[str, float]) -> Table:
    missing = f", {scores.missing} missing" if scores.missing else ""
    table = Table("metric", "mean", "", title=f"{split}: {len(scores.instruction_ids)} instructions{missing}")
    for name, (label, form, meaning) in _SHOWN.items():
        table.add_row(label, form.format(means[name]), meaning)
    return table


def _write_per_episode(file: Path, scores: Scores) -> None:
    names = [field.name for field in fields(Metrics)]
    columns = [getattr(scores.metrics, name).tolist() for name in names]
    with atomic_file(file) as partial, partial.open("wb") as stream:
        for instruction_id, *values in zip(scores.instruction_ids, *columns, strict=True):
            record = {"instr_id": instruction_id, **dict(zip(names, values, strict=True))}
            stream.write(msgspec.json.encode(record) + b"\n")
