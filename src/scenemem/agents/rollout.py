"""What a rollout records: where every lane stood, what it could choose, what it chose, what was right.

Shape letters: B lanes, T ticks (one observation each), N remembered places, M decisions, O options.
A rollout knows no network and no loss; it is integers and distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from scenemem.memory.scene_memory import SceneMemory
from scenemem.models.seating import Seating
from scenemem.world.graph import NONE

Kind = Literal["frontier", "action", "anywhere", "last"]
"""Which decision: a frontier to go to, a neighbour of here, any sub-node on the map in one step, or the place
to end at when all others are used up."""


@dataclass(frozen=True)
class Question:
    """A decision some lanes have to take now."""

    kind: Kind
    lanes: Tensor  # (M,) lane numbers
    options: Tensor  # (M, O) bool, what may be chosen
    place: Tensor  # (M, O) viewpoint each option leads to
    walk: Tensor | None = None  # (M, O) metres to walk to each frontier

    @property
    def stop(self) -> int | None:
        """The option that ends the episode, always the last; None when a remembered place is asked for."""
        return None if self.kind in ("frontier", "last") else self.options.shape[1] - 1

    def select(self, rows: Tensor) -> Question:
        """The question to some of the lanes only.  rows: (R,)"""
        walk = None if self.walk is None else self.walk[rows]
        return Question(self.kind, self.lanes[rows], self.options[rows], self.place[rows], walk)


@dataclass(frozen=True)
class Decisions:
    """All decisions of one kind in a rollout, one row each."""

    lane: Tensor  # (M,)
    tick: Tensor  # (M,)
    order: Tensor  # (M,) counts the questions of the rollout, so it sorts the decisions of a lane
    options: Tensor  # (M, O) bool
    choice: Tensor  # (M,) option taken
    label: Tensor  # (M,) option that would have been right; -1 when unknown
    before: Tensor  # (M,) metres to the goal before the decision; nan when the goal is unknown
    after: Tensor  # (M,) metres to the goal at the place chosen
    stops: Tensor  # (M,) bool, the choice ends the episode
    walk: Tensor  # (M, O) metres to walk to each frontier; (M, 0) for other decisions

    def rows(self, first: int, last: int) -> Tensor:
        """Where the decisions of lanes first to last - 1 are  ->  (<= M,)"""
        return ((self.lane >= first) & (self.lane < last)).nonzero().squeeze(1)

    def part(self, first: int, last: int) -> Decisions:
        """The decisions of lanes first to last - 1, which are numbered from 0 again."""
        rows = self.rows(first, last)
        columns = {item.name: getattr(self, item.name)[rows] for item in fields(self)}
        return replace(Decisions(**columns), lane=columns["lane"] - first)


@dataclass(frozen=True)
class Moments:
    """When something was decided, lane by lane: a lane that decides twice at a tick does so at one moment.

    Shape letters: R moments.
    """

    lane: Tensor  # (R,)
    tick: Tensor  # (R,)
    seating: Seating  # the moments of each lane, numbered from 0, because many ticks of a walk decide nothing
    of: dict[Kind, Tensor]  # (M,) the moment of every decision


@dataclass(frozen=True)
class Map:
    """The memories at the end of a rollout; at tick t a lane knows its first ``count[t]`` nodes."""

    node: Tensor  # (B, N) viewpoint, -1 where empty
    edge: Tensor  # (B, N, N) bool
    at: Tensor  # (B, T) node the lane stands at
    count: Tensor  # (B, T) nodes known


@dataclass(frozen=True)
class Rollout:
    """A batch of walks with every observation and every decision."""

    viewpoint: Tensor  # (B, T) where the lane stands
    view: Tensor  # (B, T) which view it faces
    alive: Tensor  # (B, T) bool, the lane is under way at this tick; true first, false after the end
    seen: Tensor  # (B, T) the tick whose observation made the state: this one, or an earlier one it recalls
    decisions: dict[Kind, Decisions]
    map: Map | None  # None for agents without a memory

    def moments(self, kinds: Sequence[Kind]) -> Moments:
        """When decisions of some kinds were taken; there must be one."""
        tables = {kind: self.decisions[kind] for kind in kinds if kind in self.decisions}
        lanes, ticks = self.alive.shape
        moment, number = torch.unique(
            torch.cat([table.lane * ticks + table.tick for table in tables.values()]), return_inverse=True
        )
        lane = moment // ticks
        many = torch.bincount(lane, minlength=lanes)
        place = torch.arange(len(lane), device=lane.device) - (many.cumsum(0) - many)[lane]
        of = number.split([len(table.lane) for table in tables.values()])
        return Moments(
            lane,
            moment % ticks,
            Seating(lane, place, lanes, int(many.max())),
            dict(zip(tables, of, strict=True)),
        )

    def part(self, lanes: slice) -> Rollout:
        """Some lanes that stand together, without their map."""
        first, last, _ = lanes.indices(len(self.alive))
        decisions = {kind: table.part(first, last) for kind, table in self.decisions.items()}
        return Rollout(
            viewpoint=self.viewpoint[lanes],
            view=self.view[lanes],
            alive=self.alive[lanes],
            seen=self.seen[lanes],
            decisions=decisions,
            map=None,
        )

    @property
    def ticks(self) -> Tensor:
        """(B,) observations per lane."""
        return self.alive.sum(dim=1)

    @property
    def stopped(self) -> Tensor:
        """(B,) bool, ended by its own decision; false when the lane was cut off."""
        stopped = torch.zeros_like(self.alive[:, 0])
        for table in self.decisions.values():
            stopped[table.lane[table.stops]] = True
        return stopped


class Recorder:
    """Collects ticks and decisions while a rollout is under way."""

    def __init__(self) -> None:
        self._ticks: list[tuple[Tensor, ...]] = []
        self._rows: dict[Kind, list[tuple[Tensor, ...]]] = {}
        self._asked = 0

    def tick(self, *columns: Tensor) -> None:
        """One moment of all lanes: (B,) viewpoint, view, alive, seen and, with a memory, node and count."""
        self._ticks.append(columns)

    def decision(self, question: Question, choice: Tensor, label: Tensor, distance: Tensor) -> None:
        """One answered question.

        choice, label: (M,)  distance: (M, 1 + O) metres to the goal from here and from every option
        """
        tick = len(self._ticks) - 1
        chosen = distance[:, 1:].gather(1, choice.unsqueeze(1)).squeeze(1)
        stops = choice == (NONE if question.stop is None else question.stop)
        row = (
            question.lanes,
            torch.full_like(choice, tick),
            torch.full_like(choice, self._asked),
            question.options,
            choice,
            label,
            distance[:, 0],
            chosen,
            stops,
            distance.new_empty(len(choice), 0) if question.walk is None else question.walk,
        )
        self._rows.setdefault(question.kind, []).append(row)
        self._asked += 1

    def finished(self, memory: SceneMemory | None) -> Rollout:
        """The whole rollout; ``memory`` is what the lanes remember at its end."""
        columns = [torch.stack(column, dim=1) for column in zip(*self._ticks, strict=True)]
        decisions = {kind: _joined(rows) for kind, rows in self._rows.items()}
        viewpoint, view, alive, seen, *known = columns
        if memory is None:
            return Rollout(viewpoint, view, alive, seen, decisions, None)
        at, count = known
        if "last" in decisions:
            decisions["last"] = _who_got_there(decisions["last"], at, alive)
        nodes = int(count.max())
        final = Map(memory.node[:, :nodes], memory.edge[:, :nodes, :nodes], at, count)
        return Rollout(viewpoint, view, alive, seen, decisions, final)


def _who_got_there(last: Decisions, at: Tensor, alive: Tensor) -> Decisions:
    """Last places end an episode only where the lane was not cut off on its way.  at, alive: (B, T)"""
    end = at.gather(1, alive.sum(dim=1, keepdim=True) - 1).squeeze(1)
    return replace(last, stops=end[last.lane] == last.choice)


def _joined(rows: list[tuple[Tensor, ...]]) -> Decisions:
    return Decisions(*(torch.cat(column) for column in zip(*rows, strict=True)))


def joined(rollouts: Sequence[Rollout]) -> Rollout:
    """Several rollouts of the same agent as one, lanes in the order given."""
    begin = [0, *accumulate(len(rollout.alive) for rollout in rollouts)]
    ticks = max(rollout.alive.shape[1] for rollout in rollouts)
    kinds = dict.fromkeys(kind for rollout in rollouts for kind in rollout.decisions)
    maps = [rollout.map for rollout in rollouts if rollout.map is not None]
    return Rollout(
        viewpoint=_stacked([rollout.viewpoint for rollout in rollouts], ticks),
        view=_stacked([rollout.view for rollout in rollouts], ticks),
        alive=_stacked([rollout.alive for rollout in rollouts], ticks),
        seen=_stacked([rollout.seen for rollout in rollouts], ticks),
        decisions={kind: _joined_decisions(kind, rollouts, begin) for kind in kinds},
        map=_joined_maps(maps, ticks) if maps else None,
    )


def _joined_decisions(kind: Kind, rollouts: Sequence[Rollout], begin: Sequence[int]) -> Decisions:
    tables = [
        replace(rollout.decisions[kind], lane=rollout.decisions[kind].lane + first)
        for rollout, first in zip(rollouts, begin, strict=False)
        if kind in rollout.decisions
    ]
    return Decisions(*(torch.cat([getattr(t, item.name) for t in tables]) for item in fields(Decisions)))


def _joined_maps(maps: Sequence[Map], ticks: int) -> Map:
    nodes = max(known.node.shape[1] for known in maps)
    return Map(
        node=_stacked([known.node for known in maps], nodes, NONE),
        edge=torch.cat([_padded_edges(known.edge, nodes) for known in maps]),
        at=_stacked([known.at for known in maps], ticks),
        count=_stacked([known.count for known in maps], ticks),
    )


def _stacked(tables: Sequence[Tensor], width: int, pad: int = 0) -> Tensor:
    """(B, w) each  ->  (sum of B, width)"""
    return torch.cat(
        [torch.nn.functional.pad(table, (0, width - table.shape[1]), value=pad) for table in tables]
    )


def _padded_edges(edge: Tensor, nodes: int) -> Tensor:
    missing = nodes - edge.shape[1]
    return torch.nn.functional.pad(edge, (0, missing, 0, missing))
