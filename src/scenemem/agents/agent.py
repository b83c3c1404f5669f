"""The agent contract: one module that says how a state begins, how it observes, and how it scores decisions.

Everything else - walking, recording, building decision points, learning - is the framework's. What an agent
knows when it decides is a ``DecisionPoint``, built in one place while acting and in one place over a finished
rollout; a test holds the two equal for every registered agent.

Shape letters: B episodes, T steps, X observations, R decision steps, M decisions, O options, N nodes, K
candidate slots, H state width, W any width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from scenemem.agents.actions import ActionSpace, Limit, LocalActions, MemoryActions
from scenemem.agents.build import DataSizes, ModelConfig, Parts
from scenemem.agents.rollout import (
    ACTION,
    GLOBAL,
    DecisionSteps,
    DecisionType,
    EpisodeIndex,
    MemoryRecord,
    Outputs,
    Rollout,
)
from scenemem.errors import SettingError
from scenemem.features.store import CandidateFeatures, Environment
from scenemem.models.language import Instructions, OneEach, PackedInstructions, Packing
from scenemem.models.reading import MemoryGraph
from scenemem.models.recurrent import (
    DropoutMasks,
    FusedStateLog,
    LSTMUpdater,
    Observation,
    State,
    StateLog,
)
from scenemem.simulator.panorama import Pose
from scenemem.world.graph import NONE, World, view_heading

T = TypeVar("T")

Columns = Callable[["Observations"], Mapping[str, Tensor]]
"""The agent's ``columns``: what it writes at the node it stands at, name -> (X, W)"""


@dataclass(frozen=True, eq=False)
class Observations:
    """X states, and what each agent saw when it made them."""

    environment: Environment
    state: State  # (X, ...) after the observation
    viewpoint: Tensor  # (X,)
    previous: Tensor  # (X,) where the agent stood one step before; -1 at the start
    view: Tensor  # (X,) the view faced
    instructions: PackedInstructions  # read by the X rows
    episode: Tensor  # (X,) row of ``masks``
    masks: DropoutMasks
    feature_mask: Tensor  # (D,) environment dropout, the same for all views
    decision_mask: Tensor  # (X, H) dropout of the states that decide
    earlier_lookup: Callable[[], Tensor]  # computes ``earlier``
    cache: dict[Any, Any] = field(default_factory=dict)

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
        return embedding(self.episode, self.masks[name])

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
    state: State  # (R, ...)
    viewpoint: Tensor  # (R,) where the agents stand
    view: Tensor  # (R,) the view they face
    heading: Tensor  # (R,) radians, clockwise from +y
    feature_mask: Tensor  # (D,) environment dropout, the same for all views
    graph: MemoryGraph | None  # None for agents without a memory
    whole: bool = False  # every observation is decided with, in order

    @classmethod
    def of(cls, observations: Observations, row: Tensor | None) -> DecisionPoint:
        """Decision steps with the states that some observations made.  row: (R,); None for all, in order"""
        if row is None:
            return cls(
                observations=observations,
                row=torch.arange(len(observations.view), device=observations.view.device),
                state=observations.state,
                viewpoint=observations.viewpoint,
                view=observations.view,
                heading=view_heading(observations.view),
                feature_mask=observations.feature_mask,
                graph=None,
                whole=True,
            )
        view = observations.view[row]
        return cls(
            observations=observations,
            row=row,
            state=observations.state.select(row),
            viewpoint=observations.viewpoint[row],
            view=view,
            heading=view_heading(view),
            feature_mask=observations.feature_mask,
            graph=None,
        )

    def mask(self, name: str) -> Tensor:
        """The dropout masks of that name  ->  (R, W)"""
        return embedding(self.observations.episode[self.row], self.observations.masks[name])

    def candidates(self) -> CandidateFeatures:
        """The neighbours of here as the agents see them; slots as in the options of an ``ACTION``."""
        return self.observations.environment.candidates(self.viewpoint, self.view)

    def memory(self) -> MemoryGraph:
        """The memory graph of an agent that must have one."""
        if self.graph is None:
            raise TypeError("this agent decides over a memory, but its action space has none")
        return self.graph

    def per_observation(self, compute: Callable[[Observations], T]) -> T:
        """What depends on the state and the view alone, computed once per observation  ->  R rows of it

        ``compute`` returns a tensor, or a dataclass of tensors.

        Several decision steps may share an observation, and columns need it where nothing is decided.
        """
        value: Any = self.observations.cached(compute)
        if self.whole:
            rows: Any = value
        elif isinstance(value, Tensor):
            rows = embedding(self.row, value)
        else:
            rows = type(value)(*(embedding(self.row, getattr(value, item.name)) for item in fields(value)))
        result: T = rows
        return result


