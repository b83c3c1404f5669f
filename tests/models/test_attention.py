from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scenemem.models.attention import dots, masked_softmax, rows_of
from scenemem.models.recurrent import untiled
from scenemem.models.reading import tiled
from scenemem.world.graph import rotated
from scenemem.world.graph import ANGLE_WIDTH, angle_feature


@pytest.fixture
def angles() -> tuple[Tensor, Tensor]:
    """Headings all the way round and elevations up and down, (5, 7) each."""
    random = torch.Generator().manual_seed(0)
    heading = torch.rand(5, 7, generator=random, dtype=torch.float64) * 2 * math.pi
    elevation = torch.rand(5, 7, generator=random, dtype=torch.float64) - 0.5
    return heading, elevation


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


@pytest.mark.parametrize("index", [[2, 0, 2, 2], [[0, 2], [2, 1]], []], ids=["flat", "table", "empty"])
def test_rows_are_picked_with_the_gradient_of_indexing(index: list[int] | list[list[int]]) -> None:
    table = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    chosen = torch.tensor(index, dtype=torch.long)
    picked, expected = rows_of(table, chosen), table[chosen]
    assert torch.equal(picked, expected)
    weight = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad((picked * weight).sum(), table)
    torch.testing.assert_close(gradient, torch.autograd.grad((expected * weight).sum(), table)[0])


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
    folded = (angle_feature(*angles, width=4) * untiled(query)).sum(-1)
    torch.testing.assert_close(folded, (angle_feature(*angles, width) * query).sum(-1))


def test_turning_features_is_turning_the_heading(angles: tuple[Tensor, Tensor]) -> None:
    heading, elevation = angles
    facing = torch.rand(5, 1, dtype=torch.float64) * 2 * math.pi
    relative = angle_feature(heading - facing, elevation, width=4)
    torch.testing.assert_close(rotated(angle_feature(heading, elevation, width=4), facing), relative)


def test_turning_the_query_back_is_turning_the_features(angles: tuple[Tensor, Tensor]) -> None:
    heading, elevation = angles
    facing = torch.rand(5, 1, dtype=torch.float64) * 2 * math.pi
    query = torch.randn(5, 1, ANGLE_WIDTH, dtype=torch.float64)
    absolute = angle_feature(heading, elevation, width=4)
    cheap = (absolute * rotated(untiled(query), -facing)).sum(-1)
    plain = (angle_feature(heading - facing, elevation) * query).sum(-1)
    torch.testing.assert_close(cheap, plain)
