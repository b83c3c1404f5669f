"""The recurrent navigator, part by part: against plain computations, and what must not change the answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from scenemem.features.store import Environment
from scenemem.models import navigator
from scenemem.models.navigator import (
    POSE_WIDTH,
    CandidateScore,
    Critic,
    DropoutMasks,
    InstructionEncoder,
    Instructions,
    LSTMState,
    LSTMUpdater,
    Observation,
    PanoramaQuery,
    RolloutInputs,
    State,
    StateUpdater,
    attend_panoramas,
    dots,
    fold_angles,
    masked_softmax,
    recomputed,
    select_rows,
    tiled,
)
from scenemem.world.graph import (
    ANGLE_WIDTH,
    VIEWS,
    World,
    angle_feature,
    rotated,
    view_elevation,
    view_heading,
)

EPISODES, VISUAL, WIDTH, WORDS, WORD_WIDTH, VOCABULARY, PADDING = 4, 5, 8, 6, 6, 20, 0
LENGTHS = torch.tensor([3, 6, 1, 5])

close = torch.testing.assert_close
nearly = partial(torch.testing.assert_close, atol=1e-6, rtol=1e-5)
"""The plain computations have angles of 32 bits."""


def _randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# attention and angles


@pytest.mark.parametrize(
    ("scores", "mask", "weights"),
    [
        *(
            ([0.0, math.log(3.0), rest], [1, 1, 0], [0.25, 0.75, 0.0])
            for rest in (torch.inf, -torch.inf, 1e30)
        ),
        ([1e30, -1e30, 0.0], [1, 1, 0], [1.0, 0.0, 0.0]),
        ([-1e30, -1e30, 1e30], [1, 1, 0], [0.5, 0.5, 0.0]),
        ([1.0, 2.0, 3.0], [0, 0, 0], [0.0, 0.0, 0.0]),
    ],
)
def test_masked_entries_do_not_take_part_in_a_softmax(
    scores: list[float], mask: list[int], weights: list[float]
) -> None:
    """Of scores of any size; a row without any entry is zero and has no gradient."""
    rows = torch.tensor([scores, [1.0, 1.0, 1.0]], requires_grad=True)
    found = masked_softmax(rows, torch.tensor([mask, [1, 0, 1]]).bool())
    close(found, torch.tensor([weights, [0.5, 0.0, 0.5]]))
    (gradient,) = torch.autograd.grad(found[:, 0].sum(), rows)
    assert gradient[1].tolist() == [0.25, 0.0, -0.25]
    assert any(mask) or not gradient[0].any()


def test_every_row_is_multiplied_by_the_query_of_its_table() -> None:
    rows, query = _randn(3, 4, 5), _randn(3, 5)
    expected = [[float((rows[m, n] * query[m]).sum()) for n in range(4)] for m in range(3)]
    close(dots(rows, query), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("width", [4, 32, ANGLE_WIDTH])
def test_angles_are_tiled_as_in_the_paper_and_queries_folded_exactly(width: int) -> None:
    heading, elevation = torch.rand(2, 5, 7, dtype=torch.float64) * 2 * math.pi
    four, wide = angle_feature(heading, elevation, 4), angle_feature(heading, elevation, width)
    query = _randn(5, 7, width)
    close(tiled(four, width), wide)
    close((four * fold_angles(query)).sum(-1), (wide * query).sum(-1))
    assert tiled(four).shape == (5, 7, ANGLE_WIDTH)


def test_rotating_features_is_turning_the_heading_and_may_be_done_to_the_query() -> None:
    heading, elevation = torch.rand(2, 5, 7, dtype=torch.float64) * 2 * math.pi
    facing, query = torch.rand(5, 1, dtype=torch.float64) * 2 * math.pi, _randn(5, 1, ANGLE_WIDTH)
    absolute, relative = (angle_feature(turned, elevation, 4) for turned in (heading, heading - facing))
    close(rotated(absolute, facing), relative)
    cheap = (absolute * rotated(fold_angles(query), -facing)).sum(-1)
    close(cheap, (angle_feature(heading - facing, elevation) * query).sum(-1))


@pytest.fixture
def environment(random_environment: Callable[[World, int], Environment], world: World) -> Environment:
    """Random features of 64 bits."""
    store = random_environment(world, VISUAL).store
    return Environment(world, replace(store, values=store.values.double(), half=True))


@pytest.mark.parametrize("at_once", [0, 40])
@pytest.mark.parametrize("count", [1, 16, 17, 50])
def test_every_query_reads_the_views_of_its_viewpoint(
    count: int, at_once: int, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few are read together; values, and the gradient, for which views are looked up again."""
    monkeypatch.setattr(navigator, "_CACHED", at_once * VIEWS * VISUAL)
    monkeypatch.setattr(navigator, "_KEPT", 0)
    query, viewpoint = _randn(count, VISUAL).requires_grad_(), torch.randint(0, 9, (count,))
    views = environment.panorama(viewpoint)
    expected = torch.stack([(v @ q).softmax(0) @ v for q, v in zip(query, views, strict=True)])
    found, upstream = attend_panoramas(query, viewpoint, environment), torch.randn_like(expected)
    close(found, expected)
    close(torch.autograd.grad(found, query, upstream), torch.autograd.grad(expected, query, upstream))


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("learns", [False, True])
def test_large_parts_are_computed_again_and_learn_the_same(learns: bool, more: int) -> None:
    """At the threshold they are kept, above it not; without gradients nothing is computed twice."""
    first, second, calls = _randn(3).requires_grad_(), _randn(3).requires_grad_(), []

    def product(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(1)
        return (first * second).sin(), first.exp()

    with torch.set_grad_enabled(learns):
        found = recomputed(product, first, second, numbers=navigator._KEPT + more)
    close(found, ((first * second).sin(), first.exp()))
    if learns:
        upstream = [_randn(3), _randn(3)]
        expected = torch.autograd.grad(((first * second).sin(), first.exp()), [first, second], upstream)
        close(torch.autograd.grad(found, [first, second], upstream), expected)
    assert len(calls) == 1 + (learns and more)


# instructions


@pytest.fixture
def encoder() -> InstructionEncoder:
    made = InstructionEncoder(VOCABULARY, WORD_WIDTH, WIDTH, dropout=0.5, padding=PADDING)
    return made.double().eval()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Four texts of different lengths, (4, 6) and (4,); the padding holds something."""
    return torch.randint(1, VOCABULARY, (EPISODES, WORDS)), LENGTHS


def test_words_and_gradients_are_those_of_a_bidirectional_lstm(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    (tokens, lengths), encoded = batch, encoder(*batch)
    both = nn.LSTM(WORD_WIDTH, WIDTH // 2, batch_first=True, bidirectional=True).double()
    back = {f"{name}_reverse": value for name, value in encoder.backward_lstm.state_dict().items()}
    both.load_state_dict({**encoder.forward_lstm.state_dict(), **back})
    packed = pack_padded_sequence(encoder.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(both(packed)[0], batch_first=True)
    close(encoded.context[encoded.mask], expected[encoded.mask])

    upstream = torch.randn_like(expected) * encoded.mask.unsqueeze(-1)
    lstms = [*encoder.forward_lstm.parameters(), *encoder.backward_lstm.parameters()]
    gradients = torch.autograd.grad(encoded.context, [encoder.embedding.weight, *lstms], upstream)
    plain = torch.autograd.grad(expected, [encoder.embedding.weight, *both.parameters()], upstream)
    close(gradients, plain)


def test_the_first_state_summarises_the_words_and_the_ends_of_each_text(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    encoded, half = encoder(*batch), WIDTH // 2
    for row, length in enumerate(LENGTHS.tolist()):
        assert encoded.mask[row].tolist() == [True] * length + [False] * (WORDS - length)
        own = encoded.context[row, :length]
        close(encoded.hidden[row], torch.tanh(encoder.initial_hidden(own.max(dim=0).values)))
        close(encoded.cell[row], encoder.initial_cell(torch.cat([own[-1, :half], own[0, half:]])))


def test_dropout_masks_are_drawn_in_training_only(
    encoder: InstructionEncoder, batch: tuple[Tensor, Tensor]
) -> None:
    """Half of all numbers are dropped, the others doubled; each text has a mask of its own."""
    assert torch.equal(encoder.dropout_mask(3), torch.ones(3, WIDTH, dtype=torch.float64))
    expected = encoder(*batch).context
    close(encoder.train()(*batch).context, expected)
    mask, again = encoder.dropout_mask(3), encoder.dropout_mask(3)
    assert set(mask.flatten().tolist()) == {0.0, 2.0}
    assert not (mask == mask[0]).all()
    assert not torch.equal(mask, again)


def test_every_word_shifts_the_mask_of_its_text_differently(encoder: InstructionEncoder) -> None:
    """Masks with a number of its own in every column show where each went; first states are left alone."""
    tokens, lengths = torch.randint(1, VOCABULARY, (2, WIDTH)), torch.tensor([WIDTH, WIDTH])
    mask = torch.rand(2, WIDTH, dtype=torch.float64) + 1
    dropped, whole = encoder(tokens, lengths, mask), encoder(tokens, lengths)
    close((dropped.hidden, dropped.cell), (whole.hidden, whole.cell))
    masks = dropped.context / whole.context
    shifts = torch.stack([mask.roll(-shift, dims=1) for shift in range(WIDTH)], dim=1)  # (2, shift, H)
    same = (masks.unsqueeze(2) - shifts.unsqueeze(1)).abs().amax(dim=3) < 1e-9  # (2, word, shift)
    assert (same.sum(dim=1) == 1).all(), "as many words as columns: every shift is taken once"
    assert (same.sum(dim=2) == 1).all()
    assert torch.equal(same[0], same[1])


def test_embeddings_can_start_from_vectors_of_fewer_columns(encoder: InstructionEncoder) -> None:
    expected = encoder.embedding.weight.detach().clone()
    encoder.initialise_words(torch.tensor([5, 2]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    expected[5, :2], expected[2, :2] = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert torch.equal(encoder.embedding.weight, expected)


@pytest.fixture
def instructions() -> Instructions:
    """The padding of the words holds something."""
    mask = torch.arange(WORDS) < LENGTHS.unsqueeze(1)
    hidden, cell = _randn(2, EPISODES, WIDTH)
    return Instructions(_randn(EPISODES, WORDS, WIDTH), mask, hidden, cell, mask.long())


def test_every_query_attends_to_the_words_of_its_own_instruction(instructions: Instructions) -> None:
    """One query per text or several; values, weights, and the gradients of both."""
    queries, context = _randn(EPISODES, 3, WIDTH).requires_grad_(), instructions.context.requires_grad_()
    values, weights = instructions.attend(queries)
    expected = torch.zeros_like(values), torch.zeros_like(weights)
    for row, length in enumerate(LENGTHS.tolist()):
        own = context[row, :length]
        for number in range(3):
            share = (own @ queries[row, number]).softmax(0)
            expected[0][row, number], expected[1][row, number, :length] = share @ own, share
    close((values, weights), expected)
    close(instructions.attend(queries[:, 1]), (values[:, 1], weights[:, 1]))
    upstream, learned = [torch.randn_like(values), torch.randn_like(weights)], [queries, context]
    gradients = torch.autograd.grad([values, weights], learned, upstream)
    close(gradients, torch.autograd.grad(expected, learned, upstream))
    assert not gradients[1][~instructions.mask].any(), "padding learns nothing"


def test_instructions_are_joined_repeated_and_selected_with_their_gradient(
    instructions: Instructions,
) -> None:
    rows, context = torch.tensor([3, 1, 1]), instructions.context.requires_grad_()
    chosen, twice = select_rows(instructions, rows), instructions.repeat(2)
    one = select_rows(instructions, torch.tensor([2]))
    short = replace(one, context=one.context[:, :1], mask=one.mask[:, :1], tokens=one.tokens[:, :1])
    joined = Instructions.joined([short, instructions])
    for item in fields(Instructions):
        values = getattr(instructions, item.name)
        assert torch.equal(getattr(chosen, item.name), values[rows])
        assert torch.equal(getattr(twice, item.name), torch.cat([values, values]))
        assert torch.equal(getattr(joined, item.name)[1:], values)
    assert joined.mask[0].tolist() == [True] + [False] * (WORDS - 1)
    assert torch.equal(joined.hidden[0], instructions.hidden[2])
    assert Instructions.joined([short]) is short
    (gradient,) = torch.autograd.grad(chosen.context.sum() + twice.context.sum(), context)
    assert gradient[:, 0, 0].tolist() == [2.0, 4.0, 2.0, 3.0]


# states and observations


@dataclass(frozen=True)
class _TwoParts(State):
    memory: Tensor  # (B, 2)


def test_all_fields_of_a_state_are_selected_and_replaced_in_a_copy() -> None:
    state = _TwoParts(torch.arange(4.0).unsqueeze(1), torch.arange(8.0).view(4, 2))
    chosen = state.select(torch.tensor([2, 0, 2]))
    assert type(chosen) is _TwoParts
    assert chosen.hidden.flatten().tolist() == [2.0, 0.0, 2.0]
    assert chosen.memory.tolist() == [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]
    new = _TwoParts(torch.tensor([[10.0], [20.0]]), torch.tensor([[11.0, 12.0], [21.0, 22.0]]))
    replaced = state.with_rows(torch.tensor([3, 1]), new)
    assert type(replaced) is _TwoParts
    assert replaced.hidden.flatten().tolist() == [0.0, 20.0, 2.0, 10.0]
    assert replaced.memory.tolist() == [[0.0, 1.0], [21.0, 22.0], [4.0, 5.0], [11.0, 12.0]]
    assert state.hidden.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.fixture
def inputs(environment: Environment, instructions: Instructions) -> RolloutInputs:
    """Masks with some zeros everywhere."""
    widths = {"lstm_input": POSE_WIDTH + VISUAL, "view_query": WIDTH, "word_query": WIDTH}
    ones = {name: torch.ones(EPISODES, width, dtype=torch.float64) for name, width in widths.items()}
    feature = torch.tensor([2.0, 0.0, 2.0, 2.0, 0.0], dtype=torch.float64)
    masks = DropoutMasks(feature, {name: dropout(mask, 0.5) for name, mask in ones.items()})
    return RolloutInputs(environment, instructions, masks)


def test_observations_have_the_words_and_masks_of_their_episodes(inputs: RolloutInputs) -> None:
    """They are selected again only when other episodes observe."""
    for rows in (torch.tensor([0, 2]), torch.tensor([0, 2, 3]), torch.arange(EPISODES)):
        where = torch.tensor([7, 3, 3, 1])[rows], torch.tensor([2, -1, 4, -1])[rows], rows + 11
        seen = Observation.of(inputs, rows, *where)
        assert (seen.viewpoint, seen.previous, seen.view) == where
        assert torch.equal(seen.instructions.context, inputs.instructions.context[rows])
        assert torch.equal(seen.masks["lstm_input"], inputs.masks["lstm_input"][rows])
        assert torch.equal(seen.masks.feature, inputs.masks.feature)
        assert torch.equal(seen.panorama, inputs.environment.store.values[where[0]])
        again = Observation.of(inputs, rows, *where)
        assert (again.instructions, again.masks) == (seen.instructions, seen.masks)


def test_what_depends_on_the_instruction_alone_is_computed_once_per_rollout(inputs: RolloutInputs) -> None:
    calls = []

    def lengths(words: Instructions) -> Tensor:
        calls.append(len(words.mask))
        return words.mask.sum(dim=1)

    where = torch.tensor([5, 5])
    for rows in ([1, 3], [0, 2]):
        seen = Observation.of(inputs, torch.tensor(rows), where, where, where)
        assert seen.per_instruction(lengths).tolist() == LENGTHS[rows].tolist()
    assert calls == [EPISODES]


# the update


@pytest.fixture(params=["around", "ahead"])
def updater(request: pytest.FixtureRequest) -> LSTMUpdater:
    """One that attends to all views, one that sees the view ahead."""
    query = PanoramaQuery(VISUAL, WIDTH) if request.param == "around" else None
    made = LSTMUpdater(VISUAL, WIDTH, query).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


@pytest.fixture
def observation(inputs: RolloutInputs) -> Observation:
    viewpoint, view = torch.tensor([7, 3, 3, 0]), torch.tensor([0, 17, 35, 24])
    return Observation.of(inputs, torch.arange(EPISODES), viewpoint, torch.full((4,), -1), view)


@pytest.fixture
def state() -> LSTMState:
    """What the last update attended to does not matter to the next one."""
    hidden, cell = _randn(2, EPISODES, WIDTH)
    return LSTMState(hidden, cell, torch.full((EPISODES, WORDS), torch.nan))


def _plain_update(
    updater: LSTMUpdater, state: LSTMState, observation: Observation, episode: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One episode, vector by vector: hidden state, cell, attention over the words."""
    facing, query = observation.view[episode], updater.view_query
    words, masks, all_views = observation.instructions, observation.masks, torch.arange(VIEWS)
    angles = angle_feature(view_heading(all_views) - view_heading(facing), view_elevation(all_views)).double()
    views = torch.cat([observation.panorama[episode] * masks.feature, angles], dim=-1)
    if isinstance(query, PanoramaQuery):
        weight = torch.cat([query.visual.weight, query.angle.weight])
        attended = (views @ weight @ (state.hidden[episode] * masks["view_query"][episode])).softmax(
            0
        ) @ views
    else:
        attended = views[facing]
    pose = angle_feature(view_heading(facing), view_elevation(facing)).double()
    dropped = torch.cat([torch.tanh(updater.pose(pose)), attended[:VISUAL]]) * masks["lstm_input"][episode]
    entered = torch.cat([dropped, attended[VISUAL:]])
    output, cell = updater.lstm(entered, (state.hidden[episode], state.cell[episode]))
    output = output * masks["word_query"][episode]
    own = words.context[episode][words.mask[episode]]
    weights = (own @ (updater.word_query.weight @ output)).softmax(0)
    hidden = torch.tanh(updater.join.weight @ torch.cat([weights @ own, output]))
    return hidden, cell, pad(weights, (0, WORDS - len(own)))


def _parts(state: LSTMState) -> list[Tensor]:
    return [state.hidden, state.cell, state.word_attention]


@pytest.mark.parametrize("kept", [2**21, 0])
def test_an_update_and_its_gradients_are_those_of_the_plain_computation(
    kept: int,
    updater: LSTMUpdater,
    state: LSTMState,
    observation: Observation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of everything that learns, whether the panoramas are kept for the gradient or looked up again."""
    monkeypatch.setattr(navigator, "_KEPT", kept)
    learned = [observation.instructions.context, state.hidden, state.cell]
    learned = [*(part.requires_grad_() for part in learned), *updater.parameters()]
    updates = [_plain_update(updater, state, observation, episode) for episode in range(EPISODES)]
    expected, found = [torch.stack(part) for part in zip(*updates, strict=True)], updater(state, observation)
    nearly(_parts(found), expected)
    upstream = [torch.randn_like(part) for part in expected]
    gradients = torch.autograd.grad(_parts(found), learned, upstream)
    close(gradients, torch.autograd.grad(expected, learned, upstream), atol=1e-5, rtol=1e-4)
    assert all(gradient.any() for gradient in gradients)


def test_a_walk_begins_with_the_summaries_of_the_instruction(
    updater: LSTMUpdater, instructions: Instructions
) -> None:
    state = updater.initial_state(instructions)
    assert torch.equal(state.hidden, instructions.hidden)
    assert torch.equal(state.cell, instructions.cell)
    assert torch.equal(state.word_attention, torch.zeros(EPISODES, WORDS, dtype=torch.float64))
    assert state.attention == {"navigator": state.word_attention}
    widths = {"lstm_input": POSE_WIDTH + VISUAL, "view_query": WIDTH, "word_query": WIDTH}
    assert (updater.mask_widths(), updater.width) == (widths, WIDTH)


def test_masks_and_attention_of_updaters_are_optional(updater: LSTMUpdater) -> None:
    assert StateUpdater.mask_widths(updater) == {}
    assert State(torch.zeros(1, 1)).attention == {}


# scores


def test_the_baseline_scores_neighbours_by_equation_2_and_stopping_as_a_zero_row(
    observation: Observation,
) -> None:
    score, state = CandidateScore(WIDTH, VISUAL).double(), _randn(EPISODES, WIDTH)
    mask = observation.masks.feature
    seen = observation.environment.candidates(observation.viewpoint, observation.view)
    logits = score(state, seen.visual, seen.orientation.double(), mask)
    query = torch.cat([score.query_visual.weight, score.query_orientation.weight])
    options = torch.cat([seen.visual * mask, tiled(seen.orientation.double())], dim=-1)
    expected = torch.stack([row @ query @ own for row, own in zip(options, state, strict=True)])
    close(logits, pad(expected, (0, 1)))


def test_a_critic_gives_one_number_per_state() -> None:
    critic, state = Critic(WIDTH), torch.randn(2, 3, WIDTH)
    layers: Any = critic.layers
    first, _, last = layers
    inner = (state @ first.weight.t() + first.bias).clamp_min(0.0)
    close(critic(state), inner @ last.weight[0] + last.bias)


def test_what_drops_out_is_recomputed_with_the_same_draws() -> None:
    """A part handed in from outside may have dropout of its own."""
    linear = torch.nn.Linear(8, 8)
    layer = torch.nn.Sequential(linear, torch.nn.Dropout(0.5))
    rows, found = torch.randn(4, 8), list[Tensor]()
    for numbers in (0, 2**40):
        torch.manual_seed(3)
        found += torch.autograd.grad(recomputed(layer, rows, numbers=numbers).square().sum(), linear.weight)
    assert torch.equal(*found)
