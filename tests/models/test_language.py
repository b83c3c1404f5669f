from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from scenemem.models.language import InstructionEncoder, Instructions

PADDING, WIDTH = 0, 10


@pytest.fixture(scope="module")
def encoder() -> InstructionEncoder:
    torch.manual_seed(0)
    return InstructionEncoder(words=20, word_width=6, width=WIDTH, dropout=0.5, padding=PADDING).eval()


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    """Four texts of different lengths, (4, 7) and (4,)."""
    lengths = torch.tensor([3, 7, 1, 5])
    tokens = torch.randint(1, 20, (4, 7), generator=torch.Generator().manual_seed(1))
    return tokens.masked_fill(torch.arange(7) >= lengths.unsqueeze(1), PADDING), lengths


def _close(seen: Instructions, expected: Instructions) -> None:
    """The same apart from what stands in the padding."""
    for name in ("mask", "hidden", "cell"):
        torch.testing.assert_close(getattr(seen, name), getattr(expected, name))
    torch.testing.assert_close(seen.context[seen.mask], expected.context[expected.mask])


def test_each_text_is_encoded_as_if_alone(encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]) -> None:
    encoded = encoder(*batch)
    for row, length in enumerate(batch[1].tolist()):
        words = encoder.embedding(batch[0][row, :length])
        ahead, _ = encoder.forward_lstm(words)
        back = encoder.backward_lstm(words.flip(0))[0].flip(0)
        context = torch.cat([ahead, back], dim=1)
        hidden = torch.tanh(encoder.begin_hidden(context.max(dim=0).values))
        cell = encoder.begin_cell(torch.cat([ahead[-1], back[0]]))
        torch.testing.assert_close(encoded.context[row, :length], context)
        torch.testing.assert_close(encoded.hidden[row], hidden)
        torch.testing.assert_close(encoded.cell[row], cell)
        assert encoded.mask[row].tolist() == [True] * length + [False] * (7 - length)


def test_more_padding_changes_nothing(encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]) -> None:
    tokens, lengths = batch
    encoded = encoder(tokens, lengths)
    padded = encoder(pad(tokens, (0, 4), value=PADDING), lengths)
    _close(
        Instructions(padded.context[:, :7], padded.mask[:, :7], padded.hidden, padded.cell),
        encoded,
    )
    assert not padded.mask[:, 7:].any()


def test_what_the_padding_holds_does_not_matter(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    tokens, lengths = batch
    garbage = torch.where(torch.arange(7) < lengths.unsqueeze(1), tokens, 13)
    _close(encoder(garbage, lengths), encoder(tokens, lengths))


def test_the_order_of_the_batch_does_not_matter(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    order = torch.tensor([2, 0, 3, 1])
    _close(encoder(batch[0][order], batch[1][order]), encoder(*batch).select(order))


def test_detached_instructions_keep_their_values_and_lose_their_history(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    encoded = encoder(*batch)
    _close(encoded.detached(), encoded)
    assert encoded.context.requires_grad
    detached = encoded.detached()
    assert not any(t.requires_grad for t in (detached.context, detached.hidden, detached.cell))


def test_words_are_dropped_in_training_only(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    encoder.train()
    noisy, again = encoder(*batch), encoder(*batch)
    encoder.eval()
    assert not torch.equal(noisy.context, again.context)
    assert torch.equal(encoder(*batch).context, encoder(*batch).context)
