"""``scenemem score`` and ``scenemem submit``: metrics of result files, and files for the leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from scenemem.commands.console import (
    console,
    metric_table,
    open_data,
    output,
    print_json,
    progress_bar,
    use_threads,
)
from scenemem.evaluation.score import check_walks, score_trajectories, with_angles
from scenemem.formats.atomic import atomic_file
from scenemem.formats.results import read_trajectories, write_trajectories
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.opened import Evaluation, open_run
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
    evaluation = Evaluation(split, scores.instruction_ids, scores.metrics, scores.missing)
    if per_episode is not None:
        with atomic_file(per_episode) as unfinished, unfinished.open("wb") as stream:
            for instruction_id, metrics in evaluation.per_episode.items():
                stream.write(msgspec.json.encode({"instr_id": instruction_id, **metrics}) + b"\n")
    if json:
        print_json(evaluation.summary())
    else:
        missing = f", {scores.missing} missing" if scores.missing else ""
        output.print(metric_table(f"{split}: {evaluation.n} instructions{missing}", evaluation.metrics))


def submit(
    source: Annotated[Path, tyro.conf.Positional],
    split: str,
    out: Path,
    data: Path | None = None,
    task: str = "r2r",
    checkpoint: Which = "last",
) -> None:
    """Validate results (start, ids, every edge) and write the leaderboard file.

    Nothing is written when anything is wrong; the error names the instruction, the step and the viewpoints.
    Headings and elevations are filled in where the results lack them.

    Args:
        source: a run folder, or a result file in leaderboard or DUET style, plain or .gz.
        split: which split it belongs to, e.g. test.
        out: the leaderboard file to write.
        data: data folder; without it the embedded houses.
        task: which task a result file belongs to: r2r, r4r, reverie; a run knows its own.
        checkpoint: of a run folder, the last weights or the best on its selection split.
    """
    use_threads(1)
    folder = open_data(data)
    if source.is_dir():
        opened = open_run(RunFolder(source), folder, checkpoint, progress_bar)
        world, walks = opened.world, opened.walk(split)
        episodes, trajectories = walks.episodes, walks.trajectories(world)
    else:
        world = load_world(folder.connectivity)
        episodes, trajectories = load_split(folder, world, task, split), read_trajectories(source)
    checked = check_walks(world, episodes, trajectories, source=source)
    count = write_trajectories(out, with_angles(world, episodes, trajectories, checked))
    console.print(
        f"{out}: {count} trajectories; every start, id and edge is right", highlight=False, soft_wrap=True
    )
