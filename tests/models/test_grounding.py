from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scenemem.models.seating import Seating, alone
from torch import Tensor
from torch.nn.functional import pad

from scenemem.models.language import FineGrainedGrounding, Grounded, SharedGrounding, TextualAttention
from scenemem.models.language import Instructions

WIDTH, WORDS = 6, 5


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
def seating() -> Seating:
    """Lane 0 observes three times, lane 1 twice."""
    return Seating(torch.tensor([0, 1, 0, 1, 0]), torch.tensor([0, 0, 1, 1, 2]), 2, 3)


@pytest.fixture
def state() -> Tensor:
    return torch.randn(5, WIDTH)


def _plain(attention: TextualAttention, state: Tensor, words: list[Tensor]) -> Tensor:
    """Eqs. 5 and 6 for one state and the words of one text."""
    scores = torch.stack([word @ (attention.query.weight @ state) for word in words])
    share = scores.exp() / scores.exp().sum()
    heard = sum((alpha * word for alpha, word in zip(share, words, strict=True)), torch.zeros(WIDTH))
    return attention.join.weight @ torch.cat([state, heard])


def _close(seen: Grounded, expected: Grounded) -> None:
    torch.testing.assert_close(seen.asks, expected.asks)


def test_both_states_are_equations_5_and_6(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions, seating: Seating
) -> None:
    grounded = grounding(state, instructions, seating)
    for row, lane in enumerate(seating.lane.tolist()):
        words = list(instructions.context[lane][instructions.mask[lane]])
        plain = _plain(grounding.perception, state[row], words)
        torch.testing.assert_close(grounded.perception[row], plain)
        plain = _plain(grounding.action, state[row], words)
        torch.testing.assert_close(grounded.action[row], plain)


def test_attention_is_shared_out_among_real_words(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions, seating: Seating
) -> None:
    grounded = grounding(state, instructions, seating)
    for words in (grounded.perception_words, grounded.action_words):
        torch.testing.assert_close(words[seating.lane, seating.tick].sum(-1), torch.ones(5))
        assert not words[1, :, 2:].any()
    assert not torch.equal(grounded.perception_words, grounded.action_words)


def test_padding_changes_nothing(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions, seating: Seating
) -> None:
    garbage = pad(instructions.context, (0, 0, 0, 2), value=7.0)
    garbage[1, 2:] = 9.0
    padded = replace(instructions, context=garbage, mask=pad(instructions.mask, (0, 2)))
    longer = replace(seating, ticks=seating.ticks + 2)
    expected = grounding(state, instructions, seating)
    _close(grounding(state, padded, seating), expected)
    _close(grounding(state, instructions, longer), expected)


def test_the_order_of_lanes_and_observations_does_not_matter(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions, seating: Seating
) -> None:
    grounded = grounding(state, instructions, seating)
    turned = Seating(1 - seating.lane.flip(0), seating.tick.flip(0), 2, 3)
    swapped = grounding(state.flip(0), instructions.select(torch.tensor([1, 0])), turned)
    _close(swapped, Grounded(grounded.perception.flip(0), grounded.action.flip(0)))


def test_every_observation_is_grounded_as_if_alone(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions, seating: Seating
) -> None:
    """Acting grounds the lanes of a moment, learning all observations of a walk."""
    words = instructions.select(seating.lane)
    _close(grounding(state, words, alone(5, state.device)), grounding(state, instructions, seating))


def test_some_observations_can_be_picked(
    grounding: FineGrainedGrounding, state: Tensor, instructions: Instructions, seating: Seating
) -> None:
    grounded = grounding(state, instructions, seating)
    row = torch.tensor([4, 1, 1])
    picked = grounded.at(row)
    _close(picked, Grounded(grounded.perception[row], grounded.action[row]))
    assert picked.perception_words is None


def test_without_grounding_the_state_itself_asks(
    state: Tensor, instructions: Instructions, seating: Seating
) -> None:
    grounded = SharedGrounding()(state, instructions, seating)
    assert torch.equal(grounded.perception, state)
    assert torch.equal(grounded.action, state)
    assert grounded.perception_words is None
