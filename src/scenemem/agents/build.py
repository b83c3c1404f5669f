"""Building agents: their settings, the modules they share, and the registry that names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scenemem.errors import SettingError
from scenemem.models.navigator import (
    Critic,
    InstructionEncoder,
    LSTMUpdater,
    PanoramaQuery,
    StateUpdater,
)
from scenemem.registry import Registry
from scenemem.tasks.vocabulary import PAD

if TYPE_CHECKING:
    from scenemem.agents.agent import Agent


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
class AgentModules:
    """The modules every agent has."""

    encoder: InstructionEncoder
    updater: StateUpdater
    critic: Critic


MakeUpdater = Callable[[ModelConfig, DataSizes], StateUpdater]


def lstm_modules(config: ModelConfig, sizes: DataSizes, updater: MakeUpdater | None = None) -> AgentModules:
    """The usual modules: a bidirectional LSTM over the words, a recurrent navigator, a critic.

    Args:
        config: sizes and dropout.
        sizes: what the data decides.
        updater: makes another state updater instead of the LSTM.
    """
    view_query = PanoramaQuery(sizes.visual, config.width) if config.panorama else None
    encoder = InstructionEncoder(sizes.words, config.word_width, config.width, config.dropout, sizes.padding)
    core = LSTMUpdater(sizes.visual, config.width, view_query) if updater is None else updater(config, sizes)
    return AgentModules(encoder, core, Critic(config.width))


@dataclass(frozen=True)
class AgentSpec:
    """How an agent is built, and the settings it has."""

    build: Callable[[Any, DataSizes], Agent]
    """settings and sizes  ->  fresh weights"""
    config: type
    """dataclass of the settings, a subclass of ``ModelConfig``"""


AGENTS: Registry[AgentSpec] = Registry("agent")
"""Agents by the name presets call them."""
