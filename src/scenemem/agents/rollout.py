"""What a rollout records: where every agent stood, what it could choose, what it chose, what was right.

A rollout that is learnt from also holds the logits of every decision and the heads of every observation, with
their gradients: losses are functions of it. Shape letters: B episodes, T steps (one observation each), M
decisions, O options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate

import torch
from torch import Tensor

from scenemem.world.graph import NONE, Pose


@dataclass(frozen=True)
class DecisionType:
    """A kind of decision; what its options are does not change from agent to agent."""

    name: str
    over_nodes: bool
    """options are the nodes of the memory; otherwise candidate slots, and the last option stops"""
    learned: bool = True
    """scored by the agent's network and taught by losses"""
    auxiliary: bool = False
    """beside the walk: reference paths have no label for it, and its last option goes on with them"""
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


@dataclass(frozen=True)
class DecisionRequest:
    """A decision some episodes have to take now."""

    type: DecisionType
    episode: Tensor  # (M,) index into the batch, in rising order, each at most once
    options: Tensor  # (M, O) bool, what may be chosen
    viewpoint: Tensor  # (M, O) where each option leads
    scores: Tensor | None = None  # (M, O) where they are known without the network

    def stops(self, choice: Tensor) -> Tensor:
        """Whether a choice ends the episode.  (M,)  ->  (M,) bool"""
        ends = not self.type.over_nodes and not self.type.auxiliary
        return choice == (self.options.shape[1] - 1 if ends else NONE)

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
    place: Tensor  # (M,) the viewpoint it leads to
    label: Tensor  # (M,) option that would have been right; -1 when unknown
    before: Tensor  # (M,) metres to the goal before the decision; nan when the goal is unknown
    after: Tensor  # (M,) metres to the goal at the place chosen, or where the walk was cut off on its way
    stops: Tensor  # (M,) bool, the choice ends the episode
    logits: Tensor  # (M, O) -inf where there is no option; (M, 0) where the policy has no scores


