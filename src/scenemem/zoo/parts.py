"""What several systems of the family are built from: encoders and recurrent cores, put together once."""

from __future__ import annotations

from torch import Tensor

from scenemem.extend import (
    Agent,
    AgentModules,
    DataSizes,
    DecisionPoint,
    ModelConfig,
    StateUpdater,
    lstm_modules,
)
from scenemem.zoo.encoders import (
    OneWayEncoder,
    TransformerEncoder,
)
from scenemem.zoo.telling import (
    SpellingEncoder,
)


def one_way_parts(
    config: ModelConfig,
    sizes: DataSizes,
    core: StateUpdater,
    *,
    backwards: bool,
    project: bool,
) -> AgentModules:
    """A recurrent core of its own, and an LSTM that reads the words in one direction.

    Args:
        config: sizes and dropout.
        sizes: what the data decides.
        core: the recurrent core.
        backwards: words are read last to first.
        project: the first state is a layer of the encoder's last one.
    """
    encoder = OneWayEncoder(
        sizes.words,
        config.word_width,
        config.width,
        config.dropout,
        sizes.padding,
        backwards=backwards,
        project=project,
    )
    return AgentModules(encoder, core, lstm_modules(config, sizes).critic)


def spelling_parts(config: ModelConfig, sizes: DataSizes, core: StateUpdater | None = None) -> AgentModules:
    """The usual parts, with an encoder that can say which words it read; ``core`` may be another one."""
    usual = lstm_modules(config, sizes)
    encoder = SpellingEncoder(sizes.words, config.word_width, config.width, config.dropout, sizes.padding)
    return AgentModules(encoder, core or usual.updater, usual.critic)


def read_by_transformer(
    parts: AgentModules, config: ModelConfig, sizes: DataSizes, layers: int, heads: int
) -> AgentModules:
    """The same parts with a Transformer over the words; with 0 layers as they are."""
    if not layers:
        return parts
    encoder = TransformerEncoder(
        sizes.words,
        config.word_width,
        config.width,
        config.dropout,
        sizes.padding,
        layers=layers,
        heads=heads,
    )
    return AgentModules(encoder, parts.updater, parts.critic)


def navigator_words(agent: Agent, point: DecisionPoint) -> dict[str, Tensor]:
    """The words the recurrent core attends to, for what it sees and how it moves alike  ->  name: (R, L)"""
    words = agent.words_at(point)["navigator"]
    return {"perception": words, "action": words}
