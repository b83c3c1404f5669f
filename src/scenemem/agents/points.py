"""What an agent knows when it decides: built in one place while acting, in one place over a finished rollout.

An agent scores a ``DecisionPoint`` and never learns which of the two built it; a test holds them equal for
every registered agent. Shape letters: B episodes, T steps, X observations, R decision steps, N nodes, K
candidate slots, H state width, W any width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar, overload

import torch
from torch import Tensor
from typing_extensions import Self

from scenemem.agents.actions import ActionSpace, with_memory
from scenemem.agents.environment import CandidateFeatures, Environment
from scenemem.agents.rollout import DecisionSteps, MemoryRecord, Rollout
from scenemem.models.attention import rows_of
from scenemem.models.language import PackedInstructions
from scenemem.models.packing import one_per_episode
from scenemem.models.reading import MemoryGraph
from scenemem.models.states import EpisodeSelection, StateLog
from scenemem.models.updater import DropoutMasks, State
from scenemem.simulator.panorama import Pose
from scenemem.world.geometry import view_heading
from scenemem.world.graph import NONE


class Selectable(Protocol):
    """A record whose rows can be selected."""

    def select(self, rows: Tensor, /) -> Self:
        """rows: (R,)"""


T = TypeVar("T")
SelectableT = TypeVar("SelectableT", bound=Selectable)

Columns = Callable[["Observations"], Mapping[str, Tensor]]
"""The agent's ``columns``: what it writes at the node it stands at, name -> (X, W)"""


@dataclass(frozen=True, eq=False)
class Observations:
    """X states, and what each agent saw when it made them."""

    environment: Environment
    state: State  # (X, ...) after the observation
    viewpoint: Tensor  # (X,)
    view: Tensor  # (X,) the view faced
    instructions: PackedInstructions  # read by the X rows
    episode: Tensor  # (X,) row of ``masks``
    masks: DropoutMasks
    earlier_lookup: Callable[[], Tensor]  # computes ``earlier``
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def feature_mask(self) -> Tensor:
        """(D,) environment dropout, the same for all views"""
        return self.masks.feature

    @cached_property
    def earlier(self) -> Tensor:
        """(X, H) the hidden states before the observation"""
        return self.earlier_lookup()

    @cached_property
    def candidates(self) -> CandidateFeatures:
        """The neighbours of every viewpoint as the agents see them."""
        return self.environment.candidates(self.viewpoint, self.view)

    def mask(self, name: str) -> Tensor:
        """The dropout masks of that name  ->  (X, W)"""
        return rows_of(self.masks[name], self.episode)

    def cached(self, compute: Callable[[Observations], T]) -> T:
        """What ``compute`` says about these observations, computed once."""
        if compute not in self.cache:
            self.cache[compute] = compute(self)
        result: T = self.cache[compute]
        return result


@dataclass(frozen=True, eq=False)
class DecisionPoint:
    """R decision steps: the state each agent decides with, what it sees, and what it remembers."""

    observations: Observations
    row: Tensor  # (R,) the observation that made the state
    graph: MemoryGraph | None  # None for agents without a memory

    @cached_property
    def state(self) -> State:
        """(R, ...)"""
        return self.observations.state.select(self.row)

    @property
    def environment(self) -> Environment:
        """The world and the features of its views."""
        return self.observations.environment

    @cached_property
    def viewpoint(self) -> Tensor:
        """(R,) where the agents stand"""
        return self.observations.viewpoint[self.row]

    @cached_property
    def view(self) -> Tensor:
        """(R,) the view they face"""
        return self.observations.view[self.row]

    @cached_property
    def heading(self) -> Tensor:
        """(R,) radians, clockwise from +y"""
        return view_heading(self.view)

    @property
    def feature_mask(self) -> Tensor:
        """(D,) environment dropout, the same for all views"""
        return self.observations.feature_mask

    def mask(self, name: str) -> Tensor:
        """The dropout masks of that name  ->  (R, W)"""
        return rows_of(self.observations.masks[name], self.observations.episode[self.row])

    def candidates(self) -> CandidateFeatures:
        """The neighbours of here as the agents see them; slots as in the options of an ``ACTION``."""
        return self.environment.candidates(self.viewpoint, self.view)

    def memory(self) -> MemoryGraph:
        """The memory graph of an agent that must have one."""
        if self.graph is None:
            raise TypeError("this agent decides over a memory, but its action space has none")
        return self.graph

    @overload
    def per_observation(self, compute: Callable[[Observations], Tensor]) -> Tensor: ...
    @overload
    def per_observation(self, compute: Callable[[Observations], SelectableT]) -> SelectableT: ...

    def per_observation(self, compute: Callable[[Observations], Any]) -> Any:
        """What depends on the state and the view alone, computed once per observation  ->  R rows of it

        Several decision steps may share an observation, and columns need it where nothing is decided.
        """
        value = self.observations.cached(compute)
        return rows_of(value, self.row) if isinstance(value, Tensor) else value.select(self.row)


