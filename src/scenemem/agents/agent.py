"""The agent contract: one module that says how a state begins, how it observes, and how it scores decisions.

Everything else - walking, recording, building decision points, learning - is the framework's. Parts (encoder,
state updater, critic, scorers) are handed to an agent, so another recurrent core is one new part.

Shape letters: B episodes, T steps, X observations, R decision steps, M decisions, O options, H state width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from scenemem.agents.actions import ActionSpace, Limit, LocalActions
from scenemem.agents.environment import Environment
from scenemem.agents.points import (
    DecisionPoint,
    Observations,
    recorded_observations,
    recorded_point,
    recorded_rows,
)
from scenemem.agents.rollout import ACTION, GLOBAL, DecisionType, Rollout
from scenemem.errors import SettingError
from scenemem.models.attention import rows_of
from scenemem.models.language import InstructionEncoder, Instructions
from scenemem.models.scoring import Critic
from scenemem.models.states import FusedStateLog, StateLog
from scenemem.models.updater import (
    AheadOnly,
    DropoutMasks,
    LSTMUpdater,
    Observation,
    PanoramaQuery,
    State,
    StateUpdater,
)
from scenemem.registry import Registry
from scenemem.tasks.vocabulary import PAD
from scenemem.world.graph import World

Scores = Tensor | Mapping[DecisionType, Tensor]
"""Logits of every decision an agent may face, by type; a tensor alone stands for its actions."""


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and dropout that every agent has; agents with more settings subclass it."""

    word_width: int = 256
    """width of the word embeddings"""
    width: int = 512
    """width H of the instruction encoding and of the state"""
    dropout: float = 0.5
    """share of state and input numbers dropped in training"""
    feature_dropout: float = 0.4
    """share of visual columns dropped in training, the same for all views and steps of a rollout"""
    panorama: bool = True
    """attend to all 36 views; False sees only the view ahead"""

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise SettingError(f"width must be even and positive, got {self.width}; both directions share it")
        if self.word_width < 1:
            raise SettingError(f"word_width must be 1 or more, got {self.word_width}")
        for name in ("dropout", "feature_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"{name} must be in [0, 1), got {getattr(self, name)}")


@dataclass(frozen=True)
class DataSizes:
    """What the data decides about a network."""

    words: int
    """size of the vocabulary"""
    visual: int
    """columns D of the view features"""
    padding: int = PAD
    """token number of the padding word"""


@dataclass(frozen=True)
class Parts:
    """The parts every agent is made of."""

    encoder: InstructionEncoder
    updater: StateUpdater
    critic: Critic


MakeUpdater = Callable[[ModelConfig, DataSizes], StateUpdater]


def lstm_parts(config: ModelConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> Parts:
    """The usual parts: a bidirectional LSTM over the words, a recurrent navigator, a critic.

    Args:
        config: sizes and dropout.
        sizes: what the data decides.
        updater: makes another state updater instead of the LSTM.
    """
    view_query = PanoramaQuery(sizes.visual, config.width) if config.panorama else AheadOnly()
    encoder = InstructionEncoder(sizes.words, config.word_width, config.width, config.dropout, sizes.padding)
    core = LSTMUpdater(sizes.visual, config.width, view_query) if updater is None else updater(config, sizes)
    return Parts(encoder, core, Critic(config.width))


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


@dataclass(frozen=True)
class Explanation:
    """Why an agent scored R decision steps as it did, for viewers; agents fill in what they have."""

    words: Mapping[str, Tensor] = field(default_factory=dict)  # name of an attention -> (R, L)
    confidence: Mapping[DecisionType, Tensor] = field(default_factory=dict)  # (R, O, 2) by view, by direction
    mix: Mapping[DecisionType, Tensor] = field(default_factory=dict)  # (R, 2) their weights in the logit


class Agent(nn.Module, ABC):
    """An agent's parameters, and what it does with them.

    Write ``score`` for a new agent; override the others where it differs.

    Args:
        config: sizes and dropout.
        sizes: what the data decides.
        parts: encoder, state updater and critic.
    """

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

    def dropout_masks(self, episodes: int) -> DropoutMasks:
        """Dropout masks for one rollout; ones in evaluation mode."""
        device = next(self.parameters()).device
        rate = self.config.dropout if self.training else 0.0
        feature_rate = self.config.feature_dropout if self.training else 0.0

        def kept(*shape: int, dropped: float = rate) -> Tensor:
            return nn.functional.dropout(torch.ones(shape, device=device), dropped)

        feature = kept(self.visual, dropped=feature_rate)
        widths = {**self.updater.mask_widths(), "decision": self.config.width}
        return DropoutMasks(feature, {name: kept(episodes, width) for name, width in widths.items()})

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
        begin = instructions if learns else instructions.detached()
        return StateLog(
            self.observe, self.initial_state(begin), instructions, masks, environment.panorama, learns=learns
        )

    def evaluate_actions(self, rollout: Rollout, log: StateLog, environment: Environment) -> Outputs:
        """The logits of all learned decisions of a rollout, and the heads at all its steps, with gradients.

        ``log`` holds the states of the rollout; ``follow`` makes them for walks somebody else made.
        """
        observations = recorded_observations(environment, log, rollout)
        steps = rollout.decision_steps()
        point = recorded_point(observations, rollout, steps, self.columns)
        logits = by_type(self.score(point))
        masked = {}
        for kind, rows in steps.of.items():
            options = rollout.decisions[kind].options
            wide = widened(rows_of(logits[kind], rows), options, kind)
            masked[kind] = wide.masked_fill(~options, -torch.inf)
        rows = recorded_rows(observations, rollout)
        heads = {name: _table(values, rows, rollout) for name, values in self.heads(observations).items()}
        return Outputs(masked, heads)


def _table(values: Tensor, rows: Tensor, rollout: Rollout) -> Tensor:
    """values: (X, ...)  rows: (B, T)  ->  (B, T, ...), 0 after the end"""
    alive = rollout.alive.view(*rollout.alive.shape, *[1] * (values.dim() - 1))
    return values[rows].masked_fill(~alive, 0.0)


def by_type(scores: Scores) -> Mapping[DecisionType, Tensor]:
    """Scores by decision type, whichever way an agent wrote them."""
    return {ACTION: scores} if isinstance(scores, Tensor) else scores


def widened(logits: Tensor, options: Tensor, kind: DecisionType) -> Tensor:
    """Scores of the nodes known so far, padded to all nodes there could be; stop stays last.

    logits: (M, o)  options: (M, O)  ->  (M, O)
    """
    missing = options.shape[1] - logits.shape[1]
    if not missing:
        return logits
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


@dataclass(frozen=True)
class AgentSpec:
    """How an agent is built, and the settings it has."""

    build: Callable[[Any, DataSizes], Agent]
    """settings and sizes  ->  fresh weights"""
    config: type
    """dataclass of the settings, a subclass of ``ModelConfig``"""


AGENTS: Registry[AgentSpec] = Registry("agent")
"""Agents by the name presets call them."""
