"""Evaluation: walk an agent over a split, measure the walks, and say how every episode ended.

Shape letters: N episodes, T viewpoints of the longest walk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from scenemem.agents.rollout import Rollout
from scenemem.agents.walker import TrainedAgent, Walker
from scenemem.errors import UserError
from scenemem.evaluation.metrics import (
    Metrics,
    collapse_repeats,
    last_viewpoint,
    measure,
    path_length,
)
from scenemem.formats.results import EpisodeResult, Outcome, Point, Trajectory
from scenemem.tasks.episode_set import SUCCESS_METRES, EpisodeSet, in_order
from scenemem.tasks.vocabulary import split_words
from scenemem.world.build import Progress
from scenemem.world.graph import NONE, World, view_elevation, view_heading


@dataclass(frozen=True, eq=False)
class Walks:
    """The walks of an agent over a split, in the order of its episodes; every viewpoint passed is there."""

    episodes: EpisodeSet
    viewpoint: Tensor  # (N, T) int64, padded with -1
    view: Tensor  # (N, T) int64, the view faced; 0 at pads
    jumps: Tensor  # (N,) int64, frontier decisions that left the current viewpoint
    stopped: Tensor  # (N,) bool, ended by its own decision; false where a walk was cut off

    def measured(self, world: World) -> Metrics:
        """The metrics of every walk; goals must be known."""
        return measure(world, self.viewpoint, self.episodes.path)

    def trajectories(self, world: World) -> list[Trajectory]:
        """The walks in the form of result files."""
        columns = self.viewpoint, view_heading(self.view), view_elevation(self.view)
        points = (
            tuple(Point(world.viewpoints[n], *angles) for n, *angles in zip(*walk, strict=True) if n != NONE)
            for walk in zip(*(column.tolist() for column in columns), strict=True)
        )
        return list(map(Trajectory, self.episodes.instruction_ids, points))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What came out of a split."""

    split: str
    instruction_ids: tuple[str, ...]
    measured: Metrics  # one value per instruction
    missing: int = 0  # instructions of the split without a trajectory
    jumps: float | None = None  # mean number of frontier decisions that left the viewpoint; None if unknown
    reranking: Mapping[str, Any] | None = None  # how a speaker helped to choose, and what candidates walked
    track: str = ""  # of the features the agent saw; empty when unknown and for agents that see none

    @classmethod
    def of(cls, walks: Walks, world: World, split: str, track: str = "") -> Evaluation:
        """Measure walks; goals must be known."""
        if not walks.episodes.has_goals:
            raise UserError(
                f"'{walks.episodes.name}' keeps its goals secret; write a file with 'scenemem submit'"
            )
        jumps, ids = float(walks.jumps.double().mean()), walks.episodes.instruction_ids
        return cls(split, ids, walks.measured(world), jumps=jumps, track=track)

    @property
    def n(self) -> int:
        """How many instructions were walked."""
        return len(self.instruction_ids)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The mean of every metric: metres for tl and ne, fractions for the others."""
        return self.measured.means()

    @cached_property
    def per_episode(self) -> dict[str, dict[str, float]]:
        """The metrics of every instruction, by its id."""
        columns = {name: values.tolist() for name, values in vars(self.measured).items()}
        return {
            instruction_id: {name: column[number] for name, column in columns.items()}
            for number, instruction_id in enumerate(self.instruction_ids)
        }

    def summary(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        more = {"jumps": self.jumps, "reranking": self.reranking, "track": self.track or None}
        known = {name: value for name, value in more.items() if value is not None}
        return {"split": self.split, "n": self.n, "missing": self.missing, "metrics": self.metrics, **known}


_TOGETHER = 1024  # episodes whose instructions are kept in memory at the same time


def walk_split(
    agent: Walker, episodes: EpisodeSet, *, batch_size: int = 256, progress: Progress | None = None
) -> Walks:
    """Walk all episodes of a split; ``progress`` is called with (episodes done, episodes in all).

    ``batch_size`` episodes walk at once. A trained agent takes the next episode whenever one is over, those
    with short instructions first, because words are padded to the longest instruction beside them.
    """
    order, rollouts = torch.arange(len(episodes)), list[_Kept]()
    if not isinstance(agent, TrainedAgent):
        for rows in in_order(len(episodes), batch_size, progress):
            rollouts.append(_kept(agent.walk(episodes.select(rows))))
    else:
        order = torch.tensor([len(split_words(text)) for text in episodes.texts]).argsort(stable=True)
        for rows in in_order(len(episodes), max(_TOGETHER, batch_size)):
            counted = _counted_from(int(rows[0]), len(episodes), progress)
            walked = agent.walk(episodes.select(order[rows]), at_once=batch_size, progress=counted)
            rollouts.append(_kept(walked))
    viewpoint, view, jumps, stopped = zip(*rollouts, strict=True)
    place = order.argsort()  # of every episode among the walks
    return Walks(
        episodes,
        viewpoint=_stacked(viewpoint, NONE)[place],
        view=_stacked(view, 0)[place],
        jumps=torch.cat(jumps)[place],
        stopped=torch.cat(stopped)[place],
    )


_Kept = tuple[Tensor, Tensor, Tensor, Tensor]


def _kept(rollout: Rollout) -> _Kept:
    """What is kept of some walks; the options of every decision would fill the memory on a long split."""
    return rollout.walked, rollout.view.masked_fill(~rollout.alive, 0), rollout.jumps, rollout.stopped


def _counted_from(first: int, whole: int, progress: Progress | None) -> Callable[[int], None] | None:
    """Passes the number of episodes that are over to ``progress``, after ``first`` others."""
    return None if progress is None else lambda over: progress(first + over, whole)


def _stacked(tables: Sequence[Tensor], pad: int) -> Tensor:
    """(B, t) each  ->  (N, T)"""
    longest = max(table.shape[1] for table in tables)
    return torch.cat([functional.pad(table, (0, longest - table.shape[1]), value=pad) for table in tables])


def episode_results(
    world: World, walks: Walks, *, checkpoint: Literal["best", "last"], iteration: int
) -> list[EpisodeResult]:
    """The outcome of every walk, in the order of the episodes; goals must be known."""
    metrics, episodes = walks.measured(world), walks.episodes
    columns: dict[str, list[float]] = {name: values.tolist() for name, values in vars(metrics).items()}
    columns["reference"] = path_length(world, episodes.path).tolist()
    columns["hops"] = ((collapse_repeats(walks.viewpoint) != NONE).sum(1) - 1).tolist()
    columns["jumps"] = walks.jumps.tolist()
    facts = zip(episodes.instruction_ids, episodes.texts, _outcomes(world, walks, metrics), strict=True)
    return [
        EpisodeResult(
            instr_id=name,
            checkpoint=checkpoint,
            iteration=iteration,
            outcome=outcome,
            words=len(split_words(text)),
            **dict(zip(columns, values, strict=True)),
        )
        for (name, text, outcome), *values in zip(facts, *columns.values(), strict=True)
    ]


def metrics_of(results: Sequence[EpisodeResult], device: torch.device | None = None) -> Metrics:
    """The metrics of walks whose outcomes were kept."""
    columns = {metric.name: [getattr(one, metric.name) for one in results] for metric in fields(Metrics)}
    return Metrics(
        **{name: torch.tensor(values, dtype=torch.double, device=device) for name, values in columns.items()}
    )


def _outcomes(world: World, walks: Walks, metrics: Metrics) -> list[Outcome]:
    start, goal = walks.episodes.start, walks.episodes.goal
    end = last_viewpoint(walks.viewpoint)
    detour = world.geodesic(start, end) + metrics.ne - world.geodesic(start, goal)
    # the first of these that holds
    tests: dict[Outcome, Tensor] = {
        "reached": metrics.sr > 0,
        "passed": metrics.osr > 0,
        "cut": ~walks.stopped,
        "early": detour < SUCCESS_METRES,
        "astray": torch.ones_like(walks.stopped),
    }
    first = torch.stack(list(tests.values()), dim=1).int().argmax(dim=1)
    return [list(tests)[number] for number in first.tolist()]
