"""Further label rules for an agent's own walks, by name as those of ``objectives``.

Shape letters: B episodes, M decisions, O options, N nodes of a memory, K candidate slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace
from scenemem.agents.rollout import GLOBAL, DecisionRequest
from scenemem.agents.walker import LabelRule
from scenemem.learning.objectives import ClosestToGoal, RestOfPath
from scenemem.ssm.agent import MemoryActions
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo.low_level import FORWARD, RIGHT, LowLevelActions, low_level_expert


class ShortestDetour(ClosestToGoal):
    """DUET's pseudo expert: argmin_v d(here, v) + d(v, goal) over the known map; stop at the goal.

    d(here, v) is walked over known edges, so a place behind the agent costs the way back.
    """

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        if request.type != GLOBAL:
            return super().__call__(request, space, distance)
        cost = (ways_to_options(request, space) + distance[:, 1:-1]).masked_fill(
            ~request.options[:, :-1], torch.inf
        )
        stop = request.options.shape[1] - 1
        return torch.where((distance[:, 0] == 0.0) | cost.isinf().all(dim=1), stop, cost.argmin(dim=1))


def ways_to_options(request: DecisionRequest, space: ActionSpace) -> Tensor:
    """Metres over known edges to where every way of a global decision leads  ->  (M, N * K)"""
    if not isinstance(space, MemoryActions):
        raise TypeError(f"{type(space).__name__} has no memory, but this is decided over one")
    memory, world = space.memory, space.world
    node = memory.node[request.episode].clamp_min(0)
    walk = memory.walk[request.episode, memory.here[request.episode]].double()
    return (walk.unsqueeze(-1) + world.neighbour_length[node]).flatten(1)


def shortest_detour(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The place with the shortest way to the goal through it."""
    del space
    return ShortestDetour(world, episodes.goal)


class ReferenceIndex(ClosestToGoal):
    """EGP: the option whose place comes last on the reference path; stop at the goal.

    Where no option lies on the path, the one closest to the goal is right.

    Args:
        world: the world to walk in.
        reference: (B, L) viewpoints, padded with -1.
        goal: (B,)
    """

    def __init__(self, world: World, reference: Tensor, goal: Tensor) -> None:
        super().__init__(world, goal)
        self._reference = reference

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        closest = super().__call__(request, space, distance)
        if request.type != GLOBAL:
            return closest
        reference = self._reference[request.episode]
        stop = request.options.shape[1] - 1
        match = request.viewpoint[:, :stop].unsqueeze(2) == reference.unsqueeze(1)  # (M, O, L)
        match &= (reference != NONE).unsqueeze(1) & request.options[:, :stop].unsqueeze(2)
        place = torch.arange(1, reference.shape[1] + 1, device=reference.device)
        index = (match * place).amax(dim=2)  # (M, O), 0 off the path
        best, option = index.max(dim=1)
        return torch.where((closest == stop) | (best == 0), closest, option)


def reference_index(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The place that comes last on the reference path."""
    del space
    return ReferenceIndex(world, episodes.path, episodes.goal)


class BestNDTW(ClosestToGoal):
    """EGP on R4R: the option after which the walk so far, gone on to it over known places, has the best nDTW.

    Stopping is one of the options: its walk is the one so far.

    Args:
        world: the world to walk in.
        reference: (B, L) viewpoints, padded with -1.
        goal: (B,)
    """

    def __init__(self, world: World, reference: Tensor, goal: Tensor) -> None:
        super().__init__(world, goal)
        self._reference = reference
        # (B, L) cost of warping the walk so far onto every beginning of the path; begins before the start
        self._cost = torch.full(reference.shape, torch.inf, dtype=torch.double, device=reference.device)

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """One more place of the walk."""
        away = self._away(viewpoint.unsqueeze(1), episodes).squeeze(1)
        before = self._cost[episodes]
        begins = before.isinf().all(dim=1, keepdim=True)
        self._cost[episodes] = torch.where(begins, away.cumsum(dim=1), warped(before, away))

    def _away(self, viewpoints: Tensor, episodes: Tensor) -> Tensor:
        """Metres to every point of the path, 0 at padding.  viewpoints: (M, P)  ->  (M, P, L)"""
        reference = self._reference[episodes].unsqueeze(1)
        metres = self._world.geodesic(viewpoints.clamp_min(0).unsqueeze(2), reference.clamp_min(0))
        return metres.masked_fill(reference == NONE, 0.0).double()

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        if request.type != GLOBAL or not isinstance(space, MemoryActions):
            return super().__call__(request, space, distance)
        episodes, memory = request.episode, space.memory
        here, rows = memory.here[episodes], torch.arange(len(episodes), device=request.episode.device)
        now = self._cost[episodes]  # (M, L)
        # the known way from here to a node ends with the node that the way back begins with
        before = memory.first[episodes, :, here].clamp_min(0)  # (M, N)
        away = self._away(memory.node[episodes], episodes)  # (M, N, L)
        at_node = torch.full_like(away, torch.inf)
        at_node[rows, here] = now
        for _ in range(int(memory.count[episodes].max()) - 1):
            at_node = warped(at_node.gather(1, before.unsqueeze(2).expand_as(away)), away)
            at_node[rows, here] = now
        slots = memory.subnode.shape[2]
        ways = self._away(request.viewpoint[:, :-1], episodes)  # (M, N * K, L)
        cost = warped(at_node.repeat_interleave(slots, dim=1), ways)
        cost = torch.cat([cost, now.unsqueeze(1)], dim=1)
        last = (self._reference[episodes] != NONE).sum(dim=1) - 1
        final = cost.gather(2, last.view(-1, 1, 1).expand(-1, cost.shape[1], 1)).squeeze(2)
        # of equals stopping is right, so that nobody goes on for nothing
        final[:, -1] -= 1e-6
        return final.masked_fill(~request.options, torch.inf).argmin(dim=1)


def warped(cost: Tensor, away: Tensor) -> Tensor:
    """One more place in dynamic time warping.

    cost: (..., L) of the walk before, for every beginning of the path  away: (..., L) metres  ->  (..., L)
    """
    best = torch.minimum(cost, torch.nn.functional.pad(cost[..., :-1], (1, 0), value=torch.inf))
    running = away.cumsum(dim=-1)
    return running + (best - running + away).cummin(dim=-1).values


def best_ndtw(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The place after which the walk fits the reference path best."""
    del space
    return BestNDTW(world, episodes.path, episodes.goal)


class LowLevelExpert(ClosestToGoal):
    """Turn to the next place of the shortest path, tilt to it, walk to it; stop at the goal."""

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        del distance
        if not isinstance(space, LowLevelActions):
            raise TypeError(f"{type(space).__name__} has no low-level actions to label")
        here = request.viewpoint[:, -1]
        label = low_level_expert(self._world, here, space.view[request.episode], self._goal[request.episode])
        # a step forward that would lead nowhere: the next place hides behind another one, so turn on
        blocked = (label == FORWARD) & ~request.options[:, FORWARD]
        return torch.where(blocked, RIGHT, label)


def low_level(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The low-level way to the goal."""
    del space
    return LowLevelExpert(world, episodes.goal)


class LowLevelPath(LowLevelExpert, RestOfPath):
    """The same towards the next point of the reference path."""


def low_level_path(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The low-level way along the rest of the reference path."""
    del space
    return LowLevelPath(world, episodes.path, passes_over=False)
