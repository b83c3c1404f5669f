"""The agent contract: what an agent may choose, what it sees, and how it scores decisions.

Everything else - walking, recording, learning - is the framework's. Every action space works on episodes, one
hop per episode and step: one that walks does not hold up one that decides.

Shape letters: B episodes, T steps, X observations, M episodes that have arrived, R decision steps, O options,
N nodes, K candidate slots, H state width, W any width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from scenemem.agents.build import AgentModules, DataSizes, ModelConfig, lstm_modules
from scenemem.agents.rollout import ACTION, DecisionRequest, DecisionType, Rollout
from scenemem.features.store import CandidateFeatures
from scenemem.models.navigator import (
    CandidateScore,
    DropoutMasks,
    Observation,
    RolloutInputs,
    State,
    select_rows,
)
from scenemem.world.graph import STOP, Pose, World, view_heading

T = TypeVar("T")

Scores = Tensor | Mapping[DecisionType, Tensor]
"""Logits of every decision an agent may face, by type; a tensor alone stands for its actions."""

Decide = Callable[[DecisionRequest], Tensor]
"""Answers a request with the chosen option of every episode: (M,)."""

Limit = int | Tensor
"""How often episodes may decide: one number, or (B,)."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """Episodes that arrived at a step, and those that may decide; read from the device in one transfer."""

    episodes: Tensor  # (M,) that have just arrived somewhere, in rising order
    deciding: Tensor  # (R,) rows of them that may decide at this step
    nodes: Tensor | None = None  # (R,) node counts of their memories, on the host
    returned: Tensor | None = None  # (m,) rows of them that have again the state they had here, if any


class ActionSpace(ABC):
    """What can be chosen, and how a choice becomes hops.

    Args:
        world: the world to walk in.
        episodes: their number B.
        max_decisions: an episode that has decided this often is cut off where it stands; one number, or (B,).
    """

    memory: Any = None  # a ``SceneMemory`` in spaces that have one
    final_backtrack = False  # whether exhausted episodes choose a place to end at
    restores = False  # whether agents that come back to a place have the state again that they had there
    allow_revisits = True  # whether agents may hop to places where they have been before
    further_requests = 0  # to an episode, beyond two for every decision it may take

    def __init__(self, world: World, episodes: int, max_decisions: Limit) -> None:
        self.world = world
        limit = torch.as_tensor(max_decisions, device=world.device)
        self.decisions_left = limit.expand(episodes).clone()  # (B,)

    def arrive(self, pose: Pose, episodes: Tensor, goes_on: Tensor) -> tuple[Pose, Arrival]:
        """Some episodes (M,) have arrived where ``pose`` is.

        goes_on: (M,) bool, on the host: false where a walk ends here whatever is decided

        Returns:
            where the agents look from now on, and which episodes decide.
        """
        may = (self.decisions_left[episodes] > 0).cpu() & goes_on
        return pose, Arrival(episodes, may.nonzero().squeeze(1).to(episodes.device))

    @abstractmethod
    def step(self, pose: Pose, episodes: Tensor, decide: Decide) -> Tensor:
        """Let the deciding episodes (R,) choose  ->  (B,) slot to hop to, or STOP"""

    def answered(self, request: DecisionRequest, logits: Tensor) -> None:
        """A hook of spaces with ``final_backtrack``: places were scored.  logits: (M, O), stop last"""
        del request, logits

    def candidates_or_stop(self, episodes: Tensor, here: Tensor, open_slots: Tensor) -> DecisionRequest:
        """Options: the open candidate slots (R, K), then stop."""
        viewpoint = with_last(self.world.neighbour[here], here)
        stop = open_slots.new_ones(len(episodes))
        return DecisionRequest(ACTION, episodes, with_last(open_slots, stop), viewpoint)


class LocalActions(ActionSpace):
    """The neighbours of here, or stop."""

    def step(self, pose: Pose, episodes: Tensor, decide: Decide) -> Tensor:
        """Every episode chooses a neighbour or stops."""
        self.decisions_left[episodes] -= 1
        here = pose.viewpoint[episodes]
        action = torch.full_like(pose.viewpoint, STOP)
        request = self.candidates_or_stop(episodes, here, self.open_slots(episodes, here))
        choice = decide(request)
        return action.index_copy_(0, episodes, choice.masked_fill(request.stops(choice), STOP))

    def open_slots(self, episodes: Tensor, here: Tensor) -> Tensor:
        """The candidate slots that may be taken at ``here`` (R,)  ->  (R, K) bool"""
        del episodes
        return self.world.neighbour_mask[here]


def with_last(columns: Tensor, last: Tensor) -> Tensor:
    """columns: (M, O)  last: (M,)  ->  (M, O + 1)"""
    return torch.cat([columns, last.unsqueeze(1)], dim=1)


@dataclass(frozen=True, eq=False)
class Observations(Observation):
    """What X agents see where they have arrived, and their states after it."""

    state: State  # (X, ...) after the observation
    earlier: Tensor  # (X, H) the hidden states before it
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def feature_mask(self) -> Tensor:
        """(D,) environment dropout, the same for all views"""
        return self.masks.feature

    @property
    def decision_mask(self) -> Tensor:
        """(X, H) dropout of the states that decide"""
        return self.masks["decision"]

    @cached_property
    def candidates(self) -> CandidateFeatures:
        """The neighbours of every viewpoint as the agents see them."""
        return self.inputs.environment.candidates(self.viewpoint, self.view)

    def mask(self, name: str) -> Tensor:
        """The dropout masks of that name  ->  (X, W)"""
        return self.masks[name]

    def cached(self, compute: Callable[[Observations], T]) -> T:
        """What ``compute`` gives for these observations, computed once."""
        if compute not in self.cache:
            self.cache[compute] = compute(self)
        result: T = self.cache[compute]
        return result


@dataclass(frozen=True, eq=False)
class DecisionPoint:
    """R decision steps: the state each agent decides with, what it sees, and what it remembers."""

    observations: Observations
    row: Tensor  # (R,) the observation that made the state
    graph: Any = None  # the ``MemoryGraph`` of the R agents; None for those without a memory

    @cached_property
    def state(self) -> State:
        """(R, ...) the states that decide"""
        return self.rows(self.observations.state)

    @cached_property
    def viewpoint(self) -> Tensor:
        """(R,) where the agents stand"""
        return self.rows(self.observations.viewpoint)

    @cached_property
    def view(self) -> Tensor:
        """(R,) the view they face"""
        return self.rows(self.observations.view)

    @property
    def heading(self) -> Tensor:
        """(R,) radians, clockwise from +y"""
        return view_heading(self.view)

    @property
    def feature_mask(self) -> Tensor:
        """(D,) environment dropout, the same for all views"""
        return self.observations.masks.feature

    def mask(self, name: str) -> Tensor:
        """The dropout masks of that name  ->  (R, W)"""
        return self.rows(self.observations.masks[name])

    def candidates(self) -> CandidateFeatures:
        """The neighbours of here as the agents see them; slots as in the options of an ``ACTION``."""
        if len(self.row) == len(self.observations.view):
            return self.observations.candidates
        return self.observations.inputs.environment.candidates(self.viewpoint, self.view)

    def memory(self) -> Any:
        """The ``MemoryGraph`` of an agent that must have one."""
        if self.graph is None:
            raise TypeError("this agent decides over a memory, but its action space has none")
        return self.graph

    def per_observation(self, compute: Callable[[Observations], T]) -> T:
        """What depends on the observation alone, computed once for all of them  ->  R rows of it

        ``compute`` returns a tensor, or a dataclass of tensors.
        """
        return self.rows(self.observations.cached(compute))

    def rows(self, values: T) -> T:
        """Of X rows those that decide; a tensor, or a dataclass of tensors."""
        if len(self.row) == len(self.observations.view):
            return values
        table: Any = values
        by_row = isinstance(values, Tensor)
        rows: T = table.index_select(0, self.row) if by_row else select_rows(table, self.row)
        return rows


@dataclass(frozen=True)
class Explanation:
    """Why an agent scored R decision steps as it did, for viewers; agents fill in what they have."""

    words: Mapping[str, Tensor] = field(default_factory=dict)  # name of an attention -> (R, L)
    confidence: Mapping[DecisionType, Tensor] = field(default_factory=dict)  # (R, O, 2) by view, by direction
    mix: Mapping[DecisionType, Tensor] = field(default_factory=dict)  # (R, 2) their weights in the logit
    numbers: Mapping[str, Tensor] = field(default_factory=dict)  # (R,) anything else worth showing, by name

    def select(self, rows: Tensor) -> Explanation:
        """Of some decision steps.  rows: (M,)"""
        return Explanation(
            *(
                {key: values[rows] for key, values in getattr(self, item.name).items()}
                for item in fields(self)
            )
        )


class Agent(nn.Module, ABC):
    """An agent's parameters, and what it does with them.

    Write ``score`` for a new agent; override the others where it differs.

    Args:
        config: sizes and dropout.
        sizes: what the data decides.
        modules: encoder, state updater and critic; the usual ones when not given.
    """

    follows_reference = True
    """Whether a reference path says what to choose. False for low-level actions: labels teach those."""

    def __init__(self, config: ModelConfig, sizes: DataSizes, modules: AgentModules | None = None) -> None:
        super().__init__()
        modules = modules or lstm_modules(config, sizes)
        self.config = config
        self.visual = sizes.visual
        self.encoder = modules.encoder
        self.updater = modules.updater
        self.critic = modules.critic

    @abstractmethod
    def score(self, point: DecisionPoint) -> Scores:
        """The logits of R decision steps: (R, K + 1) for actions, (R, N) for frontiers, (R, N * K + 1) for
        global decisions; options that cannot be chosen may hold anything.
        """

    def heads(self, observations: Observations) -> dict[str, Tensor]:
        """Named outputs of every observation that losses may use  ->  name: (X, ...)"""
        return {"value": self.critic(observations.state.hidden)}

    def whole_walk_heads(self, rollout: Rollout, inputs: RolloutInputs) -> dict[str, Tensor]:
        """Further heads that need a whole walk, computed when it is over  ->  name: (B, T, ...)"""
        del rollout, inputs
        return {}

    def node_features(self, observations: Observations) -> dict[str, Tensor]:
        """What to write at the node each agent stands at; ``graph.column(name)`` reads it at all nodes.

        ->  name: (X, W), with their gradients
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
        feature = nn.functional.dropout(torch.ones(self.visual, device=device), feature_rate)
        widths = {**self.updater.mask_widths(), "decision": self.config.width}
        rows = {
            name: nn.functional.dropout(torch.ones(episodes, width, device=device), rate)
            for name, width in widths.items()
        }
        masks = DropoutMasks(feature, rows)
        return masks if own is None or len(own) == episodes else masks.select(own)


class Basic(Agent):
    """A recurrent navigator that scores the neighbours of where it stands (paper, Eq. 2)."""

    def __init__(self, config: ModelConfig, sizes: DataSizes, modules: AgentModules | None = None) -> None:
        super().__init__(config, sizes, modules)
        self.scorer = CandidateScore(config.width, sizes.visual)

    def score(self, point: DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        state, seen = point.state.hidden * point.mask("decision"), point.candidates()
        logits: Tensor = self.scorer(state, seen.visual, seen.orientation, point.feature_mask)
        return logits
