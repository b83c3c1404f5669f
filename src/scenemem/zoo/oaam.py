"""OAAM (Qi 2020): objects and actions have word attentions and scores of their own; a loss pulls to the path.

    x^z = sum_l softmax_l(x_l . W_z h) x_l,   h^z = tanh(W [x^z, h]),   z = o (objects), a (actions)
    c^o_k = f_k . W_o h^o  on how a candidate looks,   c^a_k = r_k . W_a h^a  on where it lies
    logit_k = w_o c^o_k + w_a c^a_k,   (w_o, w_a) = softmax(W [x^o, x^a]),   stop is the row of zeros

The path loss is how far from the reference path the next place is expected to be, sum_k p_k d_k. The code was
never released: the decoupling and what each score sees are the paper's; the form of h^z, of the weights and
of the path loss is ours, and the weight of the loss (``path`` of the stage) is not known. The grounding of
the scene memory is this one, moved to the memory.

Shape letters: X observations, R decision steps, K candidate slots, D visual columns, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.recipes import published, shared


class Stream(nn.Module):
    """One attention over the words and the state it makes: x^z and h^z."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width)

    def forward(self, hidden: Tensor, observations: ext.Observations) -> tuple[Tensor, Tensor, Tensor]:
        """hidden: (X, H)  ->  x^z (X, H), h^z (X, H), the weights of the words (X, L)"""
        text, weights = observations.instructions.attend(self.query(hidden))
        return text, torch.tanh(self.join(torch.cat([text, hidden], dim=-1))), weights


@dataclass(frozen=True)
class Decoupled:
    """Scores of the two streams for every observation."""

    confidence: Tensor  # (X, K + 1, 2) of every option, by object and by action
    mix: Tensor  # (X, 2) their weights
    object_words: Tensor  # (X, L)
    action_words: Tensor  # (X, L)


class OAAM(ext.Agent):
    """Scores how candidates look and where they lie apart, and weighs the two by the words."""

    def __init__(self, config: ext.ModelConfig, sizes: ext.DataSizes) -> None:
        super().__init__(config, sizes)
        self.object = Stream(config.width)
        self.action = Stream(config.width)
        self.score_object = nn.Linear(config.width, sizes.visual, bias=False)
        self.score_action = nn.Linear(config.width, ext.ANGLE_WIDTH, bias=False)
        self.mix = nn.Linear(2 * config.width, 2)

    def decouple(self, observations: ext.Observations) -> Decoupled:
        """Both scores of every candidate, and their weights."""
        hidden, seen = observations.state.hidden * observations.decision_mask, observations.candidates
        objects, by_object, object_words = self.object(hidden, observations)
        actions, by_action, action_words = self.action(hidden, observations)
        look = ext.dots(seen.visual, self.score_object(by_object) * observations.feature_mask)
        lie = ext.dots(seen.orientation, ext.fold_angles(self.score_action(by_action)))
        return Decoupled(
            nn.functional.pad(torch.stack([look, lie], dim=-1), (0, 0, 0, 1)),
            self.mix(torch.cat([objects, actions], dim=-1)).softmax(dim=-1),
            object_words,
            action_words,
        )

    def action_logits(self, observations: ext.Observations) -> Tensor:
        """(X, K + 1)"""
        both = observations.cached(self.decouple)
        return ext.dots(both.confidence, both.mix)

    def score(self, point: ext.DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        return point.per_observation(self.action_logits)

    def word_attention(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The words for objects and for actions  ->  name: (X, L)"""
        both = observations.cached(self.decouple)
        return {"perception": both.object_words, "action": both.action_words}

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """Words, both scores of every option, and their weights."""
        both = point.observations.cached(self.decouple)
        return ext.Explanation(
            self.words_at(point), {ext.ACTION: both.confidence[point.row]}, {ext.ACTION: both.mix[point.row]}
        )


AGENTS = {"oaam": ext.AgentSpec(OAAM, ext.ModelConfig)}
ROWS = {"oaam": shared("oaam", ext.ModelConfig, {"path": 0.5})}
AS_PUBLISHED = published(
    "oaam",
    ext.ModelConfig(feature_dropout=0.3),
    {"teacher_forcing": 0.2, "a2c": 1.0, "path": 0.5},
    decisions=35,
    iterations=80_000,
)
