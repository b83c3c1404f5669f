"""Instructions that remember their words, and heads that say them again from a walk.

Heads that retell an instruction need its words, not only their encoding. Shape letters: B texts or walks, L
words, T steps, H width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from scenemem.models.navigator import InstructionEncoder, Instructions
from scenemem.models.speaker import DecoderState, EncodedPaths, WordDecoder
from scenemem.tasks.vocabulary import PAD, UNK


@dataclass(frozen=True)
class SpelledInstructions(Instructions):
    """Encoded instructions with their words."""

    tokens: Tensor  # (B, L) token numbers, padded

    @classmethod
    def joined(cls, parts: Sequence[Instructions]) -> SpelledInstructions:
        """Several batches as one, padded to the longest text of all."""
        plain, words = Instructions.joined(parts), [spelled(part).tokens for part in parts]
        longest = plain.mask.shape[1]
        tokens = [pad(table, (0, longest - table.shape[1]), value=PAD) for table in words]
        return cls(plain.context, plain.mask, plain.hidden, plain.cell, torch.cat(tokens))

    def repeat(self, times: int) -> SpelledInstructions:
        """All instructions, ``times`` times over."""
        plain = super().repeat(times)
        return SpelledInstructions(
            plain.context, plain.mask, plain.hidden, plain.cell, self.tokens.repeat(times, 1)
        )


class SpellingEncoder(InstructionEncoder):
    """The usual encoder, whose record keeps the words."""

    def forward(self, tokens: Tensor, lengths: Tensor, dropout: Tensor | None = None) -> SpelledInstructions:
        """tokens: (B, L) int64  lengths: (B,) int64  dropout: (B, H) mask; nothing is dropped without it"""
        plain = super().forward(tokens, lengths, dropout)
        return SpelledInstructions(plain.context, plain.mask, plain.hidden, plain.cell, tokens)


def spelled(instructions: Instructions) -> SpelledInstructions:
    """Instructions that must have their words."""
    if not isinstance(instructions, SpelledInstructions):
        raise TypeError("this agent says instructions again; build it with a SpellingEncoder")
    return instructions


def retelling_loss(decoder: WordDecoder, states: Tensor, mask: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of a word when a decoder says the instruction from the states of a walk.

    states: (B, T, H)  mask: (B, T) bool  tokens: (B, L) ``<BOS> words <EOS>``, padded  ->  (B,)
    """
    strongest = states.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
    walks = EncodedPaths(states, mask, DecoderState(torch.tanh(strongest), strongest))
    said, target = tokens[:, :-1], tokens[:, 1:]
    counted = (target != PAD) & (target != UNK)
    logits = decoder.word_logits(decoder(said, walks)[counted])
    cost = torch.nn.functional.cross_entropy(logits, target[counted], reduction="none")
    total = torch.zeros_like(strongest[:, 0]).index_add(0, counted.nonzero()[:, 0], cost)
    return total / counted.sum(dim=1).clamp_min(1)
