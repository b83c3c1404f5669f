"""``scenemem follow``: what an agent led along the reference paths would choose, and attends to."""

from __future__ import annotations

from rich.table import Table

from scenemem.commands import console
from scenemem.commands.console import Checkpoint, Data, Device, Json, Run, Split, Threads
from scenemem.evaluation.bootstrap import Estimate
from scenemem.evaluation.following import Agreement
from scenemem.evaluation.grounding import OWN, GroundingQuality
from scenemem.learning.distributed import check_device
from scenemem.runs.opened import open_run


def follow(
    run: Run,
    split: Split = "val_unseen",
    data: Data = None,
    *,
    grounding: bool = False,
    checkpoint: Checkpoint = "last",
    threads: Threads = 1,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Lead an agent along the reference paths and print how often it would have chosen what is right.

    Args:
        grounding: measure instead how well the word attention agrees with hand-made labels (lar2r/).
    """
    console.use_threads(threads)
    described = console.existing_run(run, data, checkpoint)
    folder = console.open_data(data)
    task = described.describe()["preset"]["data"]["task"]
    console.check_split(folder, task, split)
    opened = open_run(described, folder, checkpoint, console.progress_bar, check_device(device))
    where = f"{run} led along {task} {split}, track {opened.experiment.track or 'unknown'}"
    found: dict[str, object] = {"split": split, "iteration": opened.iteration}
    if grounding:
        quality = opened.grounding(split)
        found["grounding"], table = quality, grounding_table(where, quality)
    else:
        asked = opened.following(split)
        found["following"] = {one.decisions: {"share": one.share, "of": one.of} for one in asked}
        table = following_table(where, asked)
    if json:
        console.print_json(found)
    else:
        console.output.print(table)


def following_table(title: str, asked: list[Agreement]) -> Table:
    """One row per kind of decision."""
    rows = [(one.decisions, f"{one.share:.3f}", f"{one.of:,}") for one in asked]
    return console.table(title, ("decision: what is right", "chosen", "of"), rows)


def grounding_table(title: str, quality: GroundingQuality) -> Table:
    """One row per kind of words and attention; intervals are 95 %."""
    header = ("words", "attention", "mass", "chance", "lift", "lift elsewhere", "pointing")
    rows = [
        (
            row.words,
            row.stream + (" (own)" if OWN[row.words] == row.stream else ""),
            _interval(row.mass, 3),
            f"{row.chance:.3f}",
            _interval(row.lift, 2),
            "-" if row.elsewhere is None else _interval(row.elsewhere, 2),
            _interval(row.pointing, 3),
        )
        for row in quality.attention
    ]
    table, covered = console.table(title, header, rows), quality.coverage
    table.caption = (
        f"{quality.episodes} instructions of {quality.paths} paths; {covered.measured} of {covered.labels} "
        f"labels measured: {covered.empty} are empty, {covered.beyond} point past the end, "
        f"{covered.cut} past what is read, {covered.unvisited} lie off the walk"
    )
    return table


def _interval(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"
