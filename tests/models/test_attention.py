from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.features.store import PanoramaLookup
from scenemem.models import attention
from scenemem.models.navigator import attend_panoramas, dots, fold_angles, masked_softmax, score_panoramas
from scenemem.ssm.reading import tiled
from scenemem.world.graph import ANGLE_WIDTH, VIEWS, angle_feature, rotated

VIEWPOINTS, VISUAL = 40, 5

Attend = Callable[[Tensor, Tensor, PanoramaLookup], Tensor]
some_viewpoints = st.lists(st.integers(0, VIEWPOINTS - 1), min_size=1, max_size=90)


@pytest.fixture
def angles() -> tuple[Tensor, Tensor]:
    """Headings all the way round and elevations up and down, (5, 7) each."""
    random = torch.Generator().manual_seed(0)
    heading = torch.rand(5, 7, generator=random, dtype=torch.float64) * 2 * math.pi
    elevation = torch.rand(5, 7, generator=random, dtype=torch.float64) - 0.5
    return heading, elevation


@pytest.fixture
def panoramas() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(VIEWPOINTS, VIEWS, VISUAL, dtype=torch.float64)


def test_without_a_mask_it_is_the_softmax() -> None:
    scores = torch.randn(3, 4, 5)
    torch.testing.assert_close(
        masked_softmax(scores, torch.ones(3, 1, 5, dtype=torch.bool)), scores.softmax(-1)
    )


def test_masked_entries_do_not_take_part() -> None:
    scores = torch.tensor([1.0, 5.0, -2.0, 9.0])
    mask = torch.tensor([True, False, True, False])
    weights = masked_softmax(scores, mask)
    torch.testing.assert_close(weights[mask], scores[mask].softmax(-1))
    assert weights[~mask].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("entry", [torch.inf, -torch.inf, 1e30])
def test_what_a_masked_entry_holds_does_not_matter(entry: float) -> None:
    mask = torch.tensor([True, True, False])
    scores = torch.tensor([0.3, -0.4, entry])
    torch.testing.assert_close(masked_softmax(scores, mask)[:2], scores[:2].softmax(-1))


def test_a_row_without_any_entry_is_zero_and_has_no_gradient() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    mask = torch.tensor([[False, False, False], [True, False, True]])
    weights = masked_softmax(scores, mask)
    assert weights[0].tolist() == [0.0, 0.0, 0.0]
    (gradient,) = torch.autograd.grad(weights[:, 0].sum(), scores)
    assert gradient[0].tolist() == [0.0, 0.0, 0.0]
    assert gradient.isfinite().all()


def test_scores_of_any_size_stay_finite() -> None:
    mask = torch.tensor([True, True, False])
    assert masked_softmax(torch.tensor([1e30, -1e30, 0.0]), mask).tolist() == [1.0, 0.0, 0.0]
    assert masked_softmax(torch.tensor([-1e30, -1e30, 1e30]), mask).tolist() == [0.5, 0.5, 0.0]


def test_every_row_is_multiplied_by_the_query_of_its_table() -> None:
    rows, query = torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    products = dots(rows, query)
    assert products.shape == (3, 4)
    for m in range(3):
        for n in range(4):
            torch.testing.assert_close(products[m, n], (rows[m, n] * query[m]).sum())


