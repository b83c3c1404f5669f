"""What the rows of the family as published would cost: python -m benchmarks.published --data DIR

The published recipe of a row has its own width, batch and number of steps, and features of 2048 columns. A
few training steps of each of its stages are timed; the hours of the whole training are extrapolated, so they
are rough. Agents stop at one decision of 22, as a trained ``ssm`` does when it samples, and at the latest
where their walks are cut off. Features are made up and augmented episodes are those of the training split,
which costs what others would; time to describe or to fetch them is not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import tyro

from benchmarks.machine import Case, Options, command, now
from benchmarks.workload import PAPER_COLUMNS, Workload
from scenemem import zoo
from scenemem.errors import UserError
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.presets import PUBLISHED, Preset
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world

_HOUR = 3600


@dataclass(frozen=True)
class PublishedOptions(Options):
    """Extrapolate how long the rows of the family as published would train."""

    presets: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """which rows; all of the family unless named"""
    columns: int = PAPER_COLUMNS
    """of the made-up features"""
    steps: int = 2
    """timed training steps of each stage, after one that is not timed"""
    batch: tyro.conf.Suppress[int] = 64  # every row has its own
    features: tyro.conf.Suppress[str | None] = None  # made up
    seconds: tyro.conf.Suppress[float] = 0.0  # as long as ``steps`` take
    repeats: tyro.conf.Suppress[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns < 1 or self.steps < 1:
            raise UserError(f"--columns and --steps must be 1 or more, got {self.columns} and {self.steps}")


def seconds_per_step(preset: Preset[Any], options: PublishedOptions) -> dict[str, float]:
    """Of a training step in every stage of a preset, by its name; processor time if one thread computes."""
    learning, found = preset.learning, {}
    world = load_world(options.folder.connectivity).to(options.device)
    augmented = StoredEpisodes(load_split(options.folder, world, preset.data.task, "train"), seed=0)
    for stage in learning.stages:
        alone = replace(preset, learning=replace(learning, stages=(stage,)))
        load = Workload(alone, replace(options, batch=learning.batch), options.columns, augmented)
        load.run("mixed", 1)
        begun = now(options.device)
        load.run("mixed", options.steps)
        found[stage.name] = (now(options.device) - begun) / options.steps
    return found


def hours(preset: Preset[Any], seconds: Mapping[str, float]) -> float:
    """Of all steps of a preset, each stage having its share.

    Args:
        preset: what would be trained.
        seconds: of a step, by the name of the stage.
    """
    stages = preset.learning.stages
    mean = sum(stage.share * seconds[stage.name] for stage in stages) / sum(stage.share for stage in stages)
    return preset.learning.iterations * mean / _HOUR


def measure_published(options: PublishedOptions) -> list[Case]:
    """A case per row."""
    names = options.presets or tuple(name for name in zoo.rows() if name in PUBLISHED)
    wanted = {name: PUBLISHED[name] for name in names}
    cases = []
    for name, preset in wanted.items():
        print(name, file=sys.stderr)
        seconds = seconds_per_step(preset, options)
        cases.append(
            {
                "preset": name,
                "batch": preset.learning.batch,
                "iterations": preset.learning.iterations,
                "feature_columns": options.columns,
                "hours": hours(preset, seconds),
                "modes": {stage: {"seconds_per_step": value} for stage, value in seconds.items()},
            }
        )
    return cases


if __name__ == "__main__":
    command(PublishedOptions, measure_published)
