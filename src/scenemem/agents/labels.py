"""What would have been right: label rules for teacher forcing and student forcing (paper, section 3.4).

Shape letters: M lanes asked, O options, N remembered places, K neighbour slots.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from scenemem.agents.rollout import Question
from scenemem.agents.spaces import ActionSpace, with_memory
from scenemem.simulator.panorama import reference_progress
from scenemem.world.graph import NONE, World

_DEAD_END = 1e4  # metres, more than any way; of nodes that lead nowhere the nearest is right
_WALK_PRICE = 1e-3  # per metre, only breaks ties between equally promising frontiers


class LabelRule(Protocol):
    """Says which option is right, from where the lanes stand and what they know."""

    def arrive(self, viewpoint: Tensor, lanes: Tensor, /) -> None:
        """Lanes ``lanes`` (M,) have just arrived at ``viewpoint`` (M,)."""

    def metres(self, places: Tensor, lanes: Tensor, /) -> Tensor:
        """How far it still is from places (M, P) that lanes (M,) could be at  ->  (M, P)"""

    def __call__(self, question: Question, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """distance: (M, 1 + O) metres still to go from here and from each option  ->  (M,) option"""


class ClosestToGoal:
    """Student forcing: the place on the memory closest to the goal; stop at the goal.

    A frontier is judged by its best sub-node, because that is what going there is for; a node that is the
    goal itself comes before everything. Among the neighbours of here the one on the shortest way is right.
    """

    def __init__(self, world: World, goal: Tensor) -> None:
        self._world = world
        self._goal = goal

    def arrive(self, viewpoint: Tensor, lanes: Tensor, /) -> None:
        """Nothing to remember: only distances count."""

    def metres(self, places: Tensor, lanes: Tensor, /) -> Tensor:
        """To the goal  ->  (M, P)"""
        return self._world.geodesic(places.clamp_min(0), self._goal[lanes].unsqueeze(1))

    def __call__(self, question: Question, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        if question.kind == "frontier":
            return self._frontier(question, space)
        stop = question.options.shape[1] - 1
        cost = distance[:, 1:-1].masked_fill(~question.options[:, :-1], torch.inf)
        if question.kind == "action":
            cost = cost + self._world.neighbour_length[question.place[:, stop]]
        else:
            cost = cost + _WALK_PRICE * _walk_to_parents(question, space)
        # going on comes before stopping short of the goal, unless there is nowhere to go
        at_goal, nowhere = distance[:, 0] == 0.0, cost.isinf().all(dim=1)
        return torch.where((at_goal & question.options[:, stop]) | nowhere, stop, cost.argmin(dim=1))

    def _frontier(self, question: Question, space: ActionSpace) -> Tensor:
        space = with_memory(space)
        lanes, here = question.lanes, space.memory.here[question.lanes]
        places = self._world.neighbour[question.place]  # (M, N, K)
        ahead = self._world.geodesic(places.clamp_min(0), self._goal[lanes, None, None])
        promise = ahead.masked_fill(~space.ways(lanes), torch.inf).amin(dim=2)
        is_goal = question.place == self._goal[lanes].unsqueeze(1)
        if space.revisits:  # a goal left behind is hopped to like any other place
            is_goal &= question.place == question.place.gather(1, here.unsqueeze(1))
        walk = space.memory.walk[lanes, here]
        cost = torch.where(is_goal, -1.0, promise.clamp_max(_DEAD_END)) + _WALK_PRICE * walk
        return cost.masked_fill(~question.options, torch.inf).argmin(dim=1)


class RestOfPath(ClosestToGoal):
    """Student forcing for tasks that reward fidelity (R4R): reach all reference points, in their order.

    The next point is the goal until the last one is reached, so a lane off the path is led back to it; what
    is still to go is the way to the next point and the rest of the path.

    Args:
        world: the world to walk in.
        reference: (B, L) viewpoints, padded with -1.
        passes_over: a point where the lane has stood before counts as reached, for agents that do not
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

    def arrive(self, viewpoint: Tensor, lanes: Tensor, /) -> None:
        """Count the reference points reached, in order."""
        reference = self._reference[lanes]
        reached = reference_progress(reference, self._next[lanes], viewpoint)
        if self._passes_over:
            stood = self._stood[lanes] | (reference == viewpoint.unsqueeze(1))
            self._stood[lanes] = stood
            reached = _first_open(~stood & (reference != NONE), reached)
        self._next[lanes] = reached
        self._goal[lanes] = reference.gather(1, self._point(lanes).unsqueeze(1)).squeeze(1)

    def metres(self, places: Tensor, lanes: Tensor, /) -> Tensor:
        """To the next point and along the rest of the path  ->  (M, P)"""
        rest = self._rest[lanes, self._point(lanes)]
        return super().metres(places, lanes) + rest.unsqueeze(1)

    def _point(self, lanes: Tensor) -> Tensor:
        """The point to go to; the last one when all are reached  ->  (M,)"""
        return torch.minimum(self._next[lanes], self._last[lanes])


