from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.functional import dropout, pad

from scenemem.models.navigator import (
    ANGLES,
    POSE_WIDTH,
    AheadOnly,
    DropoutMasks,
    Instructions,
    LSTMState,
    LSTMStep,
    LSTMUpdater,
    Observation,
    PanoramaQuery,
    State,
    StateUpdater,
    lstm_step,
    selected,
)
from scenemem.world.graph import HEADINGS, VIEWS, angle_feature, view_elevation, view_heading

EPISODES, VISUAL, WIDTH, WORDS = 4, 5, 8, 6

close = partial(torch.testing.assert_close, atol=1e-6, rtol=1e-5)
"""The plain computations have angles of 32 bits."""


@pytest.fixture
def instructions() -> Instructions:
    torch.manual_seed(1)
    lengths = torch.tensor([6, 2, 4, 1])
    mask = torch.arange(WORDS) < lengths.unsqueeze(1)
    context = torch.randn(EPISODES, WORDS, WIDTH, dtype=torch.float64)
    return Instructions(context, mask, *torch.randn(2, EPISODES, WIDTH, dtype=torch.float64))


@pytest.fixture
def masks() -> DropoutMasks:
    """Masks with some zeros everywhere."""

    def kept(width: int) -> Tensor:
        return dropout(torch.ones(EPISODES, width, dtype=torch.float64), 0.5)

    return DropoutMasks(
        feature=torch.tensor([2.0, 0.0, 2.0, 2.0, 0.0], dtype=torch.float64),
        rows={
            "lstm_input": kept(POSE_WIDTH + VISUAL),
            "view_query": kept(WIDTH),
            "word_query": kept(WIDTH),
        },
    )


@pytest.fixture
def observation(instructions: Instructions, masks: DropoutMasks) -> Observation:
    return Observation(
        viewpoint=torch.tensor([7, 3, 3, 0]),
        previous=torch.tensor([2, -1, 4, -1]),
        view=torch.tensor([0, 17, 35, 24]),
        panorama=torch.randn(EPISODES, VIEWS, VISUAL, dtype=torch.float64),
        instructions=instructions,
        masks=masks,
    )


@pytest.fixture
def undropped(observation: Observation) -> Observation:
    """Nothing is dropped."""
    ones = {name: torch.ones_like(mask) for name, mask in observation.masks.rows.items()}
    return replace(observation, masks=DropoutMasks(torch.ones(VISUAL, dtype=torch.float64), ones))


def _updater(view_query: PanoramaQuery | AheadOnly) -> LSTMUpdater:
    torch.manual_seed(0)
    updater = LSTMUpdater(VISUAL, WIDTH, view_query).double()
    for parameter in updater.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return updater


@pytest.fixture
def around() -> LSTMUpdater:
    return _updater(PanoramaQuery(VISUAL, WIDTH))


@pytest.fixture
def ahead() -> LSTMUpdater:
    return _updater(AheadOnly())


@pytest.fixture(params=["around", "ahead"])
def updater(request: pytest.FixtureRequest) -> LSTMUpdater:
    """One that attends to all views, one that sees the view ahead."""
    chosen: LSTMUpdater = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture
def state(instructions: Instructions) -> LSTMState:
    """Some states; what the last update attended to does not matter to the next one."""
    return LSTMState(instructions.hidden, instructions.cell, torch.full((EPISODES, WORDS), torch.nan))


def _step(updater: LSTMUpdater, state: LSTMState, observation: Observation) -> LSTMStep:
    angles = updater.relative_angles(observation.view)
    return lstm_step(updater.folded_weights(), state, observation, angles)


def _views(panorama: Tensor, facing: Tensor, feature_mask: Tensor) -> Tensor:
    """All views of one episode as the paper has them: masked features and tiled angles side by side."""
    views = torch.arange(VIEWS)
    relative = view_heading(views) - view_heading(facing)
    angles = angle_feature(relative, view_elevation(views)).double()
    return torch.cat([panorama * feature_mask, angles], dim=-1)


