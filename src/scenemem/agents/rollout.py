"""What a rollout records: where every agent stood, what it could choose, what it chose, what was right.

A rollout knows no network and no loss; it is integers and distances. Outputs are what an agent says about it.
Shape letters: B episodes, T steps (one observation each), N nodes of a memory, M decisions, O options, R
decision steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scenemem.memory.scene_memory import SceneMemory
from scenemem.models.language import Packing
from scenemem.simulator.panorama import Pose
from scenemem.world.graph import NONE


@dataclass(frozen=True)
class DecisionType:
    """A kind of decision; what its options are does not change from agent to agent."""

    name: str
    over_nodes: bool
    """options are the nodes of the memory; otherwise candidate slots, and the last option stops"""
    learned: bool = True
    """scored by the agent's network and taught by losses"""
    aside: bool = False
    """on the side of the walk: reference paths say nothing about it, and its last option goes on with them"""
    names: tuple[str, ...] = ()
    """what the last options are called where they are no places"""

    def name_of(self, option: int, options: int) -> str | None:
        """What one of so many options is called; None for places."""
        number = option - options + len(self.names)
        return self.names[number] if number >= 0 else None

    def __str__(self) -> str:
        return self.name


FRONTIER = DecisionType("frontier", over_nodes=True)
"""Which visited place to go on from (paper, Eq. 13)."""
ACTION = DecisionType("action", over_nodes=False)
"""Which neighbour of here to go to, or stop (Eq. 14)."""
GLOBAL = DecisionType("global", over_nodes=False)
"""Which sub-node of the whole memory to go to, or stop, in one decision (Eqs. 10, 11)."""
FINAL = DecisionType("final", over_nodes=True, learned=False)
"""Which visited place to end at when all decisions are used up."""

DECISION_TYPES = (FRONTIER, ACTION, GLOBAL, FINAL)


@dataclass(frozen=True, eq=False)
class EpisodeIndex:
    """Some episodes of a batch, in rising order, as the host counts them and as the device indexes with them.

    Whoever needs some of them again asks the host, and the device is not waited for.
    """

    number: NDArray[np.int64]  # (M,)
    index: Tensor  # (M,) the same numbers on the device

    @classmethod
    def of(cls, index: Tensor) -> EpisodeIndex:
        """From the device; waits for it.  index: (M,)"""
        return cls(index.cpu().numpy(), index)

    def __len__(self) -> int:
        return len(self.number)

    def where(self, chosen: NDArray[np.bool_]) -> EpisodeIndex:
        """Those of them that are ``chosen`` (M,); all of them as they are when all are."""
        if chosen.all():
            return self
        number = self.number[chosen]
        return EpisodeIndex(number, to_device(number, self.index.device))

    def rows_of(self, others: EpisodeIndex) -> Tensor | None:
        """Where ``others`` (R,), who are all among them, stand  ->  (R,); None when they are the same"""
        if np.array_equal(self.number, others.number):
            return None
        return to_device(np.searchsorted(self.number, others.number), self.index.device)


def to_device(number: NDArray[np.int64], device: torch.device) -> Tensor:
    """Numbers the host knows, as an index on a device, which is not waited for."""
    return torch.from_numpy(number).to(device, non_blocking=True)


class Lanes:
    """Which episodes walk now: one that is over makes room for the next one that waits.

    Args:
        episodes: how many there are.
        at_once: how many may walk at the same time; all when None.
        max_steps: observations before an episode is cut off; a number, or (B,).
        device: of the indices.
    """

    def __init__(
        self, episodes: int, at_once: int | None, max_steps: int | Tensor, device: torch.device
    ) -> None:
        self.active = EpisodeIndex.of(torch.arange(0, device=device))
        self.begun = np.zeros(episodes, dtype=np.int64)  # the step at which each episode began
        self._waiting = np.arange(episodes)
        self._at_once = episodes if at_once is None else at_once
        self._limit = torch.as_tensor(max_steps).expand(episodes).cpu().numpy()

    def refilled(self, done: Tensor, step: int) -> Tensor:
        """Those that are ``done`` (B,) leave, others begin at ``step``  ->  (B,) done, without newcomers"""
        self.active = self.active.where(~done.cpu().numpy()[self.active.number])
        room = self._at_once - len(self.active)
        if not len(self._waiting) or room <= 0:
            return done
        newcomers, self._waiting = np.split(self._waiting, [room])
        self.begun[newcomers] = step
        number = np.concatenate([self.active.number, newcomers])
        self.active = EpisodeIndex(number, to_device(number, done.device))
        return done.index_fill(0, self.active.index, False)

    def not_cut_off(self, step: int) -> EpisodeIndex:
        """The active episodes that may observe once more after ``step``."""
        number = self.active.number
        return self.active.where(self._limit[number] > step + 1 - self.begun[number])

    @property
    def over(self) -> int:
        """How many episodes have ended."""
        return len(self.begun) - len(self._waiting) - len(self.active)


