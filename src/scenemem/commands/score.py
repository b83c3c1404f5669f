"""``scenemem score``: the metrics of a result file, ours or another system's."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from scenemem.commands.console import open_data, output, print_json
from scenemem.commands.tables import metric_table
from scenemem.evaluation.metrics import Metrics
from scenemem.evaluation.score import Scores, score_trajectories
from scenemem.formats.atomic import atomic_file
from scenemem.formats.results import read_trajectories
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world


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
    means, count = scores.metrics.means(), len(scores.instruction_ids)
    if json:
        print_json({"split": split, "n": count, "missing": scores.missing, "metrics": means})
    else:
        missing = f", {scores.missing} missing" if scores.missing else ""
        output.print(metric_table(f"{split}: {count} instructions{missing}", means))


def _write_per_episode(file: Path, scores: Scores) -> None:
    names = [field.name for field in fields(Metrics)]
    columns = [getattr(scores.metrics, name).tolist() for name in names]
    with atomic_file(file) as partial, partial.open("wb") as stream:
        for instruction_id, *values in zip(scores.instruction_ids, *columns, strict=True):
            record = {"instr_id": instruction_id, **dict(zip(names, values, strict=True))}
            stream.write(msgspec.json.encode(record) + b"\n")
