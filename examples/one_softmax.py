"""Decisions over a memory without the paper's modules: all visited places compete in one softmax.

Every visited place v is summed up by attention over its views, and scored with each way k it leaves open:

    c_{v,k} = f_{v,k} . W_1 h + place_v . W_2 h - w d_v,   d_v metres to walk to v

The softmax runs over all ways of all places, and stopping. Train it with:

    scenemem train examples/one_softmax.py:one-softmax --iterations 300

Shape letters: R decision steps, N nodes, K candidate slots, D visual columns, H state width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scenemem.extend import (
    AGENTS,
    GLOBAL,
    PRESETS,
    ActionSpace,
    Agent,
    AgentSpec,
    DataSizes,
    DecisionPoint,
    DecisionType,
    GlobalActions,
    LearningConfig,
    Limit,
    ModelConfig,
    Preset,
    Stage,
    World,
    dots,
    slot_confidences,
)


class OneSoftmax(Agent):
    """Scores every open way of every visited place at once."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__(config, sizes)
        self.read = nn.Linear(config.width, sizes.visual, bias=False)
        self.place = nn.Linear(config.width, sizes.visual, bias=False)
        self.way = nn.Linear(config.width, sizes.visual, bias=False)
        self.direction = nn.Linear(config.width, 4, bias=False)
        self.distance = nn.Parameter(torch.tensor(0.1))
        self.stop = nn.Linear(config.width, 1)

    def action_space(
        self, world: World, episodes: int, max_decisions: Limit, *, learning: bool = False
    ) -> ActionSpace:
        """Any way of any visited place, or stop."""
        del learning
        return GlobalActions(world, episodes, max_decisions)

    def score(self, point: DecisionPoint) -> dict[DecisionType, Tensor]:
        """Global decisions: (R, N * K + 1), way k of place n at n * K + k, stop last"""
        graph, mask = point.memory(), point.feature_mask
        state = point.state.hidden * point.mask("decision")
        places = graph.padded(graph.attend(self.read(state) * mask))  # (R, N, D)
        known = graph.viewpoint >= 0
        walk = graph.walk.masked_fill(~known, 0.0)
        of_place = dots(places, self.place(state) * mask) - self.distance * walk  # (R, N)
        ways = slot_confidences(graph, self.way(state) * mask, self.direction(state)).sum(dim=-1)
        logits = (ways + of_place.unsqueeze(-1)).flatten(1)
        return {GLOBAL: torch.cat([logits, self.stop(state)], dim=1)}


AGENTS.register("one-softmax", AgentSpec(OneSoftmax, ModelConfig))
PRESETS.register(
    "one-softmax",
    Preset(
        agent="one-softmax",
        model=ModelConfig(width=256, dropout=0.3, feature_dropout=0.2),
        learning=LearningConfig(
            max_decisions=10,
            max_steps=16,
            stages=(Stage("mixed", losses={"teacher_forcing": 1.0, "student_forcing": 0.3, "a2c": 1.0}),),
        ),
    ),
)
