"""The scores of frontiers and neighbours (section 3.3, Eqs. 13 and 14) against plain products of vectors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scenemem.features.store import CandidateFeatures
from scenemem.models.navigator import dots, tiled
from scenemem.ssm.deciding import ActionScore, FrontierScore
from scenemem.ssm.reading import Grounded
from tests.ssm.helpers import MASK, VISUAL, WIDTH, Moment, randn, trained

NODES = 4
close = torch.testing.assert_close


def _plain(
    score: FrontierScore | ActionScore, grounded: Grounded, row: int, visual: Tensor, orientation: Tensor
) -> tuple[Tensor, Tensor]:
    """Eqs. 13 and 14 for one option: both confidences (2,), and their weighted sum."""
    perception, action = grounded.perception[row], grounded.action[row]
    by_view = visual @ score.query_visual.weight @ perception
    by_direction = orientation @ score.query_orientation.weight @ action
    weight = score.mix.weight @ torch.cat([perception, action])
    confidence = torch.stack([by_view, by_direction])
    return confidence, confidence @ weight


@pytest.mark.parametrize(("visual", "orientation"), [(VISUAL, 128), (7, 8)])
def test_frontiers_are_scored_by_equation_13(visual: int, orientation: int, moment: Moment) -> None:
    score = trained(FrontierScore(WIDTH, visual, orientation))
    nodes = randn(3, NODES, visual), randn(3, NODES, orientation)
    confidence, weights = score(moment.grounded, nodes)
    logits = dots(confidence, weights)
    assert logits.shape == (3, NODES)
    for row in range(3):
        for node in range(NODES):
            plain = _plain(score, moment.grounded, row, nodes[0][row, node], nodes[1][row, node])
            close((confidence[row, node], logits[row, node]), plain)


@pytest.fixture
def score() -> ActionScore:
    torch.manual_seed(4)
    made: ActionScore = trained(ActionScore(WIDTH, VISUAL))
    return made


def _seen(moment: Moment) -> CandidateFeatures:
    """The neighbours of here as the agents see them; some slots are empty."""
    view = torch.tensor([14, 3, 29])
    return moment.environment.candidates(torch.tensor([walk[-1] for walk in moment.walks]), view)


def test_neighbours_and_stopping_are_scored_by_equation_14(score: ActionScore, moment: Moment) -> None:
    """Directions are tiled and dropped columns are 0 in the equation; the stop option is never dropped."""
    seen = _seen(moment)
    confidence, weights = score(moment.grounded, seen, MASK)
    logits = dots(confidence, weights)
    visual, orientation = seen.visual * MASK, tiled(seen.orientation)
    for row in range(3):
        stop = (score.stop.visual, score.stop.orientation)
        options = [*zip(visual[row], orientation[row], strict=True), stop]
        assert logits.shape[1] == len(options)
        for option, features in enumerate(options):
            plain = _plain(score, moment.grounded, row, *features)
            close((confidence[row, option], logits[row, option]), plain)


def test_stopping_begins_with_a_score_of_zero_and_learns(moment: Moment) -> None:
    score = ActionScore(WIDTH, VISUAL).double()
    stopping = dots(*score(moment.grounded, _seen(moment), MASK))[:, -1]
    assert stopping.tolist() == [0.0] * 3
    gradients = torch.autograd.grad(stopping.sum(), list(score.stop.parameters()))
    assert all(gradient.any() for gradient in gradients)


def test_neighbours_look_as_from_where_the_agent_faces(moment: Moment) -> None:
    world, seen = moment.environment.world, _seen(moment)
    for row, (walk, view) in enumerate(zip(moment.walks, [14, 3, 29], strict=True)):
        assert torch.equal(seen.mask[row], world.neighbour_mask[walk[-1]])
        panorama = moment.environment.panorama(torch.tensor(walk[-1]))
        assert torch.equal(seen.visual[row], panorama[world.neighbour_view[walk[-1]]])
        turned = world.neighbour_heading[walk[-1]] - view % 12 * torch.pi / 6
        elevation = world.neighbour_elevation[walk[-1]]
        four = torch.stack([turned.cos(), turned.sin(), elevation.cos(), elevation.sin()], dim=1)
        close(seen.orientation[row], four * seen.mask[row].unsqueeze(1), atol=1e-6, rtol=1e-6)
