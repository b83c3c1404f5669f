"""``scenemem demo``: build the houses, train two agents, walk unseen houses, print and report."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from scenemem.agents.scripted import SCRIPTED
from scenemem.commands.console import (
    METRICS,
    open_data,
    output,
    progress_bar,
    say,
    training_bars,
    use_threads,
)
from scenemem.formats.atomic import atomic_file
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import read_plan
from scenemem.houses.pictures import draw_map, draw_panorama
from scenemem.presets import PRESETS, Preset
from scenemem.runs.comparison import METRICS as COLUMNS
from scenemem.runs.opened import OpenedRun, evaluation_of, open_run, walk_scripted
from scenemem.runs.pages import report_on
from scenemem.runs.training import train_side_by_side
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.viewer.pages import Section, picture_section
from scenemem.world.build import load_world
from scenemem.world.graph import World

SPLITS = ("val_seen", "val_unseen")
TRAINED = ("basic", "ssm")


def demo(out: Path = Path("demo"), *, iterations: int = 300, seed: int = 0, replays: bool = True) -> None:
    """Build the embedded houses, train two agents side by side, and evaluate them in houses they never saw.

    A demo that was interrupted goes on where it stopped; one that is finished only evaluates again.

    Args:
        out: folder for runs, pictures and the report.
        iterations: training steps of each agent; a few hundred show the difference, more make both better.
        seed: of weights, batches, dropout, sampling and the random agent.
        replays: write replays of telling episodes, both agents side by side, beside the report.
    """
    use_threads(1)  # two threads that wait for each other beside another program are far slower than one
    folder = open_data(None)
    presets = {name: _short(PRESETS[name], iterations) for name in TRAINED}
    with training_bars(TRAINED, "sr") as watch:
        runs = train_side_by_side(presets, folder.root, out / "runs", seed, watch)
    world = load_world(folder.connectivity)
    opened = {name: open_run(run, folder, "last", progress_bar) for name, run in runs.items()}
    references = {split: _evaluate(folder, opened, split, seed) for split in SPLITS}
    route = _drawn_route(folder, world, load_split(folder, world, "r2r", "val_unseen"), out)
    page = report_on(
        list(runs.values()),
        folder,
        out / "report.html",
        splits=SPLITS,
        references=references,
        more=[route],
        replays=replays,
        remark=say,
        progress=progress_bar,
    )
    say(f"The report: {page}")


def _short(preset: Preset[Any], iterations: int) -> Preset[Any]:
    """A preset that is validated four times in a training of ``iterations`` steps."""
    pause = max(1, iterations // 4)
    return replace(
        preset,
        learning=replace(preset.learning, iterations=iterations),
        selection=replace(preset.selection, every=pause, save_every=pause),
    )


def _evaluate(
    folder: DataFolder, opened: dict[str, OpenedRun], split: str, seed: int
) -> dict[str, dict[str, float]]:
    """Walk every agent over a split, print the table and return the scores of the agents without a run."""
    scripted = {}
    for name in SCRIPTED:
        world, walks = walk_scripted(name, folder, "r2r", split, seed, progress_bar)
        scripted[name] = evaluation_of(walks, world, split).metrics
    trained = {
        name: evaluation_of(run.evaluate(split)[0], run.world, split).metrics for name, run in opened.items()
    }
    title = f"houses {split}: {len(walks.episodes)} instructions"
    table = Table("agent", *(METRICS[name][0] for name in COLUMNS), title=title)
    for agent, means in (scripted | trained).items():
        table.add_row(agent, *(f"{means[name]:.3f}" for name in COLUMNS))
    output.print(table)
    return scripted


def _drawn_route(folder: DataFolder, world: World, episodes: EpisodeSet, out: Path) -> Section:
    """The map of the first unseen house with its first route, and what one sees at the start."""
    start = int(episodes.start[0])
    scan = world.scans[int(world.scan_of[start])]
    house = read_plan(folder.root, scan)
    first = start - int(world.local[start])
    route = [int(place) - first for place in episodes.path[0] if int(place) >= 0]
    drawing, picture = draw_map(house, route=route), io.BytesIO()
    draw_panorama(house, route[0]).save(picture, format="PNG")
    with atomic_file(out / "route.svg") as partial:
        partial.write_text(drawing, encoding="utf-8")
    with atomic_file(out / "panorama.png") as partial:
        partial.write_bytes(picture.getvalue())
    return picture_section(f"A route through {scan}", episodes.texts[0], drawing, picture.getvalue())
