"""AuxRN (Zhu 2020): the basic agent with four more tasks for the states of its walks.

    retelling   a decoder reads the states of a walk and repeats the instruction; cross-entropy of its words
    progress    sigmoid(MLP h_t) against t / T, the share of the steps done
    matching    MLP [last state, first word]: is this the instruction of this walk, or another one's?
    angle       MLP h_t against the direction of the next hop, four sines and cosines, squared error

The policy is basic's, and the heads are unused when it walks. Weights are those of the authors' later code;
those of the paper are not known. Sources disagree about which tasks run beside reinforcement learning: here
all four learn from the reference path, none from the agent's own walks. Other differences: retelling and
matching read h~ instead of h; every walk is matched with its own and with one other instruction, instead of
one drawn by a coin; the decoder does not begin as a trained speaker.

Shape letters: X observations, B episodes, T steps, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import usual_parts
from scenemem.zoo.objectives import retelling_cost
from scenemem.zoo.panoramic import navigator_words
from scenemem.zoo.recipes import published, shared

AUXILIARY = {"retelling": 2.0, "step_progress": 0.25, "matching": 0.1, "next_angle": 2.0}
"""Weights of the later code."""


@dataclass(frozen=True)
class AuxRNConfig(ext.ModelConfig):
    """Settings of AuxRN."""

    decoder_dropout: float = 0.25
    """of the decoder that repeats instructions"""


def _mlp(width: int, out: int, entered: int | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(entered or width, width), nn.LeakyReLU(), nn.Linear(width, out))


class AuxRN(ext.Basic):
    """The basic agent with auxiliary heads."""

    def __init__(self, config: AuxRNConfig, sizes: ext.DataSizes) -> None:
        super().__init__(config, sizes, usual_parts(config, sizes))
        width = config.width
        self.step_progress = _mlp(width, 1)
        self.angle = _mlp(width, 4)
        self.matching = _mlp(width, 1, 2 * width)
        self.decoder = ext.WordDecoder(sizes.words, config.word_width, width, config.decoder_dropout)

    def heads(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The critic's value and the logit of progress (X,), and the next direction (X, 4)"""
        hidden = observations.state.hidden
        return {
            **super().heads(observations),
            "step_progress": self.step_progress(hidden).squeeze(-1),
            "angle": self.angle(hidden),
            "state": hidden,
        }

    def whole_walk_heads(self, rollout: ext.Rollout, inputs: ext.RolloutInputs) -> dict[str, Tensor]:
        """The cost of retelling, and whether walk and instruction match."""
        states, words = rollout.heads["state"], inputs.instructions
        episodes, steps = rollout.alive.shape
        cost = retelling_cost(self.decoder, states, rollout.alive, words.tokens)
        last = states[torch.arange(episodes, device=states.device), rollout.length - 1]
        first_word = words.context[:, 0].detach()
        pairs = (torch.cat([last, word], dim=-1) for word in (first_word, first_word.roll(1, dims=0)))
        matching = torch.cat([self.matching(pair) for pair in pairs], dim=-1)  # (B, 2) its own, another's
        return {
            "retelling": cost.unsqueeze(1).expand(-1, steps),
            "matching": matching.unsqueeze(1).expand(-1, steps, -1),
        }

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The words, and the share of the steps it believes done."""
        done = torch.sigmoid(self.step_progress(point.state.hidden)).squeeze(-1)
        return ext.Explanation(navigator_words(self, point), numbers={"progress": done})


AGENTS = {"auxrn": ext.AgentSpec(AuxRN, AuxRNConfig)}
ROWS = {"auxrn": shared("auxrn", AuxRNConfig, AUXILIARY)}
AS_PUBLISHED = published(
    "auxrn",
    AuxRNConfig(feature_dropout=0.3),
    {"teacher_forcing": 0.2, "a2c": 1.0, **AUXILIARY},
    decisions=35,
    iterations=80_000,
)
