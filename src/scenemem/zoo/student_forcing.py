"""Student-Forcing seq2seq (Anderson 2018): low-level actions, one view, learnt from its own samples.

The agent turns, tilts and steps forward (``LowLevelActions``), and sees nothing but the view ahead:

    x_t = [E(a_{t-1}), f_t],   h_t, c_t = LSTM(x_t, h_{t-1}, c_{t-1})
    h~_t = tanh(W [sum_l softmax_l(x_l . W h_t) x_l, h_t]),   logits = W h~_t over six actions

h_t, not h~_t, is carried; words are read last to first. On its own samples the label is what leads to the
goal from where the camera looks (``labels="low_level"``). Read in the released code. The preset ``seq2seq``
is another agent: it chooses among the neighbours of a panorama.

On the common recipe the common core sees the view ahead, teachers do what the labels say instead of walking
reference paths, which know no turns, and walks have more decisions. Turns cost no metres. Differences: stop
ends a walk to learn from, too; in the release it goes on until all of a batch have stopped.

Shape letters: X observations, R decision steps, M episodes that observe, D visual columns, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from scenemem.extend import (
    AGENTS,
    LABEL_RULES,
    ActionSpace,
    Agent,
    AgentModules,
    AgentSpec,
    DataSizes,
    DecisionPoint,
    DecisionType,
    Explanation,
    Instructions,
    Limit,
    ModelConfig,
    Observation,
    Preset,
    Stage,
    StateUpdater,
    WalkConfig,
    World,
    dots,
    lstm_modules,
    masked_softmax,
)
from scenemem.zoo.labels import (
    low_level,
    low_level_path,
)
from scenemem.zoo.low_level import (
    LOW_LEVEL,
    LowLevelActions,
    action_between,
)
from scenemem.zoo.panoramic import (
    FollowerState,
)
from scenemem.zoo.parts import navigator_words, one_way_parts
from scenemem.zoo.recipes import published, shared

ACTIONS = 6
START = 6
"""Embedded beside the six actions, the last of which stands for nothing done."""
WALK = WalkConfig(max_decisions=40, max_steps=41)


@dataclass(frozen=True)
class LowLevelConfig(ModelConfig):
    """Settings of low-level agents."""

    published_core: bool = False
    """the LSTM that reads the view ahead and the action taken; False has the common recurrent core"""
    embedded_action: int = 32
    """width of an action"""


class ViewAheadUpdater(StateUpdater):
    """h_t = LSTM([E(a_{t-1}), f_t], h_{t-1}), f_t the view ahead; attention to the words gives h~.

    Args:
        visual: columns D of the view features.
        width: H of the state.
        embedded: width of an action.
    """

    def __init__(self, visual: int, width: int, embedded: int) -> None:
        super().__init__()
        self.width = width
        self.entered = embedded + visual
        self.action = nn.Embedding(ACTIONS + 1, embedded)
        self.lstm = nn.LSTMCell(self.entered, width)
        self.word_query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)

    def mask_widths(self) -> dict[str, int]:
        """Masks on what enters the LSTM, and on its output."""
        return {"lstm_input": self.entered, "output": self.width}

    def initial_state(self, instructions: Instructions) -> FollowerState:
        """The summaries of the instruction; nothing is faced yet."""
        hidden = instructions.hidden
        nothing = torch.zeros_like(instructions.context[..., 0])
        faced = torch.zeros_like(hidden[:, 0], dtype=torch.long)
        return FollowerState(hidden, hidden, instructions.cell, nothing, faced)

    def forward(self, state: FollowerState, observation: Observation) -> FollowerState:
        """One update."""
        words, masks, view = observation.instructions, observation.masks, observation.view
        taken = action_between(state.faced, view, observation.viewpoint != observation.previous)
        taken = torch.where(observation.previous < 0, START, taken)
        ahead = observation.panorama[torch.arange(len(view), device=view.device), view] * masks.feature
        entered = torch.cat([self.action(taken), ahead], dim=-1) * masks["lstm_input"]
        output, cell = self.lstm(entered, (state.output, state.cell))
        dropped = output * masks["output"]
        weights = masked_softmax(dots(words.context, self.word_query(dropped)), words.mask)
        text = torch.bmm(weights.unsqueeze(1), words.context).squeeze(1)
        hidden = torch.tanh(self.join(torch.cat([text, dropped], dim=-1)))
        return FollowerState(hidden, output, cell, weights, view)


class LowLevelAgent(Agent):
    """Scores the six low-level actions."""

    config: LowLevelConfig
    follows_reference = False

    def __init__(self, config: LowLevelConfig, sizes: DataSizes, parts: AgentModules) -> None:
        super().__init__(config, sizes, parts)
        self.act = nn.Linear(config.width, ACTIONS)

    @classmethod
    def build(cls, config: LowLevelConfig, sizes: DataSizes) -> LowLevelAgent:
        """Fresh weights."""
        return cls(config, sizes, low_level_parts(config, sizes))

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """Turn, tilt, step forward, or stop."""
        del learning
        return LowLevelActions(world, episodes, max_decisions)

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        """Low-level decisions: (R, 6)"""
        return {LOW_LEVEL: self.act(point.state.hidden * point.mask("decision"))}

    def explain(self, point: DecisionPoint) -> Explanation:
        """The words the recurrent core attends to."""
        return Explanation(navigator_words(self, point))


def low_level_parts(config: LowLevelConfig, sizes: DataSizes) -> AgentModules:
    """The common core, which sees the view ahead, or the published core and encoder."""
    if not config.published_core:
        return lstm_modules(replace(config, panorama=False), sizes)
    core = ViewAheadUpdater(sizes.visual, config.width, config.embedded_action)
    return one_way_parts(config, sizes, core, backwards=True, project=True)


SPEC = AgentSpec(LowLevelAgent.build, LowLevelConfig)


def with_turns(preset: Preset[Any]) -> Preset[Any]:
    """A row on the common recipe whose agent turns, tilts and steps: longer walks, labels of their own."""
    learning = replace(preset.learning, labels="low_level", max_decisions=24, max_steps=25)
    return replace(preset, walk=WALK, learning=learning)


ROWS = {"student-forcing": with_turns(shared("student-forcing", LowLevelConfig))}
AS_PUBLISHED = {
    "student-forcing": published(
        "student-forcing",
        LowLevelConfig(width=512, feature_dropout=0.0, published_core=True),
        (Stage("student", losses={"student_forcing": 1.0}),),
        walk=WalkConfig(max_decisions=20, max_steps=21),
        batch=100,
        iterations=20_000,
        weight_decay=5e-4,
        labels="low_level",
    ),
}
R4R_LABELS = {"student-forcing": "low_level_path"}


def register() -> None:
    """Its agent and its label rules."""
    AGENTS.register("student-forcing", SPEC)
    LABEL_RULES.register("low_level", low_level)
    LABEL_RULES.register("low_level_path", low_level_path)