def live_observations(environment: Environment, log: StateLog, pose: Pose, episodes: Tensor) -> Observations:
    """While acting: the current states of some episodes, and where they stand.  episodes: (X,)"""
    return Observations(
        environment=environment,
        state=log.state.select(episodes),
        viewpoint=pose.viewpoint[episodes],
        previous=log.previous[episodes],
        view=pose.view[episodes],
        instructions=PackedInstructions(lambda: log.selection.instructions(episodes), OneEach.of(episodes)),
        episode=episodes,
        masks=log.masks,
        feature_mask=log.masks.feature,
        decision_mask=log.masks["decision"].index_select(0, episodes),
        earlier_lookup=lambda: log.earlier[episodes],
    )


def live_point(
    observations: Observations, episodes: EpisodeIndex, decides: EpisodeIndex, space: ActionSpace
) -> DecisionPoint:
    """While acting: those of ``episodes`` (X,) that decide at this step.  decides: (R,)"""
    point = DecisionPoint.of(observations, episodes.rows_of(decides))
    if not isinstance(space, MemoryActions):
        return point
    memory, deciding, count = space.memory, decides.index, space.nodes_known[decides.number]
    nodes = int(count.max())
    here = memory.here[deciding]
    node = memory.node[deciding, :nodes]
    graph = MemoryGraph(
        places=observations.environment.places(node, count),
        packing=OneEach.of(deciding),
        viewpoint=node,
        edge=memory.edge[deciding, :nodes, :nodes],
        count=memory.count[deciding],
        here=here,
        walk=memory.walk[deciding, here, :nodes],
        open_lookup=lambda: space.open_ways(deciding)[:, :nodes],
        column_lookup=lambda name: memory.columns[name][deciding, :nodes],
        note_lookup=lambda name: space.notes[name][deciding],
        known=count,
        edges=space.edges_known[decides.number, :nodes, :nodes],
    )
    return replace(point, graph=graph)


def recorded_observations(environment: Environment, log: StateLog, rollout: Rollout) -> Observations:
    """Over a finished rollout: all states that were made, with their gradients."""
    packing, state = log.packing, log.stacked()
    where = (packing.episode, packing.step)

    def earlier() -> Tensor:
        row = torch.where(
            packing.step == 0,
            len(state.hidden) + packing.episode,
            log.row_at[packing.episode, (packing.step - 1).clamp_min(0)],
        )
        return embedding(row, torch.cat([state.hidden, log.instructions.hidden]))

    return Observations(
        environment=environment,
        state=state,
        viewpoint=rollout.viewpoint[where],
        previous=_previous(rollout, packing),
        view=rollout.view[where],
        instructions=PackedInstructions(lambda: log.instructions, packing),
        episode=packing.episode,
        masks=log.masks,
        feature_mask=log.masks.feature,
        decision_mask=embedding(packing.episode, log.masks["decision"]),
        earlier_lookup=earlier,
    )


