from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scenemem.models.navigator import (
    ANGLES,
    POSE_WIDTH,
    LookAhead,
    LookAround,
    Navigator,
    NavigatorState,
    Noise,
    observe,
)
from torch import Tensor
from torch.nn.functional import dropout, pad

from scenemem.models.language import Instructions
from scenemem.world.graph import HEADINGS, VIEWS, angle_feature, view_elevation, view_heading

LANES, VISUAL, WIDTH, WORDS = 4, 5, 8, 6


@pytest.fixture
def panorama() -> Tensor:
    return torch.randn(LANES, VIEWS, VISUAL, dtype=torch.float64)


@pytest.fixture
def view() -> Tensor:
    return torch.tensor([0, 17, 35, 24])


@pytest.fixture
def instructions() -> Instructions:
    lengths = torch.tensor([6, 2, 4, 1])
    mask = torch.arange(WORDS) < lengths.unsqueeze(1)
    context = torch.randn(LANES, WORDS, WIDTH, dtype=torch.float64)
    return Instructions(context, mask, *torch.randn(2, LANES, WIDTH, dtype=torch.float64))


@pytest.fixture
def state(instructions: Instructions) -> NavigatorState:
    return NavigatorState(instructions.hidden, instructions.cell)


def _kept(*shape: int) -> Tensor:
    return dropout(torch.ones(shape, dtype=torch.float64), 0.5)


@pytest.fixture
def noise() -> Noise:
    """Masks with some zeros everywhere."""
    return Noise(
        feature=torch.tensor([2.0, 0.0, 2.0, 2.0, 0.0], dtype=torch.float64),
        entered=_kept(LANES, POSE_WIDTH + VISUAL),
        looking=_kept(LANES, WIDTH),
        listening=_kept(LANES, WIDTH),
        deciding=_kept(LANES, WIDTH),
    )


@pytest.fixture
def silence() -> Noise:
    """Nothing is dropped."""
    state = torch.ones(LANES, WIDTH, dtype=torch.float64)
    entered = torch.ones(LANES, POSE_WIDTH + VISUAL, dtype=torch.float64)
    return Noise(torch.ones(VISUAL, dtype=torch.float64), entered, state, state, state)


def _navigator(look: LookAround | LookAhead) -> Navigator:
    torch.manual_seed(0)
    navigator = Navigator(VISUAL, WIDTH, look).double()
    for parameter in navigator.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return navigator


@pytest.fixture
def around() -> Navigator:
    return _navigator(LookAround(VISUAL, WIDTH))


@pytest.fixture
def ahead() -> Navigator:
    return _navigator(LookAhead())


@pytest.fixture(params=["around", "ahead"])
def navigator(request: pytest.FixtureRequest) -> Navigator:
    """One of each kind."""
    chosen: Navigator = request.getfixturevalue(request.param)
    return chosen


def _seen_views(panorama: Tensor, facing: int, feature_mask: Tensor) -> Tensor:
    """All views of one lane as the paper has them: masked features and tiled angles side by side."""
    views = torch.arange(VIEWS)
    relative = view_heading(views) - view_heading(torch.tensor(facing))
    angles = angle_feature(relative, view_elevation(views)).double()
    return torch.cat([panorama * feature_mask, angles], dim=-1)


def _plain_step(
    navigator: Navigator, lane: int, panorama: Tensor, view: Tensor, words: Instructions, noise: Noise
) -> tuple[Tensor, Tensor]:
    """One lane, one observation, vector by vector."""
    facing, look = int(view[lane]), navigator.look
    views = _seen_views(panorama[lane], facing, noise.feature)
    if isinstance(look, LookAround):
        query = torch.cat([look.ask_visual.weight, look.ask_angle.weight]) @ (
            words.hidden[lane] * noise.looking[lane]
        )
        seen = (views @ query).softmax(0) @ views
    else:
        seen = views[facing]
    pose = angle_feature(view_heading(view[lane]), view_elevation(view[lane])).double()
    dropped = torch.cat([torch.tanh(navigator.pose(pose)), seen[:VISUAL]]) * noise.entered[lane]
    entered = torch.cat([dropped, seen[VISUAL:]])
    hidden, cell = navigator.lstm(entered, (words.hidden[lane], words.cell[lane]))
    hidden = hidden * noise.listening[lane]
    heard = words.context[lane][words.mask[lane]]
    heard = (heard @ (navigator.listen.weight @ hidden)).softmax(0) @ heard
    return torch.tanh(navigator.join.weight @ torch.cat([heard, hidden])), cell


def _plain_steps(
    navigator: Navigator, panorama: Tensor, view: Tensor, words: Instructions, noise: Noise
) -> NavigatorState:
    steps = [_plain_step(navigator, lane, panorama, view, words, noise) for lane in range(LANES)]
    hidden, cell = (torch.stack(part) for part in zip(*steps, strict=True))
    return NavigatorState(hidden, cell)


