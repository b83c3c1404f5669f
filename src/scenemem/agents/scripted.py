"""Agents without parameters: the experts, a random walker and one that never moves."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from scenemem.simulator.experts import reference_action, reference_progress, shortest_path_action
from scenemem.simulator.panorama import STOP, Stance
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World


class Agent(Protocol):
    """Walks a batch of episodes, one hop per lane and call."""

    def begin(self, episodes: EpisodeSet, /) -> None:
        """Start over with ``episodes``, one per lane."""

    def act(self, stance: Stance, /) -> Tensor:
        """(B,) the slot every lane hops to next, or STOP; lanes that are done may return anything."""


class ShortestPathExpert:
    """Knows the goal and takes the shortest way."""

    def __init__(self, world: World) -> None:
        self._world = world

    def begin(self, episodes: EpisodeSet, /) -> None:
        """Remember the goals."""
        self._goal = episodes.goal

    def act(self, stance: Stance) -> Tensor:
        """(B,) the first step towards the goal; STOP there"""
        return shortest_path_action(self._world, stance.viewpoint, self._goal)


class ReferenceExpert:
    """Knows the reference path and walks it point by point."""

    def __init__(self, world: World) -> None:
        self._world = world

    def begin(self, episodes: EpisodeSet, /) -> None:
        """Remember the reference paths; nothing is reached yet."""
        self._reference = episodes.path
        self._progress = torch.zeros_like(episodes.start)

    def act(self, stance: Stance) -> Tensor:
        """(B,) the step towards the next reference point; STOP after the last"""
        self._progress = reference_progress(self._reference, self._progress, stance.viewpoint)
        return reference_action(self._world, self._reference, self._progress, stance.viewpoint)


class RandomAgent:
    """Hops to uniformly random neighbours a fixed number of times, then stops.

    Args:
        world: the world to walk in.
        generator: the source of randomness; the same state gives the same walks.
        hops: how many hops before stopping; five, as the random baseline of R2R takes.
    """

    def __init__(self, world: World, generator: torch.Generator, hops: int = 5) -> None:
        if hops < 0:
            raise ValueError(f"hops must be 0 or more, got {hops}; use 0 to stop at once")
        self._world = world
        self._generator = generator
        self._hops = hops

    def begin(self, _episodes: EpisodeSet, /) -> None:
        """Count hops from zero."""
        self._taken = 0

    def act(self, stance: Stance) -> Tensor:
        """(B,) a random slot, STOP after the last hop or where there is no neighbour"""
        degree = self._world.neighbour_mask[stance.viewpoint].sum(dim=-1)
        draw = torch.rand(degree.shape, generator=self._generator, device=self._generator.device)
        slot = (draw.to(degree.device) * degree).long().minimum(degree - 1)
        self._taken += 1
        return (
            slot.masked_fill(degree == 0, STOP) if self._taken <= self._hops else torch.full_like(slot, STOP)
        )


class StopAgent:
    """Stops where it starts."""

    def begin(self, _episodes: EpisodeSet, /) -> None:
        """Nothing to remember."""

    def act(self, stance: Stance) -> Tensor:
        """(B,) STOP"""
        return torch.full_like(stance.viewpoint, STOP)
