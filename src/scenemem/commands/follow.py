"""``scenemem follow``: what an agent led along the reference paths would choose, and attends to."""

from __future__ import annotations

from rich.table import Table

from scenemem.commands import console
from scenemem.commands.console import Checkpoint, Data, Device, Json, Run, Split, Threads
from scenemem.evaluation.bootstrap import Estimate
from scenemem.evaluation.following import Agreement
from scenemem.evaluation.grounding import OWN, GroundingQuality


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
    agent = console.load_agent(run, split, data, checkpoint, device)
    where = f"{run} led along {agent.preset.data.task} {split}, track {agent.experiment.track or 'unknown'}"
    found: dict[str, object] = {"split": split, "iteration": agent.iteration}
    if grounding:
        quality = agent.grounding(split)
        found["grounding"], table = quality, grounding_table(where, quality)
    else:
        agreements = agent.following(split)
        found["following"] = {one.decisions: {"share": one.share, "of": one.of} for one in agreements}
        table = following_table(where, agreements)
    if json:
        console.print_json(found)
    else:
        console.output.print(table)


def following_table(title: str, agreements: list[Agreement]) -> Table:
    """One row per kind of decision."""
    rows = [(one.decisions, f"{one.share:.3f}", f"{one.of:,}") for one in agreements]
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
