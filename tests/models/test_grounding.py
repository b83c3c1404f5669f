from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from scenemem.models.grounding import FineGrainedGrounding, SharedGrounding, TextualAttention
from scenemem.models.language import Instructions

WIDTH, TIMES, WORDS = 6, 3, 5


@pytest.fixture
def instructions() -> Instructions:
    """Two texts of 5 and 2 words."""
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    return Instructions(torch.randn(2, WORDS, WIDTH), mask, torch.zeros(2, WIDTH), torch.zeros(2, WIDTH))


@pytest.fixture
def grounding() -> FineGrainedGrounding:
    torch.manual_seed(0)
    return FineGrainedGrounding(WIDTH)


@pytest.fixture
def state() -> Tensor:
    return torch.randn(2, TIMES, WIDTH)


def _plain(attention: TextualAttention, state: Tensor, words: list[Tensor]) -> Tensor:
    """Eqs. 5 and 6 for one state and the words of one text."""
    scores = torch.stack([word @ (attention.query.weight @ state) for word in words])
    share = scores.exp() / scores.exp().sum()
    heard = sum((alpha * word for alpha, word in zip(share, words, strict=True)), torch.zeros(WIDTH))
    return attention.join.weight @ torch.cat([state, heard])


def test_both_states_are_equations_5_and_6(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions
) -> None:
    grounded = grounding(state, instructions)
    for lane in range(2):
        words = list(instructions.context[lane][instructions.mask[lane]])
        for time in range(TIMES):
            plain = _plain(grounding.perception, state[lane, time], words)
            torch.testing.assert_close(grounded.perception[lane, time], plain)
            plain = _plain(grounding.action, state[lane, time], words)
            torch.testing.assert_close(grounded.action[lane, time], plain)


def test_attention_is_shared_out_among_real_words(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions
) -> None:
    grounded = grounding(state, instructions)
    for words in (grounded.perception_words, grounded.action_words):
        torch.testing.assert_close(words.sum(-1), torch.ones(2, TIMES))
        assert not words[1, :, 2:].any()
    assert not torch.equal(grounded.perception_words, grounded.action_words)


def test_padding_changes_nothing(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions
) -> None:
    grounded = grounding(state, instructions)
    garbage = pad(instructions.context, (0, 0, 0, 2), value=7.0)
    garbage[1, 2:] = 9.0
    padded = grounding(state, replace(instructions, context=garbage, mask=pad(instructions.mask, (0, 2))))
    torch.testing.assert_close(padded.perception, grounded.perception)
    torch.testing.assert_close(padded.action, grounded.action)


def test_the_order_of_lanes_and_times_does_not_matter(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions
) -> None:
    grounded = grounding(state, instructions)
    swapped = grounding(state.flip(0, 1), instructions.select(torch.tensor([1, 0])))
    torch.testing.assert_close(swapped.perception, grounded.perception.flip(0, 1))
    torch.testing.assert_close(swapped.action, grounded.action.flip(0, 1))


def test_without_grounding_the_state_itself_asks(state: Tensor, instructions: Instructions) -> None:
    grounded = SharedGrounding()(state, instructions)
    assert torch.equal(grounded.perception, state)
    assert torch.equal(grounded.action, state)
    assert grounded.perception_words is None
