from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenemem.models.place_attention import Look, attend_to_places, score_places
from torch import Tensor

from scenemem.models import place_attention
from scenemem.world.graph import VIEWS

PLACES, VISUAL = 40, 5

Read = Callable[[Tensor, Tensor, Look], Tensor]
asked_places = st.lists(st.integers(0, PLACES - 1), min_size=1, max_size=90)


@pytest.fixture
def panoramas() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(PLACES, VIEWS, VISUAL, dtype=torch.double)


def _scores(asked: Tensor, place: Tensor, look: Look) -> Tensor:
    return torch.stack([look(p) @ q for q, p in zip(asked, place, strict=True)])


def _attended(asked: Tensor, place: Tensor, look: Look) -> Tensor:
    return torch.stack([(look(p) @ q).softmax(0) @ look(p) for q, p in zip(asked, place, strict=True)])


@pytest.mark.parametrize("at_a_time", [16, 32, 64])
@pytest.mark.parametrize(("read", "plain"), [(attend_to_places, _attended), (score_places, _scores)])
@settings(deadline=None)  # the first product of a process is slow
@given(places=asked_places)
def test_every_state_reads_the_views_of_its_place(
    read: Read, plain: Read, at_a_time: int, places: list[int]
) -> None:
    """Values and gradients, whoever else asks and however few places are looked at together."""
    torch.manual_seed(1)
    panoramas, place = torch.randn(PLACES, VIEWS, VISUAL, dtype=torch.double), torch.tensor(places)
    asked = torch.randn(len(places), VISUAL, dtype=torch.double, requires_grad=True)
    looked: list[int] = []

    def look(places: Tensor) -> Tensor:
        looked.append(len(places))
        return panoramas[places]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place_attention, "_AT_A_TIME", at_a_time * VIEWS * VISUAL)
        found = read(asked, place, look)
    expected = plain(asked, place, panoramas.__getitem__)
    torch.testing.assert_close(found, expected)
    assert max(looked) <= at_a_time + 1

    matters = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * matters).sum(), asked),
        torch.autograd.grad((expected * matters).sum(), asked),
    )


@given(places=asked_places)
@settings(deadline=None)
def test_a_place_is_looked_at_once_however_many_attend_to_it(places: list[int]) -> None:
    panoramas, looked = torch.randn(PLACES, VIEWS, VISUAL), []

    def look(places: Tensor) -> Tensor:
        looked.extend(places.tolist())
        return panoramas[places]

    attend_to_places(torch.randn(len(places), VISUAL), torch.tensor(places), look)
    assert sorted(looked) == sorted(set(places))


@pytest.mark.parametrize("read", [attend_to_places, score_places])
@pytest.mark.parametrize("place", [[0, 1, 2, 3, 4, 5], [3, 3, 0, 3, 5, 3, 3, 0]])
def test_panoramas_are_not_kept_for_the_gradient(read: Read, place: list[int], panoramas: Tensor) -> None:
    asked = torch.randn(len(place), VISUAL, dtype=torch.double, requires_grad=True)
    looks = []

    def look(places: Tensor) -> Tensor:
        looks.append(places)
        return panoramas[places]

    found = read(asked, torch.tensor(place), look)
    before = len(looks)
    torch.autograd.backward(found.sum())
    assert len(looks) == 2 * before


def test_the_gradient_is_that_of_small_differences(panoramas: Tensor) -> None:
    asked = torch.randn(7, VISUAL, dtype=torch.double, requires_grad=True)
    place = torch.tensor([2, 0, 2, 2, 5, 2, 2])
    for read in (attend_to_places, score_places):
        assert torch.autograd.gradcheck(
            lambda rows, read=read: read(rows, place, panoramas.__getitem__), asked
        )


@pytest.mark.parametrize(("read", "width"), [(attend_to_places, VISUAL), (score_places, VIEWS)])
def test_nobody_who_asks_reads_nothing(read: Read, width: int, panoramas: Tensor) -> None:
    nothing = read(panoramas.new_empty(0, VISUAL), torch.empty(0, dtype=torch.long), panoramas.__getitem__)
    assert nothing.shape == (0, width)
