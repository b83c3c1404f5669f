"""Perception- and action-aware textual grounding (paper, Eqs. 5 and 6).

Shape letters: B lanes, T times, L words, H width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.models.attention import masked_softmax
from scenemem.models.language import Instructions


@dataclass(frozen=True)
class Grounded:
    """The two states every read and every score asks with."""

    perception: Tensor  # (B, T, H) h^p, asks about things
    action: Tensor  # (B, T, H) h^a, asks about directions
    perception_words: Tensor | None = None  # (B, T, L) alpha^p, which words it listened to
    action_words: Tensor | None = None  # (B, T, L) alpha^a

    def at(self, tick: Tensor) -> Grounded:
        """The states at the given times.  tick: (B, Q)  ->  (B, Q, H)"""
        lanes = torch.arange(len(tick), device=tick.device).unsqueeze(1)
        return Grounded(self.perception[lanes, tick], self.action[lanes, tick])


class TextualAttention(nn.Module):
    """One stream: alpha_l = softmax_l(x_l^T W_x h), x = sum_l alpha_l x_l, h' = W_h [h, x]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)

    def forward(self, state: Tensor, instructions: Instructions) -> tuple[Tensor, Tensor]:
        """state: (B, T, H)  ->  h' (B, T, H), alpha (B, T, L)"""
        scores = torch.bmm(self.query(state), instructions.context.transpose(1, 2))
        weights = masked_softmax(scores, instructions.mask.unsqueeze(1))
        heard = torch.bmm(weights, instructions.context)
        return self.join(torch.cat([state, heard], dim=-1)), weights


class FineGrainedGrounding(nn.Module):
    """h^p and h^a from two separate attentions over the words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.perception = TextualAttention(width)
        self.action = TextualAttention(width)

    def forward(self, state: Tensor, instructions: Instructions) -> Grounded:
        """state: (B, T, H)"""
        perception, perception_words = self.perception(state, instructions)
        action, action_words = self.action(state, instructions)
        return Grounded(perception, action, perception_words, action_words)


class SharedGrounding(nn.Module):
    """The ablation without fine-grained grounding: the state itself asks about everything."""

    def forward(self, state: Tensor, instructions: Instructions) -> Grounded:
        """state: (B, T, H)"""
        del instructions
        return Grounded(state, state)
