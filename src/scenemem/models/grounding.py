"""Perception- and action-aware textual grounding (paper, Eqs. 5 and 6).

Shape letters: B lanes, T ticks, X observations, L words, H width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

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


class FineGrainedGrounding(nn.Module):
    """h^p and h^a from two separate attentions over the words.

    Both streams ask the words at once, because reading the words is what an attention waits for.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.perception = TextualAttention(width)
        self.action = TextualAttention(width)

    def forward(self, state: Tensor, instructions: Instructions, seating: Seating) -> Grounded:
        """state: (X, H)"""
        streams, width = (self.perception, self.action), state.shape[1]
        asked = linear(state, torch.cat([stream.query.weight for stream in streams]))  # (X, 2H)
        table = seating.table(asked).view(seating.lanes, 2 * seating.ticks, width)
        scores = torch.bmm(table, instructions.context.transpose(1, 2))
        words = masked_softmax(scores, instructions.mask.unsqueeze(1))
        heard = torch.bmm(words, instructions.context).view(seating.lanes, seating.ticks, 2 * width)
        of_state, of_words = zip(*(stream.join.weight.chunk(2, dim=1) for stream in streams), strict=True)
        kept = linear(state, torch.cat(of_state)).chunk(2, dim=1)
        perception, action = (
            torch.addmm(known, new, weight.t())
            for known, new, weight in zip(kept, seating.rows(heard).chunk(2, dim=1), of_words, strict=True)
        )
        perception_words, action_words = words.view(seating.lanes, seating.ticks, 2, -1).unbind(2)
        return Grounded(perception, action, perception_words, action_words)


class SharedGrounding(nn.Module):
    """The ablation without fine-grained grounding: the state itself asks about everything."""

    def forward(self, state: Tensor, instructions: Instructions, seating: Seating) -> Grounded:
        """state: (X, H)"""
        del instructions, seating
        return Grounded(state, state)