def _previous(rollout: Rollout, packing: Packing) -> Tensor:
    """Where the agents stood one step before every observation; -1 at the start  ->  (X,)"""
    before = rollout.viewpoint[packing.episode, (packing.step - 1).clamp_min(0)]
    return torch.where(packing.step == 0, NONE, before)


def recorded_rows(log: StateLog, rollout: Rollout) -> Tensor:
    """(B, T) the observation that made the state of each episode at each step; any after the end"""
    steps = rollout.state_step.clamp_max(log.row_at.shape[1] - 1)
    return log.row_at.gather(1, steps).clamp_min(0)


def recorded_point(
    observations: Observations, rollout: Rollout, steps: DecisionSteps, rows: Tensor, columns: Columns
) -> DecisionPoint:
    """Over a finished rollout: all its decision steps at once.  rows: (B, T), see ``recorded_rows``"""
    where = (steps.episode, steps.step)
    memory, point = rollout.memory, DecisionPoint.of(observations, rows[where])
    if memory is None:
        return point
    environment, count = observations.environment, memory.count[where]
    # nodes that were found later are not there yet
    known = torch.arange(memory.node.shape[1], device=count.device) < count.unsqueeze(1)  # (R, N)

    def column(name: str) -> Tensor:
        values = observations.cached(columns)[name]
        last = _last_visit(memory, rollout.alive)[where]  # (R, N)
        written = embedding(rows[steps.episode.unsqueeze(1), last.clamp_min(0)], values)
        return written.masked_fill((last < 0).unsqueeze(-1), 0.0)

    def ways(name: str, row: Tensor, node: Tensor, slot: Tensor) -> Tensor:
        values, slots = observations.cached(columns)[name], environment.world.neighbour.shape[1]
        last = _last_visit(memory, rollout.alive)[steps.episode[row], steps.step[row], node]
        entry = rows[steps.episode[row], last] * slots + slot
        return embedding(entry, values.reshape(len(values) * slots, -1))

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
        note_lookup=lambda name: memory.notes[name][where],
        way_lookup=ways,
    )
    return replace(point, graph=graph)


def _last_visit(memory: MemoryRecord, alive: Tensor) -> Tensor:
    """The last step, up to each step, at which the agent stood at each node; -1 before  ->  (B, T, N)"""
    steps = torch.arange(alive.shape[1], device=alive.device).unsqueeze(-1)
    stood = memory.here.unsqueeze(-1) == torch.arange(memory.node.shape[1], device=alive.device)
    return torch.where(stood & alive.unsqueeze(-1), steps, -1).cummax(dim=1).values


def _node_number(viewpoint: Tensor, node: Tensor) -> Tensor:
    """Which node each viewpoint became; N where it never did.  (B, N, K), (B, N)  ->  (B, N, K)"""
    match = viewpoint.unsqueeze(-1) == node[:, None, None, :]
    return torch.where(match.any(dim=-1), match.int().argmax(dim=-1), node.shape[1])


Scores = Tensor | Mapping[DecisionType, Tensor]
"""Logits of every decision an agent may face, by type; a tensor alone stands for its actions."""


@dataclass(frozen=True)
class Explanation:
    """Why an agent scored R decision steps as it did, for viewers; agents fill in what they have."""

    words: Mapping[str, Tensor] = field(default_factory=dict)  # name of an attention -> (R, L)
    confidence: Mapping[DecisionType, Tensor] = field(default_factory=dict)  # (R, O, 2) by view, by direction
    mix: Mapping[DecisionType, Tensor] = field(default_factory=dict)  # (R, 2) their weights in the logit
    numbers: Mapping[str, Tensor] = field(default_factory=dict)  # (R,) anything else worth showing, by name


