"""The agent contract: one module that says how a state begins, how it observes, and how it scores decisions.

Everything else - walking, recording, building decision points, learning - is the framework's.

Shape letters: B episodes, T steps, X observations, R decision steps, M decisions, O options, N nodes, K
candidate slots, H state width, W any width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from scenemem.agents.actions import ActionSpace, Limit, LocalActions
from scenemem.agents.build import AgentModules, DataSizes, ModelConfig, lstm_modules
from scenemem.agents.rollout import ACTION, DecisionType, Rollout
from scenemem.features.store import CandidateFeatures
from scenemem.models.navigator import DropoutMasks, Instructions, Observation, RolloutInputs, State
from scenemem.world.graph import World, view_heading

T = TypeVar("T")

Scores = Tensor | Mapping[DecisionType, Tensor]
"""Logits of every decision an agent may face, by type; a tensor alone stands for its actions."""


@dataclass(frozen=True, eq=False)
class Observations:
    """X agents with their states after an observation, and what each of them sees."""

    seen: Observation
    state: State  # (X, ...) after the observation
    earlier: Tensor  # (X, H) the hidden states before it
    cache: dict[Any, Any] = field(default_factory=dict)

    @property
    def environment(self) -> Any:
        """The ``Environment`` they are in."""
        return self.seen.environment

    @property
    def viewpoint(self) -> Tensor:
        """(X,) where they stand"""
        return self.seen.viewpoint

    @property
    def previous(self) -> Tensor:
        """(X,) where they stood one step before; -1 at the start"""
        return self.seen.previous

    @property
    def view(self) -> Tensor:
        """(X,) the view they face"""
        return self.seen.view

    @property
    def instructions(self) -> Instructions:
        """Their X instructions"""
        return self.seen.instructions

    @property
    def feature_mask(self) -> Tensor:
        """(D,) environment dropout, the same for all views"""
        return self.seen.masks.feature

    @property
    def decision_mask(self) -> Tensor:
        """(X, H) dropout of the states that decide"""
        return self.seen.masks["decision"]

    @cached_property
    def candidates(self) -> CandidateFeatures:
        """The neighbours of every viewpoint as the agents see them."""
        return self.seen.environment.candidates(self.viewpoint, self.view)

    def mask(self, name: str) -> Tensor:
        """The dropout masks of that name  ->  (X, W)"""
        return self.seen.masks[name]

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

    @property
    def whole(self) -> bool:
        """Whether every observation is decided with."""
        return len(self.row) == len(self.observations.view)

    @cached_property
    def state(self) -> State:
        """(R, ...) the states that decide"""
        state = self.observations.state
        return state if self.whole else state.select(self.row)

    @cached_property
    def viewpoint(self) -> Tensor:
        """(R,) where the agents stand"""
        return self.observations.viewpoint[self.row]

    @cached_property
    def view(self) -> Tensor:
        """(R,) the view they face"""
        return self.observations.view[self.row]

    @property
    def heading(self) -> Tensor:
        """(R,) radians, clockwise from +y"""
        return view_heading(self.view)

    @property
    def feature_mask(self) -> Tensor:
        """(D,) environment dropout, the same for all views"""
        return self.observations.feature_mask

    def mask(self, name: str) -> Tensor:
        """The dropout masks of that name  ->  (R, W)"""
        return self._rows(self.observations.mask(name))

    def candidates(self) -> CandidateFeatures:
        """The neighbours of here as the agents see them; slots as in the options of an ``ACTION``."""
        if self.whole:
            return self.observations.candidates
        return self.observations.seen.environment.candidates(self.viewpoint, self.view)

    def memory(self) -> Any:
        """The ``MemoryGraph`` of an agent that must have one."""
        if self.graph is None:
            raise TypeError("this agent decides over a memory, but its action space has none")
        return self.graph

    def per_observation(self, compute: Callable[[Observations], T]) -> T:
        """What depends on the observation alone, computed once for all of them  ->  R rows of it

        ``compute`` returns a tensor, or a dataclass of tensors.
        """
        value: Any = self.observations.cached(compute)
        if isinstance(value, Tensor):
            rows: Any = self._rows(value)
        else:
            rows = type(value)(*(self._rows(getattr(value, item.name)) for item in fields(value)))
        result: T = rows
        return result

    def _rows(self, values: Tensor) -> Tensor:
        """(X, ...)  ->  (R, ...)"""
        return values if self.whole else values.index_select(0, self.row)


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

        def kept(*shape: int, dropped: float = rate) -> Tensor:
            return nn.functional.dropout(torch.ones(shape, device=device), dropped)

        feature = kept(self.visual, dropped=feature_rate)
        widths = {**self.updater.mask_widths(), "decision": self.config.width}
        masks = DropoutMasks(feature, {name: kept(episodes, width) for name, width in widths.items()})
        return masks if own is None else masks.select(own)


def by_type(scores: Scores) -> Mapping[DecisionType, Tensor]:
    """Scores by decision type, whichever way an agent wrote them."""
    return {ACTION: scores} if isinstance(scores, Tensor) else scores
