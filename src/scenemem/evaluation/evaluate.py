"""Evaluation: walk an agent over a split, measure the walks, and turn them into trajectories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.agents.reranking import RerankingAgent
from scenemem.agents.rollout import Rollout
from scenemem.agents.scripted import Agent
from scenemem.evaluation.metrics import Metrics, length_weighted, measure, path_length
from scenemem.formats.results import Point, Trajectory
from scenemem.tasks.episode_set import in_order
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import view_elevation, view_heading
from scenemem.world.graph import NONE, World


@dataclass(frozen=True, eq=False)
class Walked:
    """The walks of an agent over a split, in the order of its episodes; every viewpoint passed is there."""

    episodes: EpisodeSet
    viewpoint: Tensor  # (N, T) int64, padded with -1
    view: Tensor  # (N, T) int64, the view faced; 0 at pads
    jumps: Tensor  # (N,) int64, frontier decisions that left the current place
    stopped: Tensor  # (N,) bool, ended by its own decision; false where a walk was cut off

    def measured(self, world: World) -> Metrics:
        """The metrics of every walk; goals must be known."""
        return measure(world, self.viewpoint, self.episodes.path)

    def trajectories(self, world: World) -> list[Trajectory]:
        """The walks in the form of result files."""
        columns = (
            self.viewpoint.tolist(),
            view_heading(self.view).tolist(),
            view_elevation(self.view).tolist(),
        )
        return [
            Trajectory(
                instruction_id,
                tuple(
                    Point(world.viewpoints[place], heading, elevation)
                    for place, heading, elevation in zip(*walk, strict=True)
                    if place != NONE
                ),
            )
            for instruction_id, *walk in zip(self.episodes.instruction_ids, *columns, strict=True)
        ]


class Surveyor:
    """An agent that answers with the best of several walks, and keeps how far it went in all of them.

    Args:
        agent: who walks.
    """

    def __init__(self, agent: RerankingAgent) -> None:
        self.agent = agent
        self._metres: list[Tensor] = []

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes, one lane each."""
        candidates = self.agent.candidates(episodes)
        metres = path_length(self.agent.agent.sight.world, candidates.walked)
        self._metres.append(metres.view_as(candidates.score).sum(dim=0))
        return candidates.best(self.agent.config.weight)

    @property
    def metres(self) -> Tensor:
        """(N,) length of all candidates together, of all episodes so far"""
        return torch.cat(self._metres)

    def spl(self, walked: Walked, world: World) -> Tensor:
        """(N,) success, weighted by shortest distance / everything walked; goals must be known"""
        shortest = world.geodesic(walked.episodes.start, walked.episodes.goal)
        return length_weighted(walked.measured(world).sr, shortest, self.metres)


def walk_split(
    agent: Agent,
    episodes: EpisodeSet,
    *,
    batch_size: int = 256,
    progress: Callable[[int, int], None] | None = None,
) -> Walked:
    """Walk all episodes of a split with ``agent``.

    Args:
        agent: who walks.
        episodes: the split.
        batch_size: episodes walked at once.
        progress: called with (episodes done, episodes in all).
    """
    rollouts, done = [], 0
    for rows in in_order(len(episodes), batch_size):
        rollouts.append(agent.walk(episodes.select(rows)))
        done += len(rows)
        if progress is not None:
            progress(done, len(episodes))
    ticks = max(rollout.alive.shape[1] for rollout in rollouts)
    return Walked(
        episodes,
        viewpoint=_stacked([r.viewpoint.masked_fill(~r.alive, NONE) for r in rollouts], ticks, NONE),
        view=_stacked([r.view.masked_fill(~r.alive, 0) for r in rollouts], ticks, 0),
        jumps=torch.cat([_jumps(rollout) for rollout in rollouts]),
        stopped=torch.cat([rollout.stopped for rollout in rollouts]),
    )


def _stacked(tables: list[Tensor], ticks: int, pad: int) -> Tensor:
    """(B, t) each  ->  (N, T)"""
    return torch.cat(
        [torch.nn.functional.pad(table, (0, ticks - table.shape[1]), value=pad) for table in tables]
    )


def _jumps(rollout: Rollout) -> Tensor:
    """(B,)"""
    jumps = torch.zeros_like(rollout.viewpoint[:, 0])
    if "frontier" in rollout.decisions and rollout.map is not None:
        table = rollout.decisions["frontier"]
        left = table.choice != rollout.map.at[table.lane, table.tick]
        jumps.index_add_(0, table.lane, left.long())
    return jumps