class Agent(nn.Module, ABC):
    """An agent's parameters, and what it does with them.

    Write ``score`` for a new agent; override the others where it differs.

    Args:
        config: sizes and dropout.
        sizes: what the data decides.
        parts: encoder, state updater and critic.
    """

    score_in_parts = 1
    """Decision steps of a rollout are scored in this many parts, those with small memories first.

    Memories of a part are padded to its largest, so agents that do much with every node are faster so.
    """

    follows_reference = True
    """Whether a reference path says what to choose. It does not for who turns and steps: labels teach it."""

    def __init__(self, config: ModelConfig, sizes: DataSizes, parts: Parts) -> None:
        super().__init__()
        self.config = config
        self.visual = sizes.visual
        self.encoder = parts.encoder
        self.updater = parts.updater
        self.critic = parts.critic

    @abstractmethod
    def score(self, point: DecisionPoint) -> Scores:
        """The logits of R decision steps: (R, K + 1) for actions, (R, N) for frontiers, (R, N * K + 1) for
        global decisions; options that cannot be chosen may hold anything.
        """

    def initial_state(self, instructions: Instructions) -> State:
        """The states before the first observation."""
        return self.updater.initial_state(instructions)

    def observe(self, state: Any, observation: Observation) -> State:
        """The states after an observation."""
        after: State = self.updater(state, observation)
        return after

    def heads(self, observations: Observations) -> dict[str, Tensor]:
        """Named outputs of every observation that losses may use  ->  name: (X, ...)"""
        return {"value": self.critic(observations.state.hidden)}

    def columns(self, observations: Observations) -> dict[str, Tensor]:
        """What to write at the node each agent stands at; ``graph.column(name)`` reads it at all nodes.

        ->  name: (X, W), without gradients
        """
        del observations
        return {}

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """A fresh action space for a rollout.

        Args:
            world: where to walk.
            episodes: how many at once.
            max_decisions: decisions an episode may take.
            learning: the walks are learnt from: they are cut off at their end, for the critic to judge.
        """
        del learning
        return LocalActions(world, episodes, max_decisions)

    def word_attention(self, observations: Observations) -> dict[str, Tensor]:
        """Which words every observation attends to, for viewers  ->  name: (X, L)"""
        return observations.state.attention

    def explain(self, point: DecisionPoint) -> Explanation:
        """Why the scores are what they are."""
        return Explanation(self.words_at(point))

    def words_at(self, point: DecisionPoint) -> dict[str, Tensor]:
        """The word attention of the observations decided with  ->  name: (R, L)"""
        attention = self.word_attention(point.observations)
        return {name: weights[point.row] for name, weights in attention.items()}

    def dropout_masks(self, episodes: int, own: Tensor | None = None) -> DropoutMasks:
        """Dropout masks for ``episodes`` walks, or those ``own`` (B,) among them; ones when evaluating."""
        device = next(self.parameters()).device
        rate = self.config.dropout if self.training else 0.0
        feature_rate = self.config.feature_dropout if self.training else 0.0

        def kept(*shape: int, dropped: float = rate) -> Tensor:
            return nn.functional.dropout(torch.ones(shape, device=device), dropped)

        feature = kept(self.visual, dropped=feature_rate)
        widths = {**self.updater.mask_widths(), "decision": self.config.width}
        masks = DropoutMasks(feature, {name: kept(episodes, width) for name, width in widths.items()})
        return masks if own is None else masks.select(own)

    def state_log(
        self,
        environment: Environment,
        instructions: Instructions,
        masks: DropoutMasks,
        *,
        learns: bool = False,
        fused: bool = False,
    ) -> StateLog:
        """The states at the beginning of walks.

        Args:
            environment: what can be seen.
            instructions: one per episode.
            masks: the dropout masks of the walks.
            learns: whether gradients will be asked for.
            fused: use the hand-written gradient where the updater has one and nothing of it is overridden.
        """
        plain = type(self).observe is Agent.observe and type(self).initial_state is Agent.initial_state
        if learns and fused and plain and type(self.updater) is LSTMUpdater:
            return FusedStateLog(self.updater, instructions, masks, environment.panorama)
        return StateLog(
            self.observe,
            self.initial_state(instructions),
            instructions,
            masks,
            environment.panorama,
            learns=learns,
            environment=environment,
        )

    def evaluate_actions(self, rollout: Rollout, log: StateLog, environment: Environment) -> Outputs:
        """The logits of all learned decisions of a rollout, and the heads at all its steps, with gradients.

        ``log`` holds the states of the rollout; ``follow`` makes them for walks somebody else made.
        """
        observations = recorded_observations(environment, log, rollout)
        steps = rollout.decision_steps()
        rows = recorded_rows(log, rollout)
        logits = self._scored(observations, rollout, steps, rows)
        masked = {}
        for kind, of_kind in steps.of.items():
            options = rollout.decisions[kind].options
            wide = widened(embedding(of_kind, logits[kind]), options, kind)
            masked[kind] = wide.masked_fill(~options, -torch.inf)
        over = ~rollout.alive
        heads = {name: values[rows] for name, values in self.heads(observations).items()}
        # 0 after the end, whatever the shape of a head
        heads = {
            name: values.masked_fill(over.view(*over.shape, *[1] * (values.dim() - 2)), 0.0)
            for name, values in heads.items()
        }
        return Outputs(masked, heads)

    def _scored(
        self, observations: Observations, rollout: Rollout, steps: DecisionSteps, rows: Tensor
    ) -> Mapping[DecisionType, Tensor]:
        """The scores of all decision steps, by type  ->  (R, O) each"""
        memory = rollout.memory
        if self.score_in_parts == 1 or memory is None:
            return by_type(self.score(recorded_point(observations, rollout, steps, rows, self.columns)))
        count = memory.count[steps.episode, steps.step]
        order = count.argsort(stable=True)
        parts = [part.sort().values for part in order.chunk(self.score_in_parts)]
        found: dict[DecisionType, list[Tensor]] = {kind: [] for kind in steps.of}
        for part in parts:
            known = replace(rollout, memory=memory.first(int(count[part].max())))
            point = recorded_point(observations, known, steps.some(part), rows, self.columns)
            scores = by_type(self.score(point))
            for kind, tables in found.items():
                tables.append(widened(scores[kind], rollout.decisions[kind].options, kind))
        back = torch.cat(parts).argsort()
        return {kind: torch.cat(tables)[back] for kind, tables in found.items()}