@pytest.mark.parametrize("width", [4, 32, ANGLE_WIDTH])
def test_tiling_repeats_the_four_numbers_as_the_paper_does(width: int, angles: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(tiled(angle_feature(*angles, width=4), width), angle_feature(*angles, width))


def test_the_paper_tiles_to_128_numbers(angles: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(tiled(angle_feature(*angles, width=4)), angle_feature(*angles, 128))


@pytest.mark.parametrize("width", [4, 32, ANGLE_WIDTH])
def test_a_folded_query_scores_as_the_query_scores_tiled_features(
    width: int, angles: tuple[Tensor, Tensor]
) -> None:
    query = torch.randn(5, 7, width, dtype=torch.float64)
    folded = (angle_feature(*angles, width=4) * fold_angles(query)).sum(-1)
    torch.testing.assert_close(folded, (angle_feature(*angles, width) * query).sum(-1))


def test_rotating_features_is_turning_the_heading(angles: tuple[Tensor, Tensor]) -> None:
    heading, elevation = angles
    facing = torch.rand(5, 1, dtype=torch.float64) * 2 * math.pi
    relative = angle_feature(heading - facing, elevation, width=4)
    torch.testing.assert_close(rotated(angle_feature(heading, elevation, width=4), facing), relative)


def test_rotating_the_query_back_is_rotating_the_features(angles: tuple[Tensor, Tensor]) -> None:
    heading, elevation = angles
    facing = torch.rand(5, 1, dtype=torch.float64) * 2 * math.pi
    query = torch.randn(5, 1, ANGLE_WIDTH, dtype=torch.float64)
    absolute = angle_feature(heading, elevation, width=4)
    cheap = (absolute * rotated(fold_angles(query), -facing)).sum(-1)
    plain = (angle_feature(heading - facing, elevation) * query).sum(-1)
    torch.testing.assert_close(cheap, plain)


def _plain_scores(query: Tensor, viewpoint: Tensor, lookup: PanoramaLookup) -> Tensor:
    return torch.stack([lookup(v) @ q for q, v in zip(query, viewpoint, strict=True)])


def _plain_attention(query: Tensor, viewpoint: Tensor, lookup: PanoramaLookup) -> Tensor:
    return torch.stack(
        [(lookup(v) @ q).softmax(0) @ lookup(v) for q, v in zip(query, viewpoint, strict=True)]
    )


@pytest.mark.parametrize("at_a_time", [16, 32, 64])
@pytest.mark.parametrize(
    ("attend", "plain"), [(attend_panoramas, _plain_attention), (score_panoramas, _plain_scores)]
)
@settings(deadline=None)  # the first product of a process is slow
@given(viewpoints=some_viewpoints)
def test_every_query_reads_the_views_of_its_viewpoint(
    attend: Attend, plain: Attend, at_a_time: int, viewpoints: list[int]
) -> None:
    """Values and gradients, whatever the other queries and however few viewpoints are read together."""
    torch.manual_seed(1)
    panoramas = torch.randn(VIEWPOINTS, VIEWS, VISUAL, dtype=torch.float64)
    query = torch.randn(len(viewpoints), VISUAL, dtype=torch.float64, requires_grad=True)
    together: list[int] = []

    def lookup(viewpoint: Tensor) -> Tensor:
        together.append(len(viewpoint))
        return panoramas[viewpoint]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_NUMBERS_AT_A_TIME", at_a_time * VIEWS * VISUAL)
        found = attend(query, torch.tensor(viewpoints), lookup)
    expected = plain(query, torch.tensor(viewpoints), panoramas.__getitem__)
    torch.testing.assert_close(found, expected)
    assert max(together) <= at_a_time + 1

    upstream = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * upstream).sum(), query),
        torch.autograd.grad((expected * upstream).sum(), query),
    )


@given(viewpoints=some_viewpoints)
@settings(deadline=None)
def test_a_viewpoint_is_looked_up_once_however_many_attend_to_it(viewpoints: list[int]) -> None:
    panoramas, found = torch.randn(VIEWPOINTS, VIEWS, VISUAL), []

    def lookup(viewpoint: Tensor) -> Tensor:
        found.extend(viewpoint.tolist())
        return panoramas[viewpoint]

    attend_panoramas(torch.randn(len(viewpoints), VISUAL), torch.tensor(viewpoints), lookup)
    assert sorted(found) == sorted(set(viewpoints))


@pytest.mark.parametrize("attend", [attend_panoramas, score_panoramas])
@pytest.mark.parametrize(
    ("viewpoints", "parts"),
    [(1, [1]), (16, [16]), (17, [17]), (18, [16, 2]), (33, [16, 17]), (34, [16, 16, 2])],
)
def test_no_viewpoint_is_left_over_alone(
    attend: Attend, viewpoints: int, parts: list[int], panoramas: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single one would be another kind of product, which rounds differently."""
    together = []

    def lookup(viewpoint: Tensor) -> Tensor:
        together.append(len(viewpoint))
        return panoramas[viewpoint]

    monkeypatch.setattr(attention, "_NUMBERS_AT_A_TIME", 16 * VIEWS * VISUAL)
    attend(panoramas.new_zeros(viewpoints, VISUAL), torch.arange(viewpoints), lookup)
    assert together == parts


@pytest.mark.parametrize("attend", [attend_panoramas, score_panoramas])
@pytest.mark.parametrize("viewpoint", [[0, 1, 2, 3, 4, 5], [3, 3, 0, 3, 5, 3, 3, 0]])
def test_panoramas_are_looked_up_again_for_the_gradient(
    attend: Attend, viewpoint: list[int], panoramas: Tensor
) -> None:
    query = torch.randn(len(viewpoint), VISUAL, dtype=torch.float64, requires_grad=True)
    lookups = []

    def lookup(viewpoint: Tensor) -> Tensor:
        lookups.append(viewpoint)
        return panoramas[viewpoint]

    found = attend(query, torch.tensor(viewpoint), lookup)
    before = len(lookups)
    torch.autograd.backward(found.sum())
    assert len(lookups) == 2 * before


@pytest.mark.parametrize("attend", [attend_panoramas, score_panoramas])
def test_the_gradient_is_that_of_small_differences(attend: Attend, panoramas: Tensor) -> None:
    query = torch.randn(7, VISUAL, dtype=torch.float64, requires_grad=True)
    viewpoint = torch.tensor([2, 0, 2, 2, 5, 2, 2])
    assert torch.autograd.gradcheck(lambda rows: attend(rows, viewpoint, panoramas.__getitem__), query)


@pytest.mark.parametrize(("attend", "width"), [(attend_panoramas, VISUAL), (score_panoramas, VIEWS)])
def test_no_query_reads_nothing(attend: Attend, width: int, panoramas: Tensor) -> None:
    nothing = attend(panoramas.new_empty(0, VISUAL), torch.empty(0, dtype=torch.long), panoramas.__getitem__)
    assert nothing.shape == (0, width)
