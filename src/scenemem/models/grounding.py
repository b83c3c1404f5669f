"""Perception- and action-aware textual grounding (paper, Eqs. 5 and 6).

Shape letters: B lanes, T ticks, X observations, L words, H width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scenemem.models.attention import masked_softmax, rows_of
from scenemem.models.language import Instructions
from scenemem.models.seating import Seating


@dataclass(frozen=True)
class Grounded:
    """The two states every read and every score asks with, one row per observation."""

    perception: Tensor  # (X, H) h^p, asks about things
    action: Tensor  # (X, H) h^a, asks about directions
    perception_words: Tensor | None = None  # (B, T, L) alpha^p, which words it listened to
    action_words: Tensor | None = None  # (B, T, L) alpha^a

    @property
    def asks(self) -> tuple[Tensor, Tensor]:
        """h^p and h^a."""
        return self.perception, self.action

    def at(self, row: Tensor) -> Grounded:
        """The states of some observations.  row: (R,)"""
        return Grounded(rows_of(self.perception, row), rows_of(self.action, row))


class TextualAttention(nn.Module):
    """One stream: alpha_l = softmax_l(x_l^T W_x h), x = sum_l alpha_l x_l, h' = W_h [h, x]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)

    def forward(self, state: Tensor, instructions: Instructions, seating: Seating) -> tuple[Tensor, Tensor]:
        """state: (X, H)  ->  h' (X, H), alpha (B, T, L)"""
        scores = torch.bmm(seating.table(self.query(state)), instructions.context.transpose(1, 2))
        weights = masked_softmax(scores, instructions.mask.unsqueeze(1))
        heard = seating.rows(torch.bmm(weights, instructions.context))
        return self.join(torch.cat([state, heard], dim=-1)), weights


class FineGrainedGrounding(nn.Module):
    """h^p and h^a from two separate attentions over the words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.perception = TextualAttention(width)
        self.action = TextualAttention(width)

    def forward(self, state: Tensor, instructions: Instructions, seating: Seating) -> Grounded:
        """state: (X, H)"""
        perception, perception_words = self.perception(state, instructions, seating)
        action, action_words = self.action(state, instructions, seating)
        return Grounded(perception, action, perception_words, action_words)


class SharedGrounding(nn.Module):
    """The ablation without fine-grained grounding: the state itself asks about everything."""

    def forward(self, state: Tensor, instructions: Instructions, seating: Seating) -> Grounded:
        """state: (X, H)"""
        del instructions, seating
        return Grounded(state, state)