def by_type(scores: Scores) -> Mapping[DecisionType, Tensor]:
    """Scores by decision type, whichever way an agent wrote them."""
    return {ACTION: scores} if isinstance(scores, Tensor) else scores


def widened(logits: Tensor, options: Tensor, kind: DecisionType) -> Tensor:
    """Scores of the nodes known so far, padded to all nodes there could be; stop stays last.

    logits: (M, o)  options: (M, O)  ->  (M, O)

    Raises:
        SettingError: an agent scores more options than there are, or not every action.
    """
    missing = options.shape[1] - logits.shape[1]
    if not missing:
        return logits
    if missing < 0 or kind == ACTION:
        raise SettingError(
            f"score gives {logits.shape[1]} columns for decision '{kind}', expected {options.shape[1]}"
            + (": one per candidate slot, and stop last" if kind == ACTION else "")
        )
    if kind == GLOBAL:
        return torch.cat([nn.functional.pad(logits[:, :-1], (0, missing)), logits[:, -1:]], dim=1)
    return nn.functional.pad(logits, (0, missing))


def follow(log: StateLog, rollout: Rollout) -> None:
    """Let a fresh log observe what was seen on finished walks, in the same order."""
    for step in range(rollout.alive.shape[1]):
        alive, made = rollout.alive[:, step], rollout.state_step[:, step]
        new = (alive & (made == step)).nonzero().squeeze(1)
        if len(new):
            log.observe(new, rollout.viewpoint[new, step], rollout.view[new, step], step)
        known = (alive & (made != step)).nonzero().squeeze(1)
        if len(known):
            log.restore(known, made[known])
