"""``scenemem submit``: a leaderboard file that the server will accept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from scenemem.commands.console import console, open_data, use_threads
from scenemem.commands.eval import walk_run
from scenemem.evaluation.score import check_walks, with_angles
from scenemem.formats.results import read_trajectories, write_trajectories
from scenemem.learning.run_folder import RunFolder
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world


def submit(
    source: Annotated[Path, tyro.conf.Positional],
    split: str,
    out: Path,
    data: Path | None = None,
    task: str = "r2r",
    checkpoint: Literal["best", "last"] = "last",
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
        world, walked = walk_run(RunFolder(source), split, folder, checkpoint)
        episodes, trajectories = walked.episodes, walked.trajectories(world)
    else:
        world = load_world(folder.connectivity)
        episodes, trajectories = load_split(folder, world, task, split), read_trajectories(source)
    walks = check_walks(world, episodes, trajectories, source=source)
    count = write_trajectories(out, with_angles(world, episodes, trajectories, walks))
    console.print(
        f"{out}: {count} trajectories; every start, id and edge is right", highlight=False, soft_wrap=True
    )