@dataclass(frozen=True)
class DecisionRequest:
    """A decision some episodes have to take now."""

    type: DecisionType
    episode: Tensor  # (M,) index into the batch
    options: Tensor  # (M, O) bool, what may be chosen
    viewpoint: Tensor  # (M, O) where each option leads
    listed: EpisodeIndex | None = None  # the episodes, where the host knows them

    def select(self, rows: Tensor) -> DecisionRequest:
        """The request to some of the episodes only.  rows: (R,)"""
        return DecisionRequest(self.type, self.episode[rows], self.options[rows], self.viewpoint[rows])

    @cached_property
    def episodes(self) -> EpisodeIndex:
        """The episodes as a list."""
        return EpisodeIndex.of(self.episode) if self.listed is None else self.listed

    def stops(self, choice: Tensor) -> Tensor:
        """Whether a choice ends the episode.  (M,)  ->  (M,) bool"""
        if self.type.over_nodes or self.type.aside:
            return torch.zeros_like(choice, dtype=torch.bool)
        return choice == self.stop

    @property
    def stop(self) -> int:
        """The last option, which stops; decisions over nodes have none."""
        return self.options.shape[1] - 1


@dataclass(frozen=True)
class Decisions:
    """All decisions of one type in a rollout, one row each."""

    episode: Tensor  # (M,) index into the batch
    step: Tensor  # (M,)
    order: Tensor  # (M,) counts the requests of the rollout, so it sorts the decisions of an episode
    options: Tensor  # (M, O) bool
    choice: Tensor  # (M,) option taken
    label: Tensor  # (M,) option that would have been right; -1 when unknown
    before: Tensor  # (M,) metres to the goal before the decision; nan when the goal is unknown
    after: Tensor  # (M,) metres to the goal at the place chosen, or where the walk was cut off on its way
    stops: Tensor  # (M,) bool, the choice ends the episode

    def select(self, rows: Tensor) -> Decisions:
        """Some of the decisions.  rows: (R,)"""
        return Decisions(*(getattr(self, item.name)[rows] for item in fields(self)))

    def renumbered(self, number: Tensor) -> Decisions:
        """The decisions of episodes that have a new number, under it.  number: (B,), -1 for none"""
        kept = self.select((number[self.episode] != NONE).nonzero().squeeze(1))
        return replace(kept, episode=number[kept.episode])


@dataclass(frozen=True)
class DecisionSteps:
    """When something was decided: an episode that decides twice at a step has one decision step."""

    episode: Tensor  # (R,)
    step: Tensor  # (R,)
    packing: Packing  # of each episode, numbered from 0, because many steps of a walk decide nothing
    of: dict[DecisionType, Tensor]  # (M,) the decision step of every decision

    @classmethod
    def packed(
        cls, episode: Tensor, step: Tensor, episodes: int, of: dict[DecisionType, Tensor]
    ) -> DecisionSteps:
        """With the packing of steps that stand episode after episode."""
        many = torch.bincount(episode, minlength=episodes)
        place = torch.arange(len(episode), device=episode.device) - (many.cumsum(0) - many)[episode]
        return cls(episode, step, Packing(episode, place, episodes, int(many.max())), of)

    def some(self, rows: Tensor) -> DecisionSteps:
        """Some of the steps, without the decisions taken there.  rows: (r,), in rising order"""
        return DecisionSteps.packed(self.episode[rows], self.step[rows], self.packing.episodes, {})


@dataclass(frozen=True)
class MemoryRecord:
    """The memories at the end of a rollout; at step t an episode knows its first ``count[t]`` nodes."""

    node: Tensor  # (B, N) viewpoint, -1 where empty
    edge: Tensor  # (B, N, N) bool
    here: Tensor  # (B, T) node the agent stands at
    count: Tensor  # (B, T) nodes known
    walk: Tensor  # (B, T, N) metres over known edges from here to every node
    allow_revisits: bool  # whether the agents might hop to visited places
    notes: dict[str, Tensor] = field(default_factory=dict)  # (B, T, W) what the action space noted, by name

    def first(self, nodes: int) -> MemoryRecord:
        """Without the nodes that were found later."""
        return replace(
            self,
            node=self.node[:, :nodes],
            edge=self.edge[:, :nodes, :nodes],
            walk=self.walk[:, :, :nodes],
        )


