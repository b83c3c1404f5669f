"""Student-Forcing seq2seq (Anderson 2018): low-level actions, one view, learnt from its own samples.

The agent turns, tilts and steps forward (``LowLevelActions``), and sees nothing but the view ahead:

    x_t = [E(a_{t-1}), f_t],   h_t, c_t = LSTM(x_t, h_{t-1}, c_{t-1})
    h~_t = tanh(W [sum_l softmax_l(x_l . W h_t) x_l, h_t]),   logits = W h~_t over six actions

h_t, not h~_t, is carried; words are read last to first. On its own samples the label is what leads to the
goal from where the camera looks (``labels="low_level"``). Read in the released code. The preset ``seq2seq``
is another agent: it chooses among the neighbours of a panorama.

On the common recipe the common core sees the view ahead, teachers follow the labels instead of reference
paths, which have no turns, and walks have more decisions. Difference: stop ends a walk to learn from, too; in
the release it goes on until all of a batch have stopped.

Shape letters: X observations, R decision steps, M episodes that observe, D visual columns, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import one_way_parts
from scenemem.zoo.low_level import LOW_LEVEL, LowLevelActions, action_between
from scenemem.zoo.panoramic import CarryingUpdater, FollowerState, navigator_words
from scenemem.zoo.recipes import SystemConfig, published, shared

ACTIONS = 6
START = 6
"""Embedded beside the six actions, the last of which stands for nothing done."""
WALK = ext.WalkConfig(max_decisions=40, max_steps=41)
TURNS: dict[str, Any] = {
    "walk": WALK,
    "learning": {"labels": "low_level", "max_decisions": 24, "max_steps": 25},
}
"""Of rows on the common recipe whose agents turn, tilt and step: longer walks, labels of their own."""


@dataclass(frozen=True)
class LowLevelConfig(SystemConfig):
    """Settings of low-level agents."""

    published_core: bool = False
    """the LSTM that reads the view ahead and the action taken; False has the common recurrent core"""
    embedded_action: int = 32
    """width of an action"""


class ViewAheadUpdater(CarryingUpdater):
    """h_t = LSTM([E(a_{t-1}), f_t], h_{t-1}), f_t the view ahead."""

    def __init__(self, visual: int, width: int, embedded: int) -> None:
        super().__init__()
        self.action = nn.Embedding(ACTIONS + 1, embedded)
        self.add_layers(embedded + visual, width)

    def entering(self, state: FollowerState, observation: ext.Observation) -> list[Tensor]:
        """The action taken, and the view ahead."""
        view, rows = observation.view, torch.arange(len(observation.view), device=observation.view.device)
        taken = action_between(state.faced, view, observation.viewpoint != observation.previous)
        taken = torch.where(observation.previous < 0, START, taken)
        return [self.action(taken), observation.panorama[rows, view] * observation.masks.feature]


class LowLevelAgent(ext.Agent):
    """Scores the six low-level actions."""

    config: LowLevelConfig
    follows_reference = False

    def __init__(self, config: LowLevelConfig, sizes: ext.DataSizes) -> None:
        if config.published_core:
            core = ViewAheadUpdater(sizes.visual, config.width, config.embedded_action)
            parts = one_way_parts(config, sizes, core)
        else:
            parts = ext.lstm_modules(replace(config, panorama=False), sizes)
        super().__init__(config, sizes, parts)
        self.act = nn.Linear(config.width, ACTIONS)

    def action_space(
        self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, learning: bool = False
    ) -> ext.ActionSpace:
        """Turn, tilt, step forward, or stop."""
        del learning
        return LowLevelActions(world, episodes, max_decisions)

    def score(self, point: ext.DecisionPoint) -> dict[ext.DecisionType, Tensor]:
        """Low-level decisions: (R, 6)"""
        return {LOW_LEVEL: self.act(point.state.hidden * point.mask("decision"))}

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The words the recurrent core attends to."""
        return ext.Explanation(navigator_words(self, point))


AGENTS = {"student-forcing": ext.AgentSpec(LowLevelAgent, LowLevelConfig)}
ROWS = {"student-forcing": shared("student-forcing", LowLevelConfig, **TURNS)}
AS_PUBLISHED = published(
    "student-forcing",
    LowLevelConfig(width=512, feature_dropout=0.0, published_core=True),
    {"student_forcing": 1.0},
    decisions=20,
    batch=100,
    iterations=20_000,
    weight_decay=5e-4,
    labels="low_level",
)
R4R_LABELS = {"student-forcing": "low_level_path"}