@dataclass(frozen=True)
class Rollout:
    """A batch of walks with every observation and every decision."""

    viewpoint: Tensor  # (B, T) where the agent stands
    view: Tensor  # (B, T) which view it faces
    alive: Tensor  # (B, T) bool, the walk goes on at this step; true first, false after the end
    stopped: Tensor  # (B,) bool, ended by the agent's own decision; false when the walk was cut off
    decisions: dict[DecisionType, Decisions]
    heads: dict[str, Tensor] = field(
        default_factory=dict
    )  # name -> (B, T, ...) at every step, 0 after the end

    @property
    def learned(self) -> dict[DecisionType, Decisions]:
        """The decisions that a network has scored."""
        return {
            kind: table for kind, table in self.decisions.items() if kind.learned and table.logits.shape[1]
        }

    def select(self, episodes: Tensor) -> Rollout:
        """Some episodes, in the given order, without steps that none of them reaches.  episodes: (b,)"""
        steps = int(self.length[episodes].max()) if len(episodes) else 0
        number = torch.full_like(self.viewpoint[:, 0], NONE)
        number[episodes] = torch.arange(len(episodes), device=episodes.device)
        tables = {}
        for kind, table in self.decisions.items():
            rows = (number[table.episode] != NONE).nonzero().squeeze(1)
            if len(rows):
                kept = Decisions(*(getattr(table, item.name)[rows] for item in fields(table)))
                tables[kind] = replace(kept, episode=number[kept.episode])
        return Rollout(
            viewpoint=self.viewpoint[episodes, :steps],
            view=self.view[episodes, :steps],
            alive=self.alive[episodes, :steps],
            stopped=self.stopped[episodes],
            decisions=tables,
            heads={name: values[episodes, :steps] for name, values in self.heads.items()},
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
        if FRONTIER in self.decisions:
            table = self.decisions[FRONTIER]
            left = table.place != self.viewpoint[table.episode, table.step]
            jumps.index_add_(0, table.episode, left.long())
        return jumps


@dataclass
class Recorder:
    """Collects steps and decisions of a rollout; tables are made at its end."""

    poses: list[Pose] = field(default_factory=list)  # of all episodes, step by step
    # step by step the episodes (M,) that have arrived, and the heads of their observations (M, ...) by name
    heads: list[tuple[Tensor, Mapping[str, Tensor]]] = field(default_factory=list)
    answers: dict[DecisionType, list[Decisions]] = field(default_factory=dict)
    requests: int = 0

    def decision(
        self, request: DecisionRequest, choice: Tensor, label: Tensor, distance: Tensor, logits: Tensor | None
    ) -> None:
        """One answered request.

        choice, label: (M,)  distance: (M, 1 + O) metres to the goal from here and from every option
        logits: (M, O), None where the policy has no scores
        """
        chosen, last = choice.unsqueeze(1), len(self.poses) - 1
        answers = Decisions(
            episode=request.episode,
            step=torch.full_like(choice, last),
            order=torch.full_like(choice, self.requests),
            options=request.options,
            choice=choice,
            place=request.viewpoint.gather(1, chosen).squeeze(1),
            label=label,
            before=distance[:, 0],
            after=distance[:, 1:].gather(1, chosen).squeeze(1),
            stops=request.stops(choice),
            logits=distance.new_empty(len(choice), 0) if logits is None else logits,
        )
        self.answers.setdefault(request.type, []).append(answers)
        self.requests += 1

    def finished(self, begun: Tensor, end: Tensor) -> Rollout:
        """The whole rollout.

        Args:
            begun: (B,) the step at which every episode began; its first one in the rollout.
            end: (B,) metres to the goal from where every walk ended.
        """
        viewpoint, view, done = (
            torch.stack([getattr(pose, name) for pose in self.poses], dim=1)
            for name in ("viewpoint", "view", "done")
        )
        lasts = (~done).sum(dim=1)
        steps = begun.unsqueeze(1) + torch.arange(int(lasts.max()), device=begun.device)  # (B, T)
        row = torch.arange(len(begun), device=begun.device).unsqueeze(1), steps.clamp_max(done.shape[1] - 1)
        alive = ~done[row] & (steps < done.shape[1])
        viewpoint, view = viewpoint[row], view[row]
        decisions = self._carried_out(viewpoint[row[0].squeeze(1), lasts - 1], end, begun)
        stops = torch.zeros_like(begun)
        for table in decisions.values():
            stops.index_add_(0, table.episode, table.stops.long())
        return Rollout(viewpoint, view, alive, stops > 0, decisions, self._stacked_heads(alive, begun))

    def _carried_out(self, last_place: Tensor, end: Tensor, begun: Tensor) -> dict[DecisionType, Decisions]:
        """All decisions; one whose walk was cut off on its way leads to where the walk ended, not farther.

        last_place, end: (B,) where the walks ended, and the metres to the goal from there  begun: (B,)
        """
        decisions = {kind: _concatenated(tables) for kind, tables in self.answers.items()}
        last = torch.full_like(last_place, NONE)
        for table in decisions.values():
            last = last.scatter_reduce(0, table.episode, table.order, "amax")
        for kind, table in decisions.items():
            arrived = table.place == last_place[table.episode]
            cut_off = (table.order == last[table.episode]) & ~arrived
            decisions[kind] = replace(
                table,
                step=table.step - begun[table.episode],
                after=torch.where(cut_off, end[table.episode], table.after),
                # a final place ends an episode only where the walk was not cut off on its way
                stops=arrived if kind == FINAL else table.stops,
            )
        return decisions

    def _stacked_heads(self, alive: Tensor, begun: Tensor) -> dict[str, Tensor]:
        """The heads of all steps as tables  ->  name: (B, T, ...), 0 after the end"""
        if not self.heads:
            return {}
        episodes = torch.cat([episodes for episodes, _ in self.heads])
        steps = torch.cat([torch.full_like(rows, step) for step, (rows, _) in enumerate(self.heads)])
        steps = steps - begun[episodes]
        stacked = {}
        for name in self.heads[0][1]:
            values = torch.cat([heads[name] for _, heads in self.heads])
            empty = values.new_zeros(*alive.shape, *values.shape[1:])
            stacked[name] = empty.index_put((episodes, steps), values)
        return stacked


def _concatenated(tables: Sequence[Decisions]) -> Decisions:
    """Decisions of one type, one after the other."""
    return Decisions(*(torch.cat([getattr(t, item.name) for t in tables]) for item in fields(Decisions)))


def joined(rollouts: Sequence[Rollout]) -> Rollout:
    """Several rollouts of the same agent as one, episodes in the order given, without heads."""
    begin = [0, *accumulate(len(rollout.alive) for rollout in rollouts)]
    steps = max(rollout.alive.shape[1] for rollout in rollouts)
    kinds = dict.fromkeys(kind for rollout in rollouts for kind in rollout.decisions)
    decisions = {
        kind: _concatenated(
            [
                replace(rollout.decisions[kind], episode=rollout.decisions[kind].episode + first)
                for rollout, first in zip(rollouts, begin, strict=False)
                if kind in rollout.decisions
            ]
        )
        for kind in kinds
    }

    def stacked(name: str) -> Tensor:
        tables = [getattr(rollout, name) for rollout in rollouts]
        return torch.cat([torch.nn.functional.pad(t, (0, steps - t.shape[1])) for t in tables])

    stopped = torch.cat([rollout.stopped for rollout in rollouts])
    return Rollout(stacked("viewpoint"), stacked("view"), stacked("alive"), stopped, decisions)