@dataclass(frozen=True)
class Rollout:
    """A batch of walks with every observation and every decision."""

    viewpoint: Tensor  # (B, T) where the agent stands
    view: Tensor  # (B, T) which view it faces
    alive: Tensor  # (B, T) bool, the walk goes on at this step; true first, false after the end
    state_step: Tensor  # (B, T) the step whose observation made the state: this one, or a restored one
    stopped: Tensor  # (B,) bool, ended by the agent's own decision; false when the walk was cut off
    decisions: dict[DecisionType, Decisions]
    memory: MemoryRecord | None  # None for agents without a memory

    def decision_steps(self) -> DecisionSteps:
        """When learned decisions were taken; there must be one."""
        tables = {kind: table for kind, table in self.decisions.items() if kind.learned}
        episodes, steps = self.alive.shape
        moment, number = torch.unique(
            torch.cat([table.episode * steps + table.step for table in tables.values()]), return_inverse=True
        )
        of = number.split([len(table.episode) for table in tables.values()])
        return DecisionSteps.packed(
            moment // steps, moment % steps, episodes, dict(zip(tables, of, strict=True))
        )

    def select(self, episodes: Tensor) -> Rollout:
        """Some episodes, in the given order, without steps that none of them reaches.  episodes: (b,)"""
        steps = int(self.length[episodes].max()) if len(episodes) else 0
        number = torch.full_like(self.viewpoint[:, 0], NONE)
        number[episodes] = torch.arange(len(episodes), device=episodes.device)
        decisions = {kind: table.renumbered(number) for kind, table in self.decisions.items()}
        memory = self.memory
        if memory is not None:
            memory = MemoryRecord(
                memory.node[episodes],
                memory.edge[episodes],
                memory.here[episodes, :steps],
                memory.count[episodes, :steps],
                memory.walk[episodes, :steps],
                memory.allow_revisits,
                {name: values[episodes, :steps] for name, values in memory.notes.items()},
            )
        return Rollout(
            viewpoint=self.viewpoint[episodes, :steps],
            view=self.view[episodes, :steps],
            alive=self.alive[episodes, :steps],
            state_step=self.state_step[episodes, :steps],
            stopped=self.stopped[episodes],
            decisions={kind: table for kind, table in decisions.items() if len(table.episode)},
            memory=memory,
        )

    @property
    def length(self) -> Tensor:
        """(B,) observations per episode."""
        return self.alive.sum(dim=1)

    @property
    def walked(self) -> Tensor:
        """(B, T) every viewpoint passed, padded with -1"""
        return self.viewpoint.masked_fill(~self.alive, NONE)

    @property
    def jumps(self) -> Tensor:
        """(B,) frontier decisions that left the current place"""
        jumps = torch.zeros_like(self.viewpoint[:, 0])
        if FRONTIER in self.decisions and self.memory is not None:
            table = self.decisions[FRONTIER]
            left = table.choice != self.memory.here[table.episode, table.step]
            jumps.index_add_(0, table.episode, left.long())
        return jumps


@dataclass(frozen=True)
class Outputs:
    """What an agent says about a rollout, with gradients: what losses are functions of."""

    logits: dict[DecisionType, Tensor]  # (M, O), -inf where there is no option
    heads: dict[str, Tensor]  # name -> (B, T, ...) at every step, 0 after the end

    def select(self, rollout: Rollout, episodes: Tensor) -> Outputs:
        """What it says about some episodes of ``rollout``, matching ``rollout.select(episodes)``.

        episodes: (b,), in rising order
        """
        chosen = torch.zeros_like(rollout.alive[:, 0]).index_fill_(0, episodes, True)
        rows = {kind: chosen[rollout.decisions[kind].episode].nonzero().squeeze(1) for kind in self.logits}
        steps = int(rollout.length[episodes].max()) if len(episodes) else 0
        return Outputs(
            {kind: self.logits[kind][rows[kind]] for kind in rows if len(rows[kind])},
            {name: values[episodes, :steps] for name, values in self.heads.items()},
        )


