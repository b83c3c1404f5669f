from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from scenemem.models.language import InstructionEncoder, Instructions

PADDING, WORDS, WORD_WIDTH, WIDTH = 0, 20, 6, 10


@pytest.fixture
def encoder() -> InstructionEncoder:
    torch.manual_seed(0)
    made = InstructionEncoder(WORDS, WORD_WIDTH, WIDTH, dropout=0.5, padding=PADDING)
    return made.double().eval()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Four texts of different lengths, (4, 7) and (4,)."""
    lengths = torch.tensor([3, 7, 1, 5])
    tokens = torch.randint(1, WORDS, (4, 7), generator=torch.Generator().manual_seed(1))
    return tokens.masked_fill(torch.arange(7) >= lengths.unsqueeze(1), PADDING), lengths


def _close(seen: Instructions, expected: Instructions) -> None:
    """The same apart from what stands in the padding."""
    for name in ("mask", "hidden", "cell"):
        torch.testing.assert_close(getattr(seen, name), getattr(expected, name))
    torch.testing.assert_close(seen.context[seen.mask], expected.context[expected.mask])


def _encoded_alone(encoder: InstructionEncoder, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One text by torch.  words: (L, word width)  ->  context (L, H), hidden (H,), cell (H,)"""
    ahead, _ = encoder.forward_lstm(words)
    back = encoder.backward_lstm(words.flip(0))[0].flip(0)
    context = torch.cat([ahead, back], dim=1)
    hidden = torch.tanh(encoder.begin_hidden(context.max(dim=0).values))
    return context, hidden, encoder.begin_cell(torch.cat([ahead[-1], back[0]]))


def test_each_text_is_encoded_as_if_alone(encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]) -> None:
    encoded = encoder(*batch)
    for row, length in enumerate(batch[1].tolist()):
        context, hidden, cell = _encoded_alone(encoder, encoder.embedding(batch[0][row, :length]))
        torch.testing.assert_close(encoded.context[row, :length], context)
        torch.testing.assert_close(encoded.hidden[row], hidden)
        torch.testing.assert_close(encoded.cell[row], cell)
        assert encoded.mask[row].tolist() == [True] * length + [False] * (7 - length)


