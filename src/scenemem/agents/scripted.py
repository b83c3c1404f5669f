"""Agents without parameters: the experts, and a random walker, which may be told not to move."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, Arrival, LocalActions
from scenemem.agents.rollout import DecisionRequest, Rollout
from scenemem.agents.walker import FollowLabels, LabelRule, collect
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import Pose, World

RANDOM_HOPS = 5  # before the random walker stops, as the random baseline of R2R


class ExpertAgent:
    """Does what a label rule says, hop by hop.

    Args:
        world: the world to walk in.
        rule: makes the label rule of a batch: to the goal, or along the reference path.
    """

    def __init__(self, world: World, rule: Callable[[EpisodeSet], LabelRule]) -> None:
        self._world = world
        self._rule = rule

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes."""
        # a path that never repeats a hop is shorter than the reference path and the graph together
        most = len(self._world.viewpoints) + int(episodes.path_length.max())
        space = LocalActions(self._world, len(episodes), most)
        rule = self._rule(episodes)
        return collect(self._world, episodes, space, FollowLabels(), max_steps=most + 1, label_rule=rule)


class RandomAgent:
    """Hops to uniformly random neighbours a fixed number of times, then stops.

    Args:
        world: the world to walk in.
        generator: the source of randomness; the same state gives the same walks.
        hops: how many hops before stopping; with 0 it never moves.
    """

    def __init__(self, world: World, generator: torch.Generator, hops: int = RANDOM_HOPS) -> None:
        self._world = world
        self._generator = generator
        self._hops = hops

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes."""
        space = LocalActions(self._world, len(episodes), self._hops + 1)
        policy = _RandomHops(self._generator, self._hops)
        return collect(self._world, episodes, space, policy, max_steps=self._hops + 2)


class _RandomHops:
    """Any neighbour while hops are left, stop afterwards or where there is none."""

    def __init__(self, generator: torch.Generator, hops: int) -> None:
        self._generator = generator
        self._hops_left = hops

    def observe(self, _pose: Pose, _arrival: Arrival, _space: ActionSpace, /) -> None:
        """A random walker does not look."""

    def decide(
        self, request: DecisionRequest, _label: Tensor, _pose: Pose, _space: ActionSpace, /
    ) -> tuple[Tensor, None]:
        """(M,) a random neighbour slot or stop"""
        stop = request.options.shape[1] - 1
        wish = request.options.double()
        wish[:, stop] = 0.0 if self._hops_left > 0 else 1.0
        wish[:, :stop] *= float(self._hops_left > 0)
        wish[wish.sum(dim=1) == 0.0, stop] = 1.0
        self._hops_left -= 1
        drawn = torch.multinomial(wish.to(self._generator.device), 1, generator=self._generator)
        return drawn.squeeze(1).to(request.episode.device), None


SCRIPTED = ("expert", "random", "stop")
"""Agents that need no training, by name."""
