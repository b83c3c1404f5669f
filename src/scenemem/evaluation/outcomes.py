"""How every episode of a split ended: its metrics, and if it failed, where.

Shape letters: N episodes.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Literal

import torch
from torch import Tensor

from scenemem.agents.rollout import Rollout
from scenemem.agents.scripted import Agent
from scenemem.evaluation.evaluate import Walked
from scenemem.evaluation.metrics import Metrics, collapse_repeats, last_viewpoint, path_length
from scenemem.formats.episode_results import EpisodeResult, Outcome
from scenemem.tasks.episode_set import SUCCESS_METRES, EpisodeSet
from scenemem.tasks.vocabulary import split_words
from scenemem.world.graph import NONE, World


class Witness:
    """An agent that also keeps which of its walks ended by their own decision.

    Args:
        agent: who walks.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._stopped: list[Tensor] = []

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes."""
        rollout = self._agent.walk(episodes)
        self._stopped.append(rollout.stopped)
        return rollout

    @property
    def stopped(self) -> Tensor:
        """(N,) bool, of all walks so far; false where a walk was cut off"""
        return torch.cat(self._stopped)


def episode_results(
    world: World,
    walked: Walked,
    stopped: Tensor,
    *,
    checkpoint: Literal["best", "last"],
    iteration: int,
) -> list[EpisodeResult]:
    """The outcome of every walk, in the order of the episodes; goals must be known.

    stopped: (N,) bool, ended by its own decision
    """
    metrics, episodes = walked.measured(world), walked.episodes
    columns: dict[str, list[float]] = {
        field.name: getattr(metrics, field.name).tolist() for field in fields(Metrics)
    }
    columns["reference"] = path_length(world, episodes.path).tolist()
    columns["hops"] = ((collapse_repeats(walked.viewpoint) != NONE).sum(1) - 1).tolist()
    columns["jumps"] = walked.jumps.tolist()
    return [
        EpisodeResult(
            instr_id=name,
            checkpoint=checkpoint,
            iteration=iteration,
            outcome=outcome,
            words=len(split_words(text)),
            **dict(zip(columns, values, strict=True)),
        )
        for name, text, outcome, *values in zip(
            episodes.instruction_ids,
            episodes.texts,
            _outcomes(world, walked, metrics, stopped),
            *columns.values(),
            strict=True,
        )
    ]


def _outcomes(world: World, walked: Walked, metrics: Metrics, stopped: Tensor) -> list[Outcome]:
    start, goal = walked.episodes.start, walked.episodes.goal
    end = last_viewpoint(walked.viewpoint)
    detour = world.geodesic(start, end) + metrics.ne - world.geodesic(start, goal)
    # the first of these that holds
    tests: dict[Outcome, Tensor] = {
        "reached": metrics.sr > 0,
        "passed": metrics.osr > 0,
        "cut": ~stopped,
        "early": detour < SUCCESS_METRES,
        "astray": torch.ones_like(stopped),
    }
    names = list(tests)
    first = torch.stack(list(tests.values()), dim=1).int().argmax(dim=1)
    return [names[number] for number in first.tolist()]