def _bidirectional(encoder: InstructionEncoder) -> nn.LSTM:
    """Both LSTMs of the encoder as one of torch's."""
    both = nn.LSTM(WORD_WIDTH, WIDTH // 2, batch_first=True, bidirectional=True).double()
    back = {f"{name}_reverse": value for name, value in encoder.backward_lstm.state_dict().items()}
    both.load_state_dict({**encoder.forward_lstm.state_dict(), **back})
    return both


def test_words_and_gradients_are_those_of_a_bidirectional_lstm(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    tokens, lengths = batch
    both = _bidirectional(encoder)
    packed = pack_padded_sequence(encoder.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(both(packed)[0], batch_first=True)
    encoded = encoder(tokens, lengths)
    torch.testing.assert_close(encoded.context[encoded.mask], expected[encoded.mask])

    matters = torch.randn_like(expected) * encoded.mask.unsqueeze(-1)
    learned = [
        encoder.embedding.weight,
        *encoder.forward_lstm.parameters(),
        *encoder.backward_lstm.parameters(),
    ]
    gradients = torch.autograd.grad((encoded.context * matters).sum(), learned)
    plain = torch.autograd.grad((expected * matters).sum(), [encoder.embedding.weight, *both.parameters()])
    torch.testing.assert_close(gradients, plain)


def test_more_padding_changes_nothing(encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]) -> None:
    tokens, lengths = batch
    padded = encoder(pad(tokens, (0, 4), value=PADDING), lengths)
    assert not padded.mask[:, 7:].any()
    cut = Instructions(padded.context[:, :7], padded.mask[:, :7], padded.hidden, padded.cell)
    _close(cut, encoder(tokens, lengths))


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


def test_a_batch_of_words_that_are_all_alike_can_be_encoded(encoder: InstructionEncoder) -> None:
    encoded = encoder(torch.full((2, 1), 5), torch.tensor([1, 1]))
    context, hidden, cell = _encoded_alone(encoder, encoder.embedding(torch.tensor([5])))
    torch.testing.assert_close(encoded.context, context.expand(2, 1, -1))
    torch.testing.assert_close(encoded.hidden, hidden.expand(2, -1))
    torch.testing.assert_close(encoded.cell, cell.expand(2, -1))


def test_detached_instructions_keep_their_values_and_lose_their_history(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    encoded = encoder(*batch)
    detached = encoded.detached()
    _close(detached, encoded)
    assert encoded.context.requires_grad
    assert not any(t.requires_grad for t in (detached.context, detached.hidden, detached.cell))


def test_some_instructions_can_be_selected_in_any_order(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    encoded, rows = encoder(*batch), torch.tensor([3, 1, 1])
    selected = encoded.select(rows)
    for item in fields(Instructions):
        assert torch.equal(getattr(selected, item.name), getattr(encoded, item.name)[rows])


def test_repeated_instructions_stand_one_batch_after_the_other(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    encoded = encoder(*batch)
    repeated, three_times = encoded.repeat(3), encoded.select(torch.arange(4).repeat(3))
    for item in fields(Instructions):
        assert torch.equal(getattr(repeated, item.name), getattr(three_times, item.name))
    (gradient,) = torch.autograd.grad(repeated.hidden.sum(), encoded.hidden)
    assert torch.equal(gradient, torch.full_like(gradient, 3.0))


def test_noise_is_made_in_training_only(encoder: InstructionEncoder) -> None:
    """Half of all numbers are dropped, the others doubled; each text has a mask of its own."""
    assert torch.equal(encoder.noise(3), torch.ones(3, WIDTH, dtype=torch.float64))
    noise, again = encoder.train().noise(3), encoder.noise(3)
    assert noise.shape == (3, WIDTH)
    assert set(noise.flatten().tolist()) == {0.0, 2.0}
    assert not (noise == noise[0]).all()
    assert not torch.equal(noise, again)


def test_nothing_is_dropped_without_noise(encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]) -> None:
    expected = encoder(*batch)
    _close(encoder(*batch, encoder.noise(4)), expected)
    _close(encoder.train()(*batch), expected)


@pytest.fixture
def noise(encoder: InstructionEncoder) -> Tensor:
    """The masks of four texts, (4, H)."""
    drawn: Tensor = encoder.train().noise(4)
    encoder.eval()
    return drawn


def test_noise_leaves_the_beginning_alone_and_takes_as_much_from_every_word(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor], noise: Tensor
) -> None:
    clear, noisy = encoder(*batch), encoder(*batch, noise)
    torch.testing.assert_close(noisy.hidden, clear.hidden)
    torch.testing.assert_close(noisy.cell, clear.cell)
    kept = noisy.context != 0
    torch.testing.assert_close(noisy.context, 2.0 * clear.context * kept)
    assert torch.equal(kept.sum(dim=2), (noise != 0).sum(dim=1, keepdim=True).expand(4, 7))


def test_every_word_turns_the_mask_of_its_text_differently(encoder: InstructionEncoder) -> None:
    """Masks with a number of its own in every column show where each column went."""
    tokens = torch.randint(1, WORDS, (2, WIDTH), generator=torch.Generator().manual_seed(2))
    lengths, noise = torch.tensor([WIDTH, WIDTH]), torch.rand(2, WIDTH, dtype=torch.float64) + 1
    masks = encoder(tokens, lengths, noise).context / encoder(tokens, lengths).context
    turns = torch.stack([noise.roll(-turn, dims=1) for turn in range(WIDTH)], dim=1)  # (2, turn, H)
    same = (masks.unsqueeze(2) - turns.unsqueeze(1)).abs().amax(dim=3) < 1e-9  # (2, word, turn)
    assert (same.sum(dim=1) == 1).all()  # as many words as columns: every turn is taken once
    assert (same.sum(dim=2) == 1).all()
    assert torch.equal(same[0], same[1])


def test_some_texts_are_encoded_with_their_part_of_the_noise(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor], noise: Tensor
) -> None:
    (tokens, lengths), rows = batch, torch.tensor([3, 1])
    _close(encoder(tokens[rows], lengths[rows], noise[rows]), encoder(*batch, noise).select(rows))


def test_more_padding_changes_nothing_for_the_noise(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor], noise: Tensor
) -> None:
    tokens, lengths = batch
    padded, encoded = encoder(pad(tokens, (0, 4), value=PADDING), lengths, noise), encoder(*batch, noise)
    torch.testing.assert_close(padded.context[:, :7][encoded.mask], encoded.context[encoded.mask])


def test_embeddings_can_begin_with_vectors_of_fewer_columns(encoder: InstructionEncoder) -> None:
    before = encoder.embedding.weight.detach().clone()
    encoder.begin_with(torch.tensor([5, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    after = encoder.embedding.weight.detach()
    assert after[5, :2].tolist() == [1.0, 2.0]
    assert after[2, :2].tolist() == [3.0, 4.0]
    before[torch.tensor([5, 2]), :2] = after[torch.tensor([5, 2]), :2]
    assert torch.equal(before, after)
