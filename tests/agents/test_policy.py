from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from scenemem.agents.network import Acting
from scenemem.agents.policy import NetworkPolicy, Sample, take_best
from scenemem.agents.spaces import ActionSpace, LocalSpace
from torch import Tensor

from scenemem.agents.rollout import Question
from scenemem.errors import UserError
from scenemem.simulator.panorama import Pose
from scenemem.world.build import load_world

NOWHERE = Pose(torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.long), torch.zeros(2).bool())


class FixedScores:
    """Stands in for a network in use."""

    def __init__(self, scores: list[list[float]]) -> None:
        self._scores = torch.tensor(scores)

    def logits(self, _question: Question, _pose: Pose, _space: ActionSpace) -> Tensor:
        return self._scores


@pytest.fixture
def space(tiny_data: Path) -> ActionSpace:
    return LocalSpace(load_world(tiny_data / "connectivity"), 2, 1)


def _answer(scores: list[list[float]], options: list[list[bool]], space: ActionSpace) -> list[int]:
    policy = NetworkPolicy(cast(Acting, FixedScores(scores)), take_best)
    place = torch.zeros(2, 3, dtype=torch.long)
    question = Question("action", torch.tensor([0, 1]), torch.tensor(options), place)
    return policy.answer(question, torch.tensor([0, 0]), NOWHERE, space).tolist()


def test_only_options_are_chosen(space: ActionSpace) -> None:
    scores = [[1.0, 9.0, 2.0], [-5.0, -7.0, -6.0]]
    assert _answer(scores, [[True, True, True], [True, True, True]], space) == [1, 0]
    assert _answer(scores, [[True, False, True], [False, True, True]], space) == [2, 2]


def test_scores_that_are_not_numbers_are_refused(space: ActionSpace) -> None:
    with pytest.raises(UserError, match="a score of decision 'action' is not a finite number; look"):
        _answer([[1.0, torch.nan, 2.0], [0.0, 0.0, 0.0]], [[True] * 3] * 2, space)


def test_sampling_follows_the_probabilities_and_its_seed() -> None:
    def draw(seed: int) -> Tensor:
        return Sample(torch.Generator().manual_seed(seed))(logits)

    share = torch.tensor([0.7, 0.2, 0.1, 0.0])
    logits = share.log().expand(4000, -1)
    drawn = torch.bincount(draw(1), minlength=4) / len(logits)
    torch.testing.assert_close(drawn, share, atol=0.03, rtol=0.0)
    assert int(draw(1).max()) < 3, "what is no option is never drawn"
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
