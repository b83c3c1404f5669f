from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from scenemem.models.navigator import (
    FineGrainedGrounding,
    Grounded,
    Instructions,
    PackedInstructions,
    Packing,
    SharedGrounding,
    TextualAttention,
    selected,
)
from tests.models.helpers import one_per_episode

WIDTH, WORDS = 6, 5


@pytest.fixture
def words() -> PackedInstructions:
    """Two texts of 5 and 2 words; episode 0 observes three times, episode 1 twice."""
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    context = torch.randn(2, WORDS, WIDTH, dtype=torch.float64)
    packing = Packing(torch.tensor([0, 1, 0, 1, 0]), torch.tensor([0, 0, 1, 1, 2]), 2, 3)
    instructions = Instructions(context, mask, *torch.zeros(2, 2, WIDTH))
    return PackedInstructions(lambda: instructions, packing)


@pytest.fixture
def grounding() -> FineGrainedGrounding:
    torch.manual_seed(0)
    return FineGrainedGrounding(WIDTH).double()


@pytest.fixture
def state() -> Tensor:
    return torch.randn(5, WIDTH, dtype=torch.float64)


def _plain(attention: TextualAttention, state: Tensor, words: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Eqs. 5 and 6 for one state and the words of one text: the grounded state, and the weights."""
    scores = torch.stack([word @ (attention.query.weight @ state) for word in words])
    share = scores.exp() / scores.exp().sum()
    attended = sum((alpha * word for alpha, word in zip(share, words, strict=True)), torch.zeros(WIDTH))
    return attention.join.weight @ torch.cat([state, attended]), share


def _assert_close(found: Grounded, expected: Grounded) -> None:
    torch.testing.assert_close(found.perception, expected.perception)
    torch.testing.assert_close(found.action, expected.action)


def test_both_states_are_equations_5_and_6(
    grounding: FineGrainedGrounding, state: Tensor, words: PackedInstructions
) -> None:
    """The attention over the words, for viewers, is the one the states are made with."""
    grounded, attention = grounding(state, words), grounding.word_attention(state, words)
    assert set(attention) == {"perception", "action"}
    for row, episode in enumerate(words.packing.episode.tolist()):
        own = list(words.instructions.context[episode][words.instructions.mask[episode]])
        for name in ("perception", "action"):
            plain, share = _plain(getattr(grounding, name), state[row], own)
            torch.testing.assert_close(getattr(grounded, name)[row], plain)
            torch.testing.assert_close(attention[name][row], pad(share, (0, WORDS - len(own))))


def test_padding_changes_nothing(
    grounding: FineGrainedGrounding, state: Tensor, words: PackedInstructions
) -> None:
    garbage = pad(words.instructions.context, (0, 0, 0, 2), value=7.0)
    garbage[1, 2:] = 9.0
    padded = replace(words.instructions, context=garbage, mask=pad(words.instructions.mask, (0, 2)))
    longer = replace(words.packing, steps=words.packing.steps + 2)
    expected = grounding(state, words)
    _assert_close(grounding(state, replace(words, lookup=lambda: padded)), expected)
    _assert_close(grounding(state, replace(words, packing=longer)), expected)
    attention = grounding.word_attention(state, words)
    torch.testing.assert_close(
        grounding.word_attention(state, PackedInstructions(lambda: padded, longer)),
        {name: pad(weights, (0, 2)) for name, weights in attention.items()},
    )


def test_the_order_of_episodes_and_observations_does_not_matter(
    grounding: FineGrainedGrounding, state: Tensor, words: PackedInstructions
) -> None:
    grounded = grounding(state, words)
    swapped = PackedInstructions(
        lambda: selected(words.instructions, torch.tensor([1, 0])),
        Packing(1 - words.packing.episode.flip(0), words.packing.step.flip(0), 2, 3),
    )
    expected = Grounded(grounded.perception.flip(0), grounded.action.flip(0))
    _assert_close(grounding(state.flip(0), swapped), expected)


def test_every_observation_is_grounded_by_itself(
    grounding: FineGrainedGrounding, state: Tensor, words: PackedInstructions
) -> None:
    """Acting grounds the episodes of a step, learning all observations of their walks."""
    own = PackedInstructions(
        lambda: selected(words.instructions, words.packing.episode), one_per_episode(5, state.device)
    )
    _assert_close(grounding(state, own), grounding(state, words))
    torch.testing.assert_close(grounding.word_attention(state, own), grounding.word_attention(state, words))


def test_without_grounding_the_state_itself_queries(state: Tensor, words: PackedInstructions) -> None:
    """The words are not even looked up."""

    def unread() -> Instructions:
        raise AssertionError("nothing here reads the words")

    grounding, words = SharedGrounding(), replace(words, lookup=unread)
    grounded = grounding(state, words)
    assert torch.equal(grounded.perception, state)
    assert torch.equal(grounded.action, state)
    assert grounding.word_attention(state, words) == {}
