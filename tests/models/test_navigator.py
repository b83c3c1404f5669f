from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from scenemem.models.language import Instructions
from scenemem.models.navigator import POSE_WIDTH, LookAhead, LookAround, Navigator, Noise, Panorama
from scenemem.world.geometry import ANGLE_WIDTH, HEADINGS, VIEWS, angle_feature, view_elevation, view_heading

LANES, VISUAL, WIDTH, WORDS = 4, 5, 8, 6


@pytest.fixture
def panorama() -> Tensor:
    return torch.randn(LANES, VIEWS, VISUAL)


@pytest.fixture
def view() -> Tensor:
    return torch.tensor([0, 17, 35, 24])


@pytest.fixture
def instructions() -> Instructions:
    lengths = torch.tensor([6, 2, 4, 1])
    mask = torch.arange(WORDS) < lengths.unsqueeze(1)
    context = torch.randn(LANES, WORDS, WIDTH)
    return Instructions(context, mask, torch.randn(LANES, WIDTH), torch.randn(LANES, WIDTH))


@pytest.fixture
def noise() -> Noise:
    """Masks with some zeros everywhere."""
    kept = torch.nn.functional.dropout
    return Noise(
        feature=torch.tensor([2.0, 0.0, 2.0, 2.0, 0.0]),
        entered=kept(torch.ones(LANES, POSE_WIDTH + VISUAL + ANGLE_WIDTH), 0.5),
        looking=kept(torch.ones(LANES, WIDTH), 0.5),
        listening=kept(torch.ones(LANES, WIDTH), 0.5),
        deciding=kept(torch.ones(LANES, WIDTH), 0.5),
    )


def _navigator(look: LookAround | LookAhead) -> Navigator:
    torch.manual_seed(0)
    navigator = Navigator(VISUAL, WIDTH, look)
    for parameter in navigator.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return navigator


@pytest.fixture
def navigator() -> Navigator:
    return _navigator(LookAround(VISUAL, WIDTH))


def _seen_views(panorama: Tensor, facing: int, feature_mask: Tensor) -> Tensor:
    """All views of one lane as the paper has them: masked features and tiled angles side by side."""
    views = torch.arange(VIEWS)
    relative = view_heading(views) - view_heading(torch.tensor(facing))
    return torch.cat([panorama * feature_mask, angle_feature(relative, view_elevation(views))], dim=-1)


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
    pose = angle_feature(view_heading(view[lane]), view_elevation(view[lane]))
    entered = torch.cat([torch.tanh(navigator.pose(pose)), seen]) * noise.entered[lane]
    hidden, cell = navigator.lstm(entered, (words.hidden[lane], words.cell[lane]))
    hidden = hidden * noise.listening[lane]
    heard = words.context[lane][words.mask[lane]]
    heard = (heard @ (navigator.listen.weight @ hidden)).softmax(0) @ heard
    return torch.tanh(navigator.join.weight @ torch.cat([heard, hidden])), cell


@pytest.mark.parametrize("look", [LookAround(VISUAL, WIDTH), LookAhead()], ids=["around", "ahead"])
def test_an_observation_is_what_the_plain_computation_says(
    look: LookAround | LookAhead, panorama: Tensor, view: Tensor, instructions: Instructions, noise: Noise
) -> None:
    navigator = _navigator(look)
    state = navigator(navigator.begin(instructions), panorama, view, instructions, noise)
    for lane in range(LANES):
        hidden, cell = _plain_step(navigator, lane, panorama, view, instructions, noise)
        torch.testing.assert_close(state.hidden[lane], hidden)
        torch.testing.assert_close(state.cell[lane], cell)


def test_the_order_of_lanes_does_not_matter(
    navigator: Navigator, panorama: Tensor, view: Tensor, instructions: Instructions, noise: Noise
) -> None:
    state = navigator(navigator.begin(instructions), panorama, view, instructions, noise)
    order = torch.tensor([3, 1, 0, 2])
    words = instructions.select(order)
    other = navigator(navigator.begin(words), panorama[order], view[order], words, noise.select(order))
    torch.testing.assert_close(other.hidden, state.hidden[order])
    torch.testing.assert_close(other.cell, state.cell[order])


def test_padding_of_the_words_changes_nothing(
    navigator: Navigator, panorama: Tensor, view: Tensor, instructions: Instructions, noise: Noise
) -> None:
    begin = navigator.begin(instructions)
    garbage = torch.where(instructions.mask.unsqueeze(-1), instructions.context, 5.0)
    padded = replace(
        instructions,
        context=pad(garbage, (0, 0, 0, 3), value=8.0),
        mask=pad(instructions.mask, (0, 3)),
    )
    torch.testing.assert_close(
        navigator(begin, panorama, view, padded, noise).hidden,
        navigator(begin, panorama, view, instructions, noise).hidden,
    )


@pytest.mark.parametrize("look", [LookAround(VISUAL, WIDTH), LookAhead()], ids=["around", "ahead"])
def test_a_dropped_column_can_hold_anything(
    look: LookAround | LookAhead, panorama: Tensor, view: Tensor, instructions: Instructions, noise: Noise
) -> None:
    navigator = _navigator(look)
    begin = navigator.begin(instructions)
    expected = navigator(begin, panorama, view, instructions, noise)
    panorama[..., noise.feature == 0] = 50.0
    torch.testing.assert_close(navigator(begin, panorama, view, instructions, noise).hidden, expected.hidden)


def _around(navigator: Navigator, panorama: Tensor, view: Tensor) -> Panorama:
    return Panorama(panorama, navigator.view_angles[view % HEADINGS], view)


def test_turning_agent_and_world_together_changes_nothing_seen(
    navigator: Navigator, panorama: Tensor, view: Tensor
) -> None:
    """What is seen depends on directions relative to the agent, not on where north is."""
    query, feature_mask = torch.randn(LANES, WIDTH), torch.ones(VISUAL)
    seen = navigator.look(query, _around(navigator, panorama, view), feature_mask)
    turned = panorama.view(LANES, 3, HEADINGS, VISUAL).roll(5, dims=2).flatten(1, 2)
    turned_view = (view + 5) % HEADINGS + view.div(HEADINGS, rounding_mode="floor") * HEADINGS
    torch.testing.assert_close(
        navigator.look(query, _around(navigator, turned, turned_view), feature_mask), seen
    )


def test_directions_are_seen_even_when_every_feature_is_dropped(
    navigator: Navigator, panorama: Tensor, view: Tensor
) -> None:
    dark = torch.zeros(VISUAL)
    seen = navigator.look(torch.randn(LANES, WIDTH), _around(navigator, panorama, view), dark)
    assert not seen[:, :VISUAL].any()
    assert seen[:, VISUAL:].any(dim=1).all()