class Recorder:
    """Collects steps and decisions while a rollout is under way; nothing is computed before its end."""

    def __init__(self) -> None:
        self._steps: list[list[Tensor]] = []
        self._notes: tuple[str, ...] = ()
        self._requests: list[tuple[int, DecisionRequest, Tensor, Tensor, Tensor]] = []

    def step(
        self, pose: Pose, state_step: Tensor, memory: SceneMemory | None, notes: Mapping[str, Tensor]
    ) -> None:
        """One step of all episodes: where they stand, which step made their states, what they remember."""
        columns = [pose.viewpoint, pose.view, pose.done, state_step.clone()]
        if memory is not None:
            here = memory.here.clone()
            rows = here.view(-1, 1, 1).expand(-1, 1, memory.walk.shape[2])
            columns += [here, memory.count.clone(), memory.walk.gather(1, rows).squeeze(1)]
            columns += [values.clone() for values in notes.values()]
            self._notes = tuple(notes)
        self._steps.append(columns)

    def decision(self, request: DecisionRequest, choice: Tensor, label: Tensor, distance: Tensor) -> None:
        """One answered request.

        choice, label: (M,)  distance: (M, 1 + O) metres to the goal from here and from every option
        """
        self._requests.append((len(self._steps) - 1, request, choice, label, distance))

    def finished(
        self, memory: SceneMemory | None, begun: NDArray[np.int64], *, end: Tensor, allow_revisits: bool
    ) -> Rollout:
        """The whole rollout.

        Args:
            memory: what the agents remember at its end.
            begun: (B,) the step at which every episode began; its first one in the rollout.
            end: (B,) metres to the goal from where every walk ended.
            allow_revisits: whether the agents might hop to visited places.
        """
        columns = [torch.stack(column, dim=1) for column in zip(*self._steps, strict=True)]
        if begun.any():
            columns = _from_the_beginning(columns, to_device(begun, end.device))
        viewpoint, view, done, state_step, *known = columns
        alive = ~done
        decisions = self._carried_out(
            viewpoint.gather(1, alive.sum(dim=1, keepdim=True) - 1).squeeze(1),
            end,
            to_device(begun, end.device),
        )
        if known and FINAL in decisions:
            decisions[FINAL] = _who_got_there(decisions[FINAL], known[0], alive)
        stops = torch.zeros_like(viewpoint[:, 0])
        for table in decisions.values():
            stops.index_add_(0, table.episode, table.stops.long())
        stopped = stops > 0
        if memory is None:
            return Rollout(viewpoint, view, alive, state_step, stopped, decisions, None)
        here, count, walk, *notes = known
        nodes = int(count.max())
        record = MemoryRecord(
            memory.node[:, :nodes],
            memory.edge[:, :nodes, :nodes],
            here,
            count,
            walk[:, :, :nodes],
            allow_revisits,
            dict(zip(self._notes, notes, strict=True)),
        )
        return Rollout(viewpoint, view, alive, state_step, stopped, decisions, record)

    def _carried_out(self, viewpoint: Tensor, end: Tensor, begun: Tensor) -> dict[DecisionType, Decisions]:
        """All decisions; one whose walk was cut off on its way leads to where the walk ended, not farther.

        viewpoint, end: (B,) where the walks ended, and the metres to the goal from there  begun: (B,)
        """
        decisions, targets = {}, {}
        for kind in dict.fromkeys(request.type for _, request, *_ in self._requests):
            table, targets[kind] = self._joined(kind)
            decisions[kind] = replace(table, step=table.step - begun[table.episode])
        last = torch.full_like(viewpoint, NONE)
        for table in decisions.values():
            last = last.scatter_reduce(0, table.episode, table.order, "amax")
        for kind, table in decisions.items():
            elsewhere = targets[kind] != viewpoint[table.episode]
            cut_off = (table.order == last[table.episode]) & elsewhere
            decisions[kind] = replace(table, after=torch.where(cut_off, end[table.episode], table.after))
        return decisions

    def _joined(self, kind: DecisionType) -> tuple[Decisions, Tensor]:
        """All decisions of one type, and the viewpoint each of them chose, (M,)."""
        rows = [(order, *row) for order, row in enumerate(self._requests) if row[1].type == kind]
        orders, steps, requests, *answers = zip(*rows, strict=True)
        choice, label, distance = (torch.cat(column) for column in answers)
        many = [len(request.episode) for request in requests]
        options, chosen = torch.cat([request.options for request in requests]), choice.unsqueeze(1)
        table = Decisions(
            episode=torch.cat([request.episode for request in requests]),
            step=to_device(np.repeat(steps, many), choice.device),
            order=to_device(np.repeat(orders, many), choice.device),
            options=options,
            choice=choice,
            label=label,
            before=distance[:, 0],
            after=distance[:, 1:].gather(1, chosen).squeeze(1),
            stops=requests[0].stops(choice),
        )
        viewpoint = torch.cat([request.viewpoint for request in requests])
        return table, viewpoint.gather(1, chosen).squeeze(1)