def _plain_update(
    updater: LSTMUpdater, state: LSTMState, observation: Observation, episode: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One episode, vector by vector: hidden state, cell, attention over the words."""
    facing, query = observation.view[episode], updater.view_query
    words, masks = observation.instructions, observation.masks
    views = _views(observation.panorama[episode], facing, masks.feature)
    if isinstance(query, PanoramaQuery):
        weight = torch.cat([query.visual.weight, query.angle.weight])
        scores = views @ weight @ (state.hidden[episode] * masks["view_query"][episode])
        attended = scores.softmax(0) @ views
    else:
        attended = views[facing]
    pose = angle_feature(view_heading(facing), view_elevation(facing)).double()
    dropped = torch.cat([torch.tanh(updater.pose(pose)), attended[:VISUAL]]) * masks["lstm_input"][episode]
    lstm_input = torch.cat([dropped, attended[VISUAL:]])
    output, cell = updater.lstm(lstm_input, (state.hidden[episode], state.cell[episode]))
    output = output * masks["word_query"][episode]
    own = words.context[episode][words.mask[episode]]
    weights = (own @ (updater.word_query.weight @ output)).softmax(0)
    hidden = torch.tanh(updater.join.weight @ torch.cat([weights @ own, output]))
    return hidden, cell, pad(weights, (0, WORDS - len(own)))


def _plain_updates(updater: LSTMUpdater, state: LSTMState, observation: Observation) -> LSTMState:
    updates = [_plain_update(updater, state, observation, episode) for episode in range(EPISODES)]
    return LSTMState(*(torch.stack(part) for part in zip(*updates, strict=True)))


def test_an_update_is_what_the_plain_computation_says(
    updater: LSTMUpdater, state: LSTMState, observation: Observation
) -> None:
    after, plain = updater(state, observation), _plain_updates(updater, state, observation)
    close(after.hidden, plain.hidden)
    close(after.cell, plain.cell)
    close(after.word_attention, plain.word_attention)


def test_folding_repeated_columns_leaves_every_gradient(
    updater: LSTMUpdater, state: LSTMState, observation: Observation
) -> None:
    """Of the parameters themselves, also of the 32 columns that belong to one number."""
    upstream = [torch.randn(EPISODES, width, dtype=torch.float64) for width in (WIDTH, WIDTH, WORDS)]
    context, hidden, cell = (
        part.requires_grad_() for part in (observation.instructions.context, state.hidden, state.cell)
    )
    learned = [context, hidden, cell, *updater.parameters()]

    def gradients(after: LSTMState) -> tuple[Tensor, ...]:
        return torch.autograd.grad([after.hidden, after.cell, after.word_attention], learned, upstream)

    found = gradients(updater(state, observation))
    plain = gradients(_plain_updates(updater, state, observation))
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-4)


def test_the_order_of_episodes_does_not_matter(
    updater: LSTMUpdater, state: LSTMState, observation: Observation
) -> None:
    after, order = updater(state, observation), torch.tensor([3, 1, 0, 2])
    other = Observation(
        observation.viewpoint[order],
        observation.previous[order],
        observation.view[order],
        observation.panorama[order],
        selected(observation.instructions, order),
        observation.masks.select(order),
    )
    again, expected = updater(state.select(order), other), after.select(order)
    for name in ("hidden", "cell", "word_attention"):
        torch.testing.assert_close(getattr(again, name), getattr(expected, name))


def test_padding_of_the_words_changes_nothing(
    updater: LSTMUpdater, state: LSTMState, observation: Observation
) -> None:
    words = observation.instructions
    garbage = torch.where(words.mask.unsqueeze(-1), words.context, 5.0)
    padded = replace(
        words, context=pad(garbage, (0, 0, 0, 3), value=8.0), mask=pad(words.mask, (0, 3), value=False)
    )
    after, expected = updater(state, replace(observation, instructions=padded)), updater(state, observation)
    torch.testing.assert_close(after.hidden, expected.hidden)
    torch.testing.assert_close(after.cell, expected.cell)
    torch.testing.assert_close(after.word_attention, pad(expected.word_attention, (0, 3)))


def test_a_dropped_column_can_hold_anything(
    updater: LSTMUpdater, state: LSTMState, observation: Observation
) -> None:
    expected = updater(state, observation)
    garbage = observation.panorama.masked_fill(observation.masks.feature == 0, 50.0)
    after = updater(state, replace(observation, panorama=garbage))
    torch.testing.assert_close(after.hidden, expected.hidden)


def test_all_views_are_attended_to_or_only_the_one_ahead(
    around: LSTMUpdater, ahead: LSTMUpdater, state: LSTMState, observation: Observation
) -> None:
    weights = _step(around, state, observation).view_attention
    assert (weights > 0).all()
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(EPISODES, dtype=torch.float64))
    alone = _step(ahead, state, observation).view_attention
    assert alone.nonzero()[:, 1].tolist() == observation.view.tolist()
    assert alone.sum(dim=1).tolist() == [1.0] * EPISODES


def _seen(updater: LSTMUpdater, state: LSTMState, observation: Observation) -> Tensor:
    """What of the panorama enters the LSTM  ->  (B, D + 4)"""
    lstm_input = _step(updater, state, observation).lstm_input
    return lstm_input[:, POSE_WIDTH : POSE_WIDTH + VISUAL + ANGLES]


def test_turning_agent_and_world_together_changes_nothing_seen(
    updater: LSTMUpdater, state: LSTMState, undropped: Observation
) -> None:
    """What is seen depends on directions relative to the agent, not on where north is."""
    turned = undropped.panorama.view(EPISODES, 3, HEADINGS, VISUAL).roll(5, dims=2).flatten(1, 2)
    row = undropped.view.div(HEADINGS, rounding_mode="floor")
    view = (undropped.view + 5) % HEADINGS + row * HEADINGS
    close(
        _seen(updater, state, replace(undropped, panorama=turned, view=view)),
        _seen(updater, state, undropped),
    )


def test_directions_are_seen_even_when_everything_else_is_dropped(
    updater: LSTMUpdater, state: LSTMState, undropped: Observation
) -> None:
    visible, masks = _seen(updater, state, undropped), undropped.masks
    dropped = {**masks.rows, "lstm_input": torch.zeros_like(masks["lstm_input"])}
    seen = _seen(updater, state, replace(undropped, masks=DropoutMasks(masks.feature, dropped)))
    assert not seen[:, :VISUAL].any()
    torch.testing.assert_close(seen[:, VISUAL:], visible[:, VISUAL:])
    dark = DropoutMasks(torch.zeros_like(masks.feature), masks.rows)
    seen = _seen(updater, state, replace(undropped, masks=dark))
    assert not seen[:, :VISUAL].any()
    assert seen[:, VISUAL:].any(dim=1).all()


def test_a_walk_begins_with_the_summaries_of_the_instruction(
    updater: LSTMUpdater, instructions: Instructions
) -> None:
    state = updater.initial_state(instructions)
    assert torch.equal(state.hidden, instructions.hidden)
    assert torch.equal(state.cell, instructions.cell)
    assert torch.equal(state.word_attention, torch.zeros(EPISODES, WORDS, dtype=torch.float64))
    assert set(state.attention) == {"navigator"}
    assert state.attention["navigator"] is state.word_attention


def test_an_updater_says_which_masks_it_wants(updater: LSTMUpdater) -> None:
    assert updater.mask_widths() == {
        "lstm_input": POSE_WIDTH + VISUAL,
        "view_query": WIDTH,
        "word_query": WIDTH,
    }
    assert updater.width == WIDTH


class _Counter(StateUpdater):
    """The least there is to an updater."""

    width = 1

    def initial_state(self, instructions: Instructions) -> State:
        return State(instructions.hidden[:, :1])

    def forward(self, state: State, observation: Observation) -> State:
        return State(state.hidden + observation.view.unsqueeze(1))


def test_an_updater_wants_no_masks_and_shows_no_attention_unless_it_says_so(
    observation: Observation, instructions: Instructions
) -> None:
    counter = _Counter()
    assert counter.mask_widths() == {}
    assert counter(counter.initial_state(instructions), observation).attention == {}


def test_the_parameters_are_folded_once_per_rollout(
    around: LSTMUpdater, state: LSTMState, observation: Observation, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = []
    original = LSTMUpdater.folded_weights

    def fold(updater: LSTMUpdater) -> object:
        folded.append(updater)
        return original(updater)

    monkeypatch.setattr(LSTMUpdater, "folded_weights", fold)
    after = around(state, observation)
    assert torch.equal(around(state, replace(observation)).hidden, after.hidden)
    assert folded == [around]
    around(state, replace(observation, cache={}))
    assert folded == [around, around]


def test_once_per_rollout_computes_once_for_observations_that_share_a_cache(observation: Observation) -> None:
    calls: list[str] = []

    def first() -> int:
        calls.append("first")
        return 0  # a result that is not true is a result

    def second() -> int:
        calls.append("second")
        return 2

    later = replace(observation, view=observation.view + 1)
    assert [observation.once_per_rollout(first), later.once_per_rollout(first)] == [0, 0]
    assert [later.once_per_rollout(second), observation.once_per_rollout(second)] == [2, 2]
    assert calls == ["first", "second"]
    assert replace(observation, cache={}).once_per_rollout(second) == 2
    assert calls == ["first", "second", "second"]


def test_observations_made_apart_share_no_cache(observation: Observation) -> None:
    everything = (
        observation.viewpoint,
        observation.previous,
        observation.view,
        observation.panorama,
        observation.instructions,
        observation.masks,
    )
    assert Observation(*everything).cache is not Observation(*everything).cache


@dataclass(frozen=True)
class _TwoParts(State):
    memory: Tensor  # (B, 2)


@pytest.fixture
def two_parts() -> _TwoParts:
    return _TwoParts(torch.arange(4.0).unsqueeze(1), torch.arange(8.0).view(4, 2))


def test_all_fields_of_a_state_are_selected(two_parts: _TwoParts) -> None:
    chosen = two_parts.select(torch.tensor([2, 0, 2]))
    assert type(chosen) is _TwoParts
    assert chosen.hidden.flatten().tolist() == [2.0, 0.0, 2.0]
    assert chosen.memory.tolist() == [[4.0, 5.0], [0.0, 1.0], [4.0, 5.0]]


def test_some_instructions_are_selected_in_any_order_with_their_gradient(instructions: Instructions) -> None:
    rows = torch.tensor([3, 1, 1])
    instructions.context.requires_grad_()
    chosen = selected(instructions, rows)
    for item in fields(Instructions):
        assert torch.equal(getattr(chosen, item.name), getattr(instructions, item.name)[rows])
    (gradient,) = torch.autograd.grad(chosen.context.sum(), instructions.context)
    assert gradient[:, 0, 0].tolist() == [0.0, 2.0, 0.0, 1.0]


def test_rows_of_a_state_are_replaced_in_a_copy(two_parts: _TwoParts) -> None:
    new = _TwoParts(torch.tensor([[10.0], [20.0]]), torch.tensor([[11.0, 12.0], [21.0, 22.0]]))
    replaced = two_parts.with_rows(torch.tensor([3, 1]), new)
    assert type(replaced) is _TwoParts
    assert replaced.hidden.flatten().tolist() == [0.0, 20.0, 2.0, 10.0]
    assert replaced.memory.tolist() == [[0.0, 1.0], [21.0, 22.0], [4.0, 5.0], [11.0, 12.0]]
    assert two_parts.hidden.flatten().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_selecting_masks_selects_episodes_and_keeps_the_features(masks: DropoutMasks) -> None:
    episodes = torch.tensor([2, 0, 2])
    chosen = masks.select(episodes)
    assert torch.equal(chosen.feature, masks.feature)
    assert set(chosen.rows) == {"lstm_input", "view_query", "word_query"}
    for name in masks.rows:
        assert torch.equal(chosen[name], masks[name][episodes])