def test_an_observation_is_what_the_plain_computation_says(
    navigator: Navigator,
    state: NavigatorState,
    panorama: Tensor,
    view: Tensor,
    instructions: Instructions,
    noise: Noise,
) -> None:
    after = navigator(state, panorama, view, instructions, noise)
    plain = _plain_steps(navigator, panorama, view, instructions, noise)
    torch.testing.assert_close(after.hidden, plain.hidden, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(after.cell, plain.cell, atol=1e-6, rtol=1e-5)


def test_folding_repeated_columns_leaves_every_gradient(
    navigator: Navigator, panorama: Tensor, view: Tensor, instructions: Instructions, noise: Noise
) -> None:
    """Of the parameters themselves, also of the 32 columns that belong to one number."""
    matters = torch.randn(2, LANES, WIDTH, dtype=torch.float64)
    words = replace(
        instructions,
        context=instructions.context.requires_grad_(),
        hidden=instructions.hidden.requires_grad_(),
        cell=instructions.cell.requires_grad_(),
    )
    learned = [words.context, words.hidden, words.cell, *navigator.parameters()]

    def gradients(after: NavigatorState) -> tuple[Tensor, ...]:
        return torch.autograd.grad((torch.stack([after.hidden, after.cell]) * matters).sum(), learned)

    seen = gradients(navigator(NavigatorState(words.hidden, words.cell), panorama, view, words, noise))
    plain = gradients(_plain_steps(navigator, panorama, view, words, noise))
    torch.testing.assert_close(seen, plain, atol=1e-5, rtol=1e-4)


def test_the_order_of_lanes_does_not_matter(
    navigator: Navigator,
    state: NavigatorState,
    panorama: Tensor,
    view: Tensor,
    instructions: Instructions,
    noise: Noise,
) -> None:
    after = navigator(state, panorama, view, instructions, noise)
    order = torch.tensor([3, 1, 0, 2])
    other = navigator(
        NavigatorState(state.hidden[order], state.cell[order]),
        panorama[order],
        view[order],
        instructions.select(order),
        noise.select(order),
    )
    torch.testing.assert_close(other.hidden, after.hidden[order])
    torch.testing.assert_close(other.cell, after.cell[order])


def test_padding_of_the_words_changes_nothing(
    navigator: Navigator,
    state: NavigatorState,
    panorama: Tensor,
    view: Tensor,
    instructions: Instructions,
    noise: Noise,
) -> None:
    garbage = torch.where(instructions.mask.unsqueeze(-1), instructions.context, 5.0)
    padded = replace(
        instructions,
        context=pad(garbage, (0, 0, 0, 3), value=8.0),
        mask=pad(instructions.mask, (0, 3)),
    )
    torch.testing.assert_close(
        navigator(state, panorama, view, padded, noise).hidden,
        navigator(state, panorama, view, instructions, noise).hidden,
    )


def test_a_dropped_column_can_hold_anything(
    navigator: Navigator,
    state: NavigatorState,
    panorama: Tensor,
    view: Tensor,
    instructions: Instructions,
    noise: Noise,
) -> None:
    expected = navigator(state, panorama, view, instructions, noise)
    panorama[..., noise.feature == 0] = 50.0
    torch.testing.assert_close(navigator(state, panorama, view, instructions, noise).hidden, expected.hidden)


def test_all_views_are_looked_at_or_only_the_one_ahead(
    around: Navigator,
    ahead: Navigator,
    state: NavigatorState,
    panorama: Tensor,
    view: Tensor,
    instructions: Instructions,
    noise: Noise,
) -> None:
    def looked(navigator: Navigator) -> Tensor:
        seen = navigator.around(panorama, view)
        return observe(navigator.weights(), state, seen, instructions, noise).looked

    shares = looked(around)
    assert (shares > 0).all()
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(LANES, dtype=torch.float64))
    assert looked(ahead).nonzero()[:, 1].tolist() == view.tolist()


def _seen(
    navigator: Navigator,
    state: NavigatorState,
    panorama: Tensor,
    view: Tensor,
    words: Instructions,
    noise: Noise,
) -> Tensor:
    """What of the surroundings enters the LSTM  ->  (B, D + 4)"""
    step = observe(navigator.weights(), state, navigator.around(panorama, view), words, noise)
    return step.entered[:, POSE_WIDTH : POSE_WIDTH + VISUAL + ANGLES]


def test_turning_agent_and_world_together_changes_nothing_seen(
    navigator: Navigator,
    state: NavigatorState,
    panorama: Tensor,
    view: Tensor,
    instructions: Instructions,
    silence: Noise,
) -> None:
    """What is seen depends on directions relative to the agent, not on where north is."""
    seen = _seen(navigator, state, panorama, view, instructions, silence)
    turned = panorama.view(LANES, 3, HEADINGS, VISUAL).roll(5, dims=2).flatten(1, 2)
    turned_view = (view + 5) % HEADINGS + view.div(HEADINGS, rounding_mode="floor") * HEADINGS
    again = _seen(navigator, state, turned, turned_view, instructions, silence)
    torch.testing.assert_close(again, seen, atol=1e-6, rtol=1e-5)


def test_directions_are_seen_even_when_everything_else_is_dropped(
    navigator: Navigator,
    state: NavigatorState,
    panorama: Tensor,
    view: Tensor,
    instructions: Instructions,
    silence: Noise,
) -> None:
    visible = _seen(navigator, state, panorama, view, instructions, silence)
    numb = replace(silence, entered=torch.zeros_like(silence.entered))
    seen = _seen(navigator, state, panorama, view, instructions, numb)
    assert not seen[:, :VISUAL].any()
    torch.testing.assert_close(seen[:, VISUAL:], visible[:, VISUAL:])
    dark = replace(silence, feature=torch.zeros_like(silence.feature))
    seen = _seen(navigator, state, panorama, view, instructions, dark)
    assert not seen[:, :VISUAL].any()
    assert seen[:, VISUAL:].any(dim=1).all()


def test_selecting_noise_picks_lanes_and_keeps_the_features(noise: Noise) -> None:
    rows = torch.tensor([2, 0, 2])
    picked = noise.select(rows)
    assert torch.equal(picked.feature, noise.feature)
    for name in ("entered", "looking", "listening", "deciding"):
        assert torch.equal(getattr(picked, name), getattr(noise, name)[rows])