def live_observations(
    environment: Environment, log: StateLog, selection: EpisodeSelection, pose: Pose, episodes: Tensor
) -> Observations:
    """While acting: the current states of some episodes, and where they stand.  episodes: (X,)"""
    instructions, masks = selection.select(episodes)
    rows = one_per_episode(len(episodes), episodes.device)
    return Observations(
        environment=environment,
        state=log.state.select(episodes),
        viewpoint=pose.viewpoint[episodes],
        view=pose.view[episodes],
        instructions=PackedInstructions(instructions, rows),
        episode=rows.episode,
        masks=masks,
        earlier_lookup=lambda: log.earlier[episodes],
    )


def live_point(
    observations: Observations, episodes: Tensor, deciding: Tensor, space: ActionSpace
) -> DecisionPoint:
    """While acting: those of ``episodes`` (X,), sorted, that decide at this step.  deciding: (R,), sorted"""
    row = torch.searchsorted(episodes, deciding)
    if space.memory is None:
        return DecisionPoint(observations, row, None)
    memory, ways = space.memory, with_memory(space)
    nodes = int(memory.count[deciding].max())
    here = memory.here[deciding]
    graph = MemoryGraph(
        places=observations.environment.places(memory.node[deciding, :nodes]),
        packing=one_per_episode(len(deciding), deciding.device),
        viewpoint=memory.node[deciding, :nodes],
        edge=memory.edge[deciding, :nodes, :nodes],
        count=memory.count[deciding],
        here=here,
        walk=memory.walk[deciding, here, :nodes],
        open_lookup=lambda: ways.open_ways(deciding)[:, :nodes],
        column_lookup=lambda name: memory.columns[name][deciding, :nodes],
    )
    return DecisionPoint(observations, row, graph)


def recorded_observations(environment: Environment, log: StateLog, rollout: Rollout) -> Observations:
    """Over a finished rollout: all states that were made, with their gradients."""
    packing, state = log.packing, log.stacked()
    where = (packing.episode, packing.step)

    def earlier() -> Tensor:
        row = torch.where(
            packing.step == 0,
            len(state.hidden) + packing.episode,
            packing.row[packing.episode, (packing.step - 1).clamp_min(0)],
        )
        return rows_of(torch.cat([state.hidden, log.instructions.hidden]), row)

    return Observations(
        environment=environment,
        state=state,
        viewpoint=rollout.viewpoint[where],
        view=rollout.view[where],
        instructions=PackedInstructions(log.instructions, packing),
        episode=packing.episode,
        masks=log.masks,
        earlier_lookup=earlier,
    )


def recorded_rows(observations: Observations, rollout: Rollout) -> Tensor:
    """(B, T) the observation that made the state of each episode at each step, 0 after the end"""
    packing = observations.instructions.packing
    return packing.row.gather(1, rollout.state_step.clamp_max(packing.steps - 1))


def recorded_point(
    observations: Observations, rollout: Rollout, steps: DecisionSteps, columns: Columns
) -> DecisionPoint:
    """Over a finished rollout: all its decision steps at once."""
    rows = recorded_rows(observations, rollout)
    where = (steps.episode, steps.step)
    memory = rollout.memory
    if memory is None:
        return DecisionPoint(observations, rows[where], None)
    environment, count = observations.environment, memory.count[where]
    # nodes that were found later are not there yet
    known = torch.arange(memory.node.shape[1], device=count.device) < count.unsqueeze(1)  # (R, N)

    def column(name: str) -> Tensor:
        values = observations.cached(columns)[name]
        last = _last_visit(memory, rollout.alive)[where]  # (R, N)
        written = rows_of(values, rows[steps.episode.unsqueeze(1), last.clamp_min(0)])
        return written.masked_fill((last < 0).unsqueeze(-1), 0.0)

    def open_ways() -> Tensor:
        viewpoint = memory.node.clamp_min(0)
        exists = environment.world.neighbour_mask[viewpoint] & (memory.node != NONE).unsqueeze(-1)
        ways = exists[steps.episode] & known.unsqueeze(-1)
        if memory.allow_revisits:
            return ways
        visited_as = _node_number(environment.world.neighbour[viewpoint], memory.node)[steps.episode]
        return ways & (visited_as >= count[:, None, None])

    graph = MemoryGraph(
        places=environment.places(memory.node),
        packing=steps.packing,
        viewpoint=memory.node[steps.episode].masked_fill(~known, NONE),
        edge=memory.edge[steps.episode] & known.unsqueeze(2) & known.unsqueeze(1),
        count=count,
        here=memory.here[where],
        walk=memory.walk[where],
        open_lookup=open_ways,
        column_lookup=column,
    )
    return DecisionPoint(observations, rows[where], graph)


def _last_visit(memory: MemoryRecord, alive: Tensor) -> Tensor:
    """The last step, up to each step, at which the agent stood at each node; -1 before  ->  (B, T, N)"""
    steps = torch.arange(alive.shape[1], device=alive.device).unsqueeze(-1)
    stood = memory.here.unsqueeze(-1) == torch.arange(memory.node.shape[1], device=alive.device)
    return torch.where(stood & alive.unsqueeze(-1), steps, -1).cummax(dim=1).values


def _node_number(viewpoint: Tensor, node: Tensor) -> Tensor:
    """Which node each viewpoint became; N where it never did.  (B, N, K), (B, N)  ->  (B, N, K)"""
    match = viewpoint.unsqueeze(-1) == node[:, None, None, :]
    return torch.where(match.any(dim=-1), match.int().argmax(dim=-1), node.shape[1])