class ReferencePath:
    """Teacher forcing: walk the reference path, point by point, and stop at its end.

    An agent that revisits no place passes over points it has already visited, where the path crosses itself,
    and chooses the frontier that leads on.
    """

    def __init__(self, world: World, reference: Tensor) -> None:
        self._world = world
        self._reference = reference  # (B, L) viewpoints, padded with -1
        self._progress = torch.zeros(len(reference), dtype=torch.long, device=reference.device)

    def arrive(self, viewpoint: Tensor, lanes: Tensor, /) -> None:
        """Count the reference points reached, in order."""
        self._progress[lanes] = reference_progress(self._reference[lanes], self._progress[lanes], viewpoint)

    def metres(self, places: Tensor, lanes: Tensor, /) -> Tensor:
        """To the end of the path  ->  (M, P)"""
        return self._world.geodesic(places.clamp_min(0), self._end(lanes))

    def __call__(self, question: Question, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        del distance
        wanted = self._wanted(question, space)  # (M,) viewpoint, -1 at the end of the path
        if question.kind == "frontier":
            return self._frontier(question, space, wanted)
        match = (question.place == wanted.unsqueeze(1)) & question.options
        stop = question.options.shape[1] - 1
        if question.kind == "action":
            # who may not stop where the path ends goes anywhere else
            end = torch.where(question.options[:, stop], stop, question.options.int().argmax(dim=1))
            return torch.where(match.any(dim=1), match.int().argmax(dim=1), end)
        walk = _walk_to_parents(question, space).masked_fill(~match[:, :stop], torch.inf)
        return torch.where(match.any(dim=1), walk.argmin(dim=1), stop)

    def _wanted(self, question: Question, space: ActionSpace) -> Tensor:
        """The next reference point to go to  ->  (M,) viewpoint, -1 when there is none"""
        reference = self._reference[question.lanes]
        points = torch.arange(reference.shape[1], device=reference.device)
        ahead = (points >= self._progress[question.lanes].unsqueeze(1)) & (reference != NONE)
        if space.memory is not None and not space.revisits:
            nodes = space.memory.node[question.lanes]
            ahead &= ~(reference.unsqueeze(2) == nodes.unsqueeze(1)).any(dim=2)
        first = ahead.int().argmax(dim=1, keepdim=True)
        return torch.where(ahead.any(dim=1), reference.gather(1, first).squeeze(1), NONE)

    def _frontier(self, question: Question, space: ActionSpace, wanted: Tensor) -> Tensor:
        """The nearest node that sees ``wanted``; at the end of the path the node that is the goal."""
        lanes, memory = question.lanes, with_memory(space).memory
        sees = (self._world.neighbour[question.place] == wanted[:, None, None]).any(dim=2)
        right = torch.where(wanted.unsqueeze(1) == NONE, question.place == self._end(lanes), sees)
        right &= question.options
        right = torch.where(right.any(dim=1, keepdim=True), right, question.options)  # here is the nearest
        return memory.walk[lanes, memory.here[lanes]].masked_fill(~right, torch.inf).argmin(dim=1)

    def _end(self, lanes: Tensor) -> Tensor:
        """The last viewpoint of the path  ->  (M, 1)"""
        length = (self._reference[lanes] != NONE).sum(dim=1, keepdim=True)
        return self._reference[lanes].gather(1, length - 1)


class TaughtLanes:
    """Two rules for one rollout: the first lanes have a teacher, the others walk by themselves.

    Args:
        taught: number of lanes with a teacher.
        teacher: their rule.
        student: the rule of the others.
    """

    def __init__(self, taught: int, teacher: LabelRule, student: LabelRule) -> None:
        self._taught = taught
        self._teacher = teacher
        self._student = student

    def arrive(self, viewpoint: Tensor, lanes: Tensor, /) -> None:
        """Tell the rule each lane follows."""
        for rule, rows in self._shared(lanes):
            rule.arrive(viewpoint[rows], lanes[rows])

    def __call__(self, question: Question, space: ActionSpace, distance: Tensor, /) -> Tensor:
        """(M,) option"""
        label = torch.full_like(question.lanes, NONE)
        for rule, rows in self._shared(question.lanes):
            label[rows] = rule(question.select(rows), space, distance[rows])
        return label

    def metres(self, places: Tensor, lanes: Tensor, /) -> Tensor:
        """As the students measure it; nobody asks about the lanes with a teacher  ->  (M, P)"""
        return self._student.metres(places, lanes)

    def _shared(self, lanes: Tensor) -> list[tuple[LabelRule, Tensor]]:
        """The rules that have lanes among ``lanes`` (M,), with the rows of theirs."""
        taught = lanes < self._taught
        parts = [
            (self._teacher, taught.nonzero().squeeze(1)),
            (self._student, (~taught).nonzero().squeeze(1)),
        ]
        return [(rule, rows) for rule, rows in parts if len(rows)]


def _first_open(is_open: Tensor, begin: Tensor) -> Tensor:
    """The first true column from ``begin`` (M,) on; the number of columns if none.  (M, L)  ->  (M,)"""
    columns = torch.arange(is_open.shape[1], device=is_open.device)
    ahead = is_open & (columns >= begin.unsqueeze(1))
    return torch.where(ahead.any(dim=1), ahead.int().argmax(dim=1), is_open.shape[1])


def _walk_to_parents(question: Question, space: ActionSpace) -> Tensor:
    """Metres to the node each sub-node is seen from; several nodes may see one place.  ->  (M, N * K)"""
    memory = with_memory(space).memory
    walk = memory.walk[question.lanes, memory.here[question.lanes]]
    return walk.repeat_interleave(memory.subnode.shape[2], dim=1)
