"""What would have been right: label rules for teacher forcing and student forcing (paper, section 3.4).

Shape letters: M episodes that decide, O options, N nodes of a memory, K candidate slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace, with_memory
from scenemem.agents.rollout import ACTION, DecisionRequest
from scenemem.registry import Registry
from scenemem.simulator.panorama import reference_progress
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World

_DEAD_END = 1e4  # metres, more than any way; of nodes that lead nowhere the nearest is right
_WALK_PRICE = 1e-3  # per metre, only breaks ties between equally promising frontiers


class LabelRule(Protocol):
    """Says which option is right, from where the episodes stand and what they know."""

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """The episodes (M,) have just arrived at ``viewpoint`` (M,)."""

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """How far it still is from viewpoints (M, P) where episodes (M,) could be  ->  (M, P)"""

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """distance: (M, 1 + O) metres still to go from here and from each option  ->  (M,) option"""


class ClosestToGoal:
    """Student forcing: the place on the memory closest to the goal; stop at the goal.

    A frontier is judged by its best sub-node, because that is what going there is for; a node that is the
    goal itself comes before everything. Among the neighbours of here the one on the shortest way is right.
    """

    def __init__(self, world: World, goal: Tensor) -> None:
        self._world = world
        self._goal = goal

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """Nothing to remember: only distances count."""

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """To the goal  ->  (M, P)"""
        return self._world.geodesic(viewpoints.clamp_min(0), self._goal[episodes].unsqueeze(1))

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        if request.type.over_nodes:
            return self._frontier(request, space)
        stop = request.options.shape[1] - 1
        cost = distance[:, 1:-1].masked_fill(~request.options[:, :-1], torch.inf)
        if request.type == ACTION:
            cost = cost + self._world.neighbour_length[request.viewpoint[:, stop]]
        else:
            cost = cost + _WALK_PRICE * _walk_to_parents(request, space)
        # going on comes before stopping short of the goal, unless there is nowhere to go
        at_goal, nowhere = distance[:, 0] == 0.0, cost.isinf().all(dim=1)
        return torch.where((at_goal & request.options[:, stop]) | nowhere, stop, cost.argmin(dim=1))

    def _frontier(self, request: DecisionRequest, space: ActionSpace) -> Tensor:
        space = with_memory(space)
        episodes, here = request.episode, space.memory.here[request.episode]
        places = self._world.neighbour[request.viewpoint]  # (M, N, K)
        ahead = self._world.geodesic(places.clamp_min(0), self._goal[episodes, None, None])
        best_open = ahead.masked_fill(~space.open_ways(episodes), torch.inf).amin(dim=2)
        is_goal = request.viewpoint == self._goal[episodes].unsqueeze(1)
        if space.allow_revisits:  # a goal left behind is hopped to like any other place
            is_goal &= request.viewpoint == request.viewpoint.gather(1, here.unsqueeze(1))
        walk = space.memory.walk[episodes, here]
        cost = torch.where(is_goal, -1.0, best_open.clamp_max(_DEAD_END)) + _WALK_PRICE * walk
        return cost.masked_fill(~request.options, torch.inf).argmin(dim=1)


class RestOfPath(ClosestToGoal):
    """Student forcing for tasks that reward fidelity (R4R): reach all reference points, in their order.

    The next point is the goal until the last one is reached, so an episode off the path is led back to it;
    what is still to go is the way to the next point and the rest of the path.

    Args:
        world: the world to walk in.
        reference: (B, L) viewpoints, padded with -1.
        passes_over: a point where the episode has stood before counts as reached, for agents that do not
            revisit places.
    """

    def __init__(self, world: World, reference: Tensor, *, passes_over: bool) -> None:
        super().__init__(world, reference[:, 0].clone())
        self._reference = reference
        self._passes_over = passes_over
        exists = reference != NONE
        self._last = exists.sum(dim=1) - 1
        self._next = torch.zeros_like(self._last)
        self._stood = torch.zeros_like(exists)
        step = world.geodesic(reference[:, :-1].clamp_min(0), reference[:, 1:].clamp_min(0))
        after = step.masked_fill(~exists[:, 1:], 0.0).flip(1).cumsum(dim=1).flip(1)
        self._rest = torch.nn.functional.pad(after, (0, 1))  # (B, L) metres from each point to the end

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """Count the reference points reached, in order."""
        reference = self._reference[episodes]
        reached = reference_progress(reference, self._next[episodes], viewpoint)
        if self._passes_over:
            stood = self._stood[episodes] | (reference == viewpoint.unsqueeze(1))
            self._stood[episodes] = stood
            reached = _first_open(~stood & (reference != NONE), reached)
        self._next[episodes] = reached
        self._goal[episodes] = reference.gather(1, self._point(episodes).unsqueeze(1)).squeeze(1)

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """To the next point and along the rest of the path  ->  (M, P)"""
        rest = self._rest[episodes, self._point(episodes)]
        return super().metres(viewpoints, episodes) + rest.unsqueeze(1)

    def _point(self, episodes: Tensor) -> Tensor:
        """The point to go to; the last one when all are reached  ->  (M,)"""
        return torch.minimum(self._next[episodes], self._last[episodes])


class ReferencePath:
    """Teacher forcing: walk the reference path, point by point, and stop at its end.

    An agent that revisits no place passes over points it has already visited, where the path crosses itself,
    and chooses the frontier that leads on.
    """

    def __init__(self, world: World, reference: Tensor) -> None:
        self._world = world
        self._reference = reference  # (B, L) viewpoints, padded with -1
        self._progress = torch.zeros(len(reference), dtype=torch.long, device=reference.device)

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """Count the reference points reached, in order."""
        self._progress[episodes] = reference_progress(
            self._reference[episodes], self._progress[episodes], viewpoint
        )

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """To the end of the path  ->  (M, P)"""
        return self._world.geodesic(viewpoints.clamp_min(0), self._end(episodes))

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        del distance
        wanted = self._wanted(request, space)  # (M,) viewpoint, -1 at the end of the path
        if request.type.over_nodes:
            return self._frontier(request, space, wanted)
        match = (request.viewpoint == wanted.unsqueeze(1)) & request.options
        stop = request.options.shape[1] - 1
        if request.type == ACTION:
            # who may not stop where the path ends goes anywhere else
            end = torch.where(request.options[:, stop], stop, request.options.int().argmax(dim=1))
            return torch.where(match.any(dim=1), match.int().argmax(dim=1), end)
        walk = _walk_to_parents(request, space).masked_fill(~match[:, :stop], torch.inf)
        return torch.where(match.any(dim=1), walk.argmin(dim=1), stop)

    def _wanted(self, request: DecisionRequest, space: ActionSpace) -> Tensor:
        """The next reference point to go to  ->  (M,) viewpoint, -1 when there is none"""
        reference = self._reference[request.episode]
        points = torch.arange(reference.shape[1], device=reference.device)
        ahead = (points >= self._progress[request.episode].unsqueeze(1)) & (reference != NONE)
        if space.memory is not None and not space.allow_revisits:
            nodes = space.memory.node[request.episode]
            ahead &= ~(reference.unsqueeze(2) == nodes.unsqueeze(1)).any(dim=2)
        first = ahead.int().argmax(dim=1, keepdim=True)
        return torch.where(ahead.any(dim=1), reference.gather(1, first).squeeze(1), NONE)

    def _frontier(self, request: DecisionRequest, space: ActionSpace, wanted: Tensor) -> Tensor:
        """The nearest node that sees ``wanted``; at the end of the path the node that is the goal."""
        episodes, memory = request.episode, with_memory(space).memory
        sees = (self._world.neighbour[request.viewpoint] == wanted[:, None, None]).any(dim=2)
        right = torch.where(wanted.unsqueeze(1) == NONE, request.viewpoint == self._end(episodes), sees)
        right &= request.options
        right = torch.where(right.any(dim=1, keepdim=True), right, request.options)  # here is the nearest
        return memory.walk[episodes, memory.here[episodes]].masked_fill(~right, torch.inf).argmin(dim=1)

    def _end(self, episodes: Tensor) -> Tensor:
        """The last viewpoint of the path  ->  (M, 1)"""
        length = (self._reference[episodes] != NONE).sum(dim=1, keepdim=True)
        return self._reference[episodes].gather(1, length - 1)


class MixedRules:
    """Two rules for one rollout: some episodes are led by a teacher, the others walk by themselves.

    Args:
        forced: (B,) bool, true at episodes with a teacher.
        teacher: their rule.
        student: the rule of the others.
    """

    def __init__(self, forced: Tensor, teacher: LabelRule, student: LabelRule) -> None:
        self._forced = forced
        self._teacher = teacher
        self._student = student

    def arrive(self, viewpoint: Tensor, episodes: Tensor, /) -> None:
        """Tell the rule each episode follows."""
        for rule, rows in self._shared(episodes):
            rule.arrive(viewpoint[rows], episodes[rows])

    def __call__(self, request: DecisionRequest, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        label = torch.full_like(request.episode, NONE)
        for rule, rows in self._shared(request.episode):
            label[rows] = rule(request.select(rows), space, distance[rows])
        return label

    def metres(self, viewpoints: Tensor, episodes: Tensor, /) -> Tensor:
        """As students measure it; nothing is earned on the episodes with a teacher  ->  (M, P)"""
        return self._student.metres(viewpoints, episodes)

    def _shared(self, episodes: Tensor) -> list[tuple[LabelRule, Tensor]]:
        """The rules that have episodes among ``episodes`` (M,), with the rows of theirs."""
        forced = self._forced[episodes]
        parts = [
            (self._teacher, forced.nonzero().squeeze(1)),
            (self._student, (~forced).nonzero().squeeze(1)),
        ]
        return [(rule, rows) for rule, rows in parts if len(rows)]


MakeLabelRule = Callable[[World, EpisodeSet, ActionSpace], LabelRule]
"""Makes the label rule of a batch of episodes."""

LABEL_RULES: Registry[MakeLabelRule] = Registry("label rule")
"""Label rules by the name presets call them: what is right on an agent's own walks."""


@LABEL_RULES.register("goal")
def closest_to_goal(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The shortest way to the goal."""
    del space
    return ClosestToGoal(world, episodes.goal)


@LABEL_RULES.register("path")
def rest_of_path(world: World, episodes: EpisodeSet, space: ActionSpace) -> LabelRule:
    """The rest of the reference path."""
    return RestOfPath(world, episodes.path, passes_over=not space.allow_revisits)


def _first_open(is_open: Tensor, begin: Tensor) -> Tensor:
    """The first true column from ``begin`` (M,) on; the number of columns if none.  (M, L)  ->  (M,)"""
    columns = torch.arange(is_open.shape[1], device=is_open.device)
    ahead = is_open & (columns >= begin.unsqueeze(1))
    return torch.where(ahead.any(dim=1), ahead.int().argmax(dim=1), is_open.shape[1])


def _walk_to_parents(request: DecisionRequest, space: ActionSpace) -> Tensor:
    """Metres to the node each sub-node is seen from; several nodes may see one place.  ->  (M, N * K)"""
    memory = with_memory(space).memory
    walk = memory.walk[request.episode, memory.here[request.episode]]
    return walk.repeat_interleave(memory.subnode.shape[2], dim=1)
