from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.models import place_attention
from scenemem.models.place_attention import attend_to_places
from scenemem.world.geometry import VIEWS

PLACES, VISUAL = 6, 5

asked_places = st.lists(st.integers(0, PLACES - 1), min_size=1, max_size=40)


@pytest.fixture
def panoramas() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(PLACES, VIEWS, VISUAL, dtype=torch.double)


def _attended_one_by_one(asked: Tensor, place: list[int], panoramas: Tensor) -> Tensor:
    rows = [(panoramas[p] @ q).softmax(0) @ panoramas[p] for q, p in zip(asked, place, strict=True)]
    return torch.stack(rows)


@pytest.mark.parametrize("at_a_time", [1, 2, PLACES])
@settings(deadline=None)  # the first product of a process is slow
@given(place=asked_places)
def test_every_state_attends_to_the_views_of_its_place(at_a_time: int, place: list[int]) -> None:
    """Values and gradients, whoever else asks and however few places are looked at together."""
    torch.manual_seed(1)
    panoramas = torch.randn(PLACES, VIEWS, VISUAL, dtype=torch.double)
    asked = torch.randn(len(place), VISUAL, dtype=torch.double, requires_grad=True)
    looked: list[int] = []

    def look(places: Tensor) -> Tensor:
        looked.append(len(places))
        return panoramas[places]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place_attention, "_AT_A_TIME", at_a_time * VIEWS * VISUAL)
        attended = attend_to_places(asked, torch.tensor(place, dtype=torch.long), look)
    expected = _attended_one_by_one(asked, place, panoramas)
    torch.testing.assert_close(attended, expected)
    assert sum(looked) == len(set(place))
    assert all(number <= at_a_time for number in looked)

    matters = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad((attended * matters).sum(), asked),
        torch.autograd.grad((expected * matters).sum(), asked),
    )


@pytest.mark.parametrize("place", [[0, 1, 2, 3, 4, 5], [3, 3, 0, 3, 5, 3, 3, 0]])
def test_panoramas_are_not_kept_for_the_gradient(place: list[int], panoramas: Tensor) -> None:
    asked = torch.randn(len(place), VISUAL, dtype=torch.double, requires_grad=True)
    looks = []

    def look(places: Tensor) -> Tensor:
        looks.append(places)
        return panoramas[places]

    attended = attend_to_places(asked, torch.tensor(place), look)
    before = len(looks)
    torch.autograd.backward(attended.sum())
    assert len(looks) == 2 * before


def test_the_gradient_is_that_of_small_differences(panoramas: Tensor) -> None:
    asked = torch.randn(7, VISUAL, dtype=torch.double, requires_grad=True)
    place = torch.tensor([2, 0, 2, 2, 5, 2, 2])
    assert torch.autograd.gradcheck(lambda rows: attend_to_places(rows, place, panoramas.__getitem__), asked)


def test_nobody_who_asks_sees_nothing(panoramas: Tensor) -> None:
    nothing = attend_to_places(panoramas.new_empty(0, VISUAL), torch.tensor([]).long(), panoramas.__getitem__)
    assert nothing.shape == (0, VISUAL)