def _from_the_beginning(columns: list[Tensor], begun: Tensor) -> list[Tensor]:
    """Steps of a rollout as steps of each episode.  columns: those of ``Recorder.step``, (B, T, ...) each"""
    viewpoint, view, done, state_step, *known = columns
    steps = torch.arange(int((~done).sum(dim=1).max()), device=begun.device)
    step = begun.unsqueeze(1) + steps  # (B, t)
    last = done.shape[1] - 1
    row = torch.arange(len(begun), device=begun.device).unsqueeze(1), step.clamp_max(last)
    own_step = state_step[row] - begun.unsqueeze(1)
    return [viewpoint[row], view[row], done[row] | (step > last), own_step, *(item[row] for item in known)]


def _who_got_there(final: Decisions, here: Tensor, alive: Tensor) -> Decisions:
    """Final places end an episode only where the walk was not cut off on its way.  here, alive: (B, T)"""
    end = here.gather(1, alive.sum(dim=1, keepdim=True) - 1).squeeze(1)
    return replace(final, stops=end[final.episode] == final.choice)


def joined(rollouts: Sequence[Rollout]) -> Rollout:
    """Several rollouts of the same agent as one, episodes in the order given."""
    begin = [0, *accumulate(len(rollout.alive) for rollout in rollouts)]
    steps = max(rollout.alive.shape[1] for rollout in rollouts)
    kinds = dict.fromkeys(kind for rollout in rollouts for kind in rollout.decisions)
    memories = [rollout.memory for rollout in rollouts if rollout.memory is not None]
    return Rollout(
        viewpoint=_stacked([rollout.viewpoint for rollout in rollouts], steps),
        view=_stacked([rollout.view for rollout in rollouts], steps),
        alive=_stacked([rollout.alive for rollout in rollouts], steps),
        state_step=_stacked([rollout.state_step for rollout in rollouts], steps),
        stopped=torch.cat([rollout.stopped for rollout in rollouts]),
        decisions={kind: _joined_decisions(kind, rollouts, begin) for kind in kinds},
        memory=_joined_memories(memories, steps) if memories else None,
    )


def _joined_decisions(kind: DecisionType, rollouts: Sequence[Rollout], begin: Sequence[int]) -> Decisions:
    tables = [
        replace(rollout.decisions[kind], episode=rollout.decisions[kind].episode + first)
        for rollout, first in zip(rollouts, begin, strict=False)
        if kind in rollout.decisions
    ]
    return Decisions(*(torch.cat([getattr(t, item.name) for t in tables]) for item in fields(Decisions)))


def _joined_memories(memories: Sequence[MemoryRecord], steps: int) -> MemoryRecord:
    nodes = max(memory.node.shape[1] for memory in memories)
    return MemoryRecord(
        node=_stacked([memory.node for memory in memories], nodes, NONE),
        edge=torch.cat([_padded(memory.edge, nodes, nodes) for memory in memories]),
        here=_stacked([memory.here for memory in memories], steps),
        count=_stacked([memory.count for memory in memories], steps),
        walk=torch.cat([_padded(memory.walk, steps, nodes, torch.inf) for memory in memories]),
        allow_revisits=memories[0].allow_revisits,
        notes={
            name: torch.cat([_padded(memory.notes[name], steps, width) for memory in memories])
            for name, width in ((name, values.shape[2]) for name, values in memories[0].notes.items())
        },
    )


def _stacked(tables: Sequence[Tensor], width: int, pad: int = 0) -> Tensor:
    """(B, w) each  ->  (sum of B, width)"""
    return torch.cat(
        [torch.nn.functional.pad(table, (0, width - table.shape[1]), value=pad) for table in tables]
    )


def _padded(table: Tensor, rows: int, columns: int, pad: float = 0) -> Tensor:
    """(B, r, c)  ->  (B, rows, columns)"""
    return torch.nn.functional.pad(table, (0, columns - table.shape[2], 0, rows - table.shape[1]), value=pad)
