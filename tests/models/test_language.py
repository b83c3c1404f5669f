from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from scenemem.models.navigator import (
    InstructionEncoder,
    Instructions,
    PackedInstructions,
    Packing,
    gate_order,
    run_lstms,
    selected,
)
from tests.models.helpers import one_per_episode

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


def _assert_close(found: Instructions, expected: Instructions) -> None:
    """The same apart from what stands in the padding."""
    for name in ("mask", "hidden", "cell"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    torch.testing.assert_close(found.context[found.mask], expected.context[expected.mask])


def _encoded_by_torch(encoder: InstructionEncoder, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One text.  words: (L, word width)  ->  context (L, H), hidden (H,), cell (H,)"""
    ahead, _ = encoder.forward_lstm(words)
    back = encoder.backward_lstm(words.flip(0))[0].flip(0)
    context = torch.cat([ahead, back], dim=1)
    hidden = torch.tanh(encoder.initial_hidden(context.max(dim=0).values))
    return context, hidden, encoder.initial_cell(torch.cat([ahead[-1], back[0]]))


def test_each_text_is_encoded_by_itself(encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]) -> None:
    encoded = encoder(*batch)
    for row, length in enumerate(batch[1].tolist()):
        context, hidden, cell = _encoded_by_torch(encoder, encoder.embedding(batch[0][row, :length]))
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

    upstream = torch.randn_like(expected) * encoded.mask.unsqueeze(-1)
    learned = [
        encoder.embedding.weight,
        *encoder.forward_lstm.parameters(),
        *encoder.backward_lstm.parameters(),
    ]
    gradients = torch.autograd.grad((encoded.context * upstream).sum(), learned)
    plain = torch.autograd.grad((expected * upstream).sum(), [encoder.embedding.weight, *both.parameters()])
    torch.testing.assert_close(gradients, plain)


def test_more_padding_changes_nothing(encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]) -> None:
    tokens, lengths = batch
    padded = encoder(pad(tokens, (0, 4), value=PADDING), lengths)
    assert not padded.mask[:, 7:].any()
    cut = Instructions(padded.context[:, :7], padded.mask[:, :7], padded.hidden, padded.cell)
    _assert_close(cut, encoder(tokens, lengths))


def test_what_the_padding_holds_does_not_matter(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    tokens, lengths = batch
    garbage = torch.where(torch.arange(7) < lengths.unsqueeze(1), tokens, 13)
    _assert_close(encoder(garbage, lengths), encoder(tokens, lengths))


def test_the_order_of_the_batch_does_not_matter(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    order = torch.tensor([2, 0, 3, 1])
    _assert_close(encoder(batch[0][order], batch[1][order]), selected(encoder(*batch), order))


def test_a_batch_with_a_single_different_word_can_be_encoded(encoder: InstructionEncoder) -> None:
    encoded = encoder(torch.full((2, 1), 5), torch.tensor([1, 1]))
    context, hidden, cell = _encoded_by_torch(encoder, encoder.embedding(torch.tensor([5])))
    torch.testing.assert_close(encoded.context, context.expand(2, 1, -1))
    torch.testing.assert_close(encoded.hidden, hidden.expand(2, -1))
    torch.testing.assert_close(encoded.cell, cell.expand(2, -1))


def test_repeated_instructions_stand_one_batch_after_the_other(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    encoded = encoder(*batch)
    repeated, three_times = encoded.repeat(3), selected(encoded, torch.arange(4).repeat(3))
    for item in fields(Instructions):
        assert torch.equal(getattr(repeated, item.name), getattr(three_times, item.name))
    (gradient,) = torch.autograd.grad(repeated.hidden.sum(), encoded.hidden)
    assert torch.equal(gradient, torch.full_like(gradient, 3.0))


def test_dropout_masks_are_drawn_in_training_only(encoder: InstructionEncoder) -> None:
    """Half of all numbers are dropped, the others doubled; each text has a mask of its own."""
    assert torch.equal(encoder.dropout_mask(3), torch.ones(3, WIDTH, dtype=torch.float64))
    mask, again = encoder.train().dropout_mask(3), encoder.dropout_mask(3)
    assert mask.shape == (3, WIDTH)
    assert set(mask.flatten().tolist()) == {0.0, 2.0}
    assert not (mask == mask[0]).all()
    assert not torch.equal(mask, again)


def test_nothing_is_dropped_without_a_mask(encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]) -> None:
    expected = encoder(*batch)
    _assert_close(encoder(*batch, encoder.dropout_mask(4)), expected)
    _assert_close(encoder.train()(*batch), expected)


@pytest.fixture
def dropout(encoder: InstructionEncoder) -> Tensor:
    """The masks of four texts, (4, H)."""
    drawn: Tensor = encoder.train().dropout_mask(4)
    encoder.eval()
    return drawn


def test_dropout_leaves_the_initial_states_alone_and_takes_as_much_from_every_word(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor], dropout: Tensor
) -> None:
    whole, dropped = encoder(*batch), encoder(*batch, dropout)
    torch.testing.assert_close(dropped.hidden, whole.hidden)
    torch.testing.assert_close(dropped.cell, whole.cell)
    kept = dropped.context != 0
    torch.testing.assert_close(dropped.context, 2.0 * whole.context * kept)
    assert torch.equal(kept.sum(dim=2), (dropout != 0).sum(dim=1, keepdim=True).expand(4, 7))


def test_every_word_shifts_the_mask_of_its_text_differently(encoder: InstructionEncoder) -> None:
    """Masks with a number of its own in every column show where each column went."""
    tokens = torch.randint(1, WORDS, (2, WIDTH), generator=torch.Generator().manual_seed(2))
    lengths, dropout = torch.tensor([WIDTH, WIDTH]), torch.rand(2, WIDTH, dtype=torch.float64) + 1
    masks = encoder(tokens, lengths, dropout).context / encoder(tokens, lengths).context
    shifts = torch.stack([dropout.roll(-shift, dims=1) for shift in range(WIDTH)], dim=1)  # (2, shift, H)
    same = (masks.unsqueeze(2) - shifts.unsqueeze(1)).abs().amax(dim=3) < 1e-9  # (2, word, shift)
    assert (same.sum(dim=1) == 1).all()  # as many words as columns: every shift is taken once
    assert (same.sum(dim=2) == 1).all()
    assert torch.equal(same[0], same[1])


def test_some_texts_are_encoded_with_their_part_of_the_mask(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor], dropout: Tensor
) -> None:
    (tokens, lengths), rows = batch, torch.tensor([3, 1])
    _assert_close(
        encoder(tokens[rows], lengths[rows], dropout[rows]), selected(encoder(*batch, dropout), rows)
    )


def test_more_padding_does_not_change_what_is_dropped(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor], dropout: Tensor
) -> None:
    tokens, lengths = batch
    padded, encoded = encoder(pad(tokens, (0, 4), value=PADDING), lengths, dropout), encoder(*batch, dropout)
    torch.testing.assert_close(padded.context[:, :7][encoded.mask], encoded.context[encoded.mask])


def test_embeddings_can_start_from_vectors_of_fewer_columns(encoder: InstructionEncoder) -> None:
    before = encoder.embedding.weight.detach().clone()
    encoder.initialise_words(torch.tensor([5, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    after = encoder.embedding.weight.detach()
    assert after[5, :2].tolist() == [1.0, 2.0]
    assert after[2, :2].tolist() == [3.0, 4.0]
    before[torch.tensor([5, 2]), :2] = after[torch.tensor([5, 2]), :2]
    assert torch.equal(before, after)


@pytest.fixture
def packed() -> PackedInstructions:
    """Two texts of 5 and 2 words; episode 0 reads its text at three steps, episode 1 at the last two."""
    torch.manual_seed(3)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    context = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    packing = Packing(torch.tensor([0, 1, 0, 1, 0]), torch.tensor([0, 2, 1, 1, 2]), 2, 3)
    instructions = Instructions(context, mask, *torch.zeros(2, 2, WIDTH))
    return PackedInstructions(lambda: instructions, packing)


@pytest.fixture
def queries() -> Tensor:
    """Three queries of each of the five rows."""
    return torch.randn(5, 3 * WIDTH, dtype=torch.float64, requires_grad=True)


def _attended_by_row(packed: PackedInstructions, query: Tensor) -> tuple[Tensor, Tensor]:
    """Row by row: attention over the words of its own text  ->  (X, H), (X, L)"""
    words, values, weights = packed.instructions, [], []
    for row, episode in enumerate(packed.packing.episode.tolist()):
        own = words.context[episode][words.mask[episode]]
        share = torch.stack([word @ query[row] for word in own]).softmax(0)
        values.append(sum((a * word for a, word in zip(share, own, strict=True)), torch.zeros(WIDTH)))
        weights.append(pad(share, (0, words.mask.shape[1] - len(own))))
    return torch.stack(values), torch.stack(weights)


def test_every_row_attends_to_the_words_of_its_own_instruction(
    packed: PackedInstructions, queries: Tensor
) -> None:
    """Values, weights, and the gradients of both."""
    query = queries[:, :WIDTH]
    found, expected = packed.attend(query), _attended_by_row(packed, query)
    torch.testing.assert_close(found, expected)
    upstream = [torch.randn_like(part) for part in expected]
    learned = [queries, packed.instructions.context]
    torch.testing.assert_close(
        torch.autograd.grad(found, learned, upstream), torch.autograd.grad(expected, learned, upstream)
    )


def test_several_queries_of_a_row_attend_each_by_itself(packed: PackedInstructions, queries: Tensor) -> None:
    values, weights = packed.attend_many(queries)
    table = weights.view(2, 3, 3, 5)  # episode, step, query, word
    for number, query in enumerate(queries.chunk(3, dim=1)):
        value, weight = _attended_by_row(packed, query)
        torch.testing.assert_close(values.chunk(3, dim=1)[number], value)
        torch.testing.assert_close(table[packed.packing.episode, packed.packing.step, number], weight)


def test_rows_may_read_instructions_of_their_own(packed: PackedInstructions, queries: Tensor) -> None:
    """While acting every row has an instruction; over finished walks the rows of an episode share one."""
    own = PackedInstructions(
        lambda: selected(packed.instructions, packed.packing.episode), one_per_episode(5, queries.device)
    )
    query = queries[:, :WIDTH]
    torch.testing.assert_close(own.attend(query), packed.attend(query))


def test_instructions_are_looked_up_once_and_only_when_they_are_read(
    packed: PackedInstructions, queries: Tensor
) -> None:
    lookups = []

    def lookup() -> Instructions:
        lookups.append(1)
        return packed.instructions

    lazy, query = PackedInstructions(lookup, packed.packing), queries[:, :WIDTH]
    lazy.packing.table(query)
    assert lookups == []
    torch.testing.assert_close(lazy.attend(query), packed.attend(query))
    torch.testing.assert_close(lazy.attend_many(queries), packed.attend_many(queries))
    assert lazy.instructions is packed.instructions
    assert lookups == [1]


INPUT_WIDTH, LSTM_WIDTH = 3, 5
sizes = pytest.mark.parametrize(
    ("lstms", "steps", "rows"), [(1, 4, 3), (2, 7, 4), (3, 2, 1), (2, 1, 5), (1, 1, 1)]
)


def _lstms(number: int) -> list[nn.LSTM]:
    torch.manual_seed(number)
    lstms = [nn.LSTM(INPUT_WIDTH, LSTM_WIDTH).double() for _ in range(number)]
    for parameter in nn.ModuleList(lstms).parameters():
        nn.init.normal_(parameter)
    return lstms


def _run(lstms: list[nn.LSTM], inputs: Tensor) -> Tensor:
    """The states by the function under test, every input a row of its own.

    inputs: (D, L, B, E)  ->  (D, L, B, W)
    """
    gate_inputs = [
        inputs[number].flatten(0, 1) @ gate_order(lstm.get_parameter("weight_ih_l0")).t()
        + gate_order(lstm.get_parameter("bias_ih_l0") + lstm.get_parameter("bias_hh_l0"))
        for number, lstm in enumerate(lstms)
    ]
    recurrent = torch.stack([gate_order(lstm.get_parameter("weight_hh_l0")) for lstm in lstms])
    word = torch.arange(inputs[..., 0].numel()).view(inputs.shape[:3])
    return run_lstms(torch.cat(gate_inputs), word, recurrent)


def _run_by_torch(lstms: list[nn.LSTM], inputs: Tensor) -> Tensor:
    return torch.stack([lstm(inputs[number])[0] for number, lstm in enumerate(lstms)])


@sizes
def test_the_states_of_lstms_are_those_of_torch(lstms: int, steps: int, rows: int) -> None:
    modules, inputs = _lstms(lstms), torch.randn(lstms, steps, rows, INPUT_WIDTH, dtype=torch.float64)
    torch.testing.assert_close(_run(modules, inputs), _run_by_torch(modules, inputs))


@sizes
def test_the_gradients_of_lstms_are_those_of_torch(lstms: int, steps: int, rows: int) -> None:
    """Of the inputs and of every weight, when every state has a gradient."""
    modules = _lstms(lstms)
    inputs = torch.randn(lstms, steps, rows, INPUT_WIDTH, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(lstms, steps, rows, LSTM_WIDTH, dtype=torch.float64)
    learned = [inputs, *nn.ModuleList(modules).parameters()]
    gradients = torch.autograd.grad((_run(modules, inputs) * upstream).sum(), learned)
    expected = torch.autograd.grad((_run_by_torch(modules, inputs) * upstream).sum(), learned)
    torch.testing.assert_close(gradients, expected)


@pytest.fixture
def shared() -> tuple[Tensor, Tensor, Tensor]:
    """Five different inputs that enter two LSTMs again and again, and one that never does."""
    torch.manual_seed(0)
    gate_inputs = torch.randn(6, 4 * LSTM_WIDTH, dtype=torch.float64, requires_grad=True)
    recurrent = torch.randn(2, 4 * LSTM_WIDTH, LSTM_WIDTH, dtype=torch.float64, requires_grad=True)
    return gate_inputs, torch.randint(0, 5, (2, 6, 3)), recurrent


def test_a_state_depends_on_earlier_inputs_of_its_own_row_only(
    shared: tuple[Tensor, Tensor, Tensor],
) -> None:
    gate_inputs, word, recurrent = shared
    states = run_lstms(gate_inputs, word, recurrent)
    torch.testing.assert_close(run_lstms(gate_inputs, word[:, :4], recurrent), states[:, :4])
    torch.testing.assert_close(run_lstms(gate_inputs, word[:, :, 1:2], recurrent), states[:, :, 1:2])
    torch.testing.assert_close(run_lstms(gate_inputs, word[1:], recurrent[1:]), states[1:])


def test_equal_inputs_may_be_given_once(shared: tuple[Tensor, Tensor, Tensor]) -> None:
    """Values and gradients are those of inputs written out; what never enters has none."""
    gate_inputs, word, recurrent = shared
    every = torch.arange(word.numel()).view_as(word)
    states = run_lstms(gate_inputs, word, recurrent)
    expected = run_lstms(gate_inputs[word.flatten()], every, recurrent)
    torch.testing.assert_close(states, expected)

    upstream = torch.randn_like(expected)
    gradients = torch.autograd.grad((states * upstream).sum(), [gate_inputs, recurrent])
    torch.testing.assert_close(
        gradients, torch.autograd.grad((expected * upstream).sum(), [gate_inputs, recurrent])
    )
    assert not gradients[0][5].any()


def test_the_gradient_may_lie_in_memory_in_any_order_and_the_inputs_stay_as_they_are(
    shared: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Autograd hands over expanded and permuted gradients."""
    gate_inputs, _, recurrent = shared
    before = gate_inputs.detach().clone()
    plain, one = torch.ones(2, 6, 3, LSTM_WIDTH, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    permuted = torch.ones(3, LSTM_WIDTH, 2, 6, dtype=torch.float64).permute(2, 3, 0, 1)
    expected = torch.autograd.grad(run_lstms(*shared), [gate_inputs, recurrent], plain)
    for gradient in (permuted, one.expand_as(plain)):
        found = torch.autograd.grad(run_lstms(*shared), [gate_inputs, recurrent], gradient)
        torch.testing.assert_close(found, expected)
    assert torch.equal(gate_inputs, before)


def test_gates_are_put_in_order() -> None:
    """From input, forget, candidate, output to input, forget, output, candidate."""
    rows = torch.arange(8)
    assert gate_order(rows).tolist() == [0, 1, 2, 3, 6, 7, 4, 5]
    table = torch.randn(8, 3)
    assert torch.equal(gate_order(table), table[gate_order(rows)])
