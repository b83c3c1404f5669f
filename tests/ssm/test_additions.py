"""The additions to the agent: hints, staying, stopping from memory, remembered scores, hop prior, endings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from scenemem.models.navigator import dots
from scenemem.ssm.ablations import LocalMemoryActions
from scenemem.ssm.additions import (
    REMEMBERED,
    BasicWithEnding,
    EndingConfig,
    FrontierHints,
    HopPriorActions,
    HopPriorLocalActions,
    SSMPlus,
    SSMPlusConfig,
    StayScore,
    StopFromMemory,
    log_probabilities,
)
from scenemem.ssm.deciding import FrontierActions
from scenemem.ssm.graph import MemoryGraph
from scenemem.world.graph import NONE
from tests.ssm.helpers import WIDTH, Moment, Setting, randn, scored

REMEMBERED_SCORES = torch.tensor(
    [[[-1.0, -2.0, -3.0], [-4.0, -0.5, -1e4], [-6.0, -7.0, -0.1], [9.0, 9.0, 9.0]]]
)
OPEN = torch.tensor([[[False, True], [True, False], [False, False], [True, True]]])
WALK = torch.tensor([[5.0, 0.0, 20.0, torch.inf]])
close = torch.testing.assert_close


@pytest.fixture
def graph(moment: Moment) -> MemoryGraph:
    """A memory of three nodes, standing at node 1; a fourth is not known yet."""
    return replace(
        moment.graph,
        viewpoint=torch.tensor([[7, 3, 5, NONE]]),
        here=torch.tensor([1]),
        walk=WALK,
        open=OPEN,
    )


def test_hints_are_plain_facts(graph: MemoryGraph) -> None:
    assert FrontierHints.columns(graph, REMEMBERED_SCORES)[0].tolist() == [
        pytest.approx(row)
        for row in (
            # here, walk / 10, age / 10, best open candidate, stopping there
            [0.0, 0.5, 0.2, -2.0, -3.0],
            [1.0, 0.0, 0.1, -4.0, -10.0],  # remembered scores have a floor
            [0.0, 2.0, 0.0, -10.0, -0.1],  # nothing is open there
            [0.0, 0.0, 0.0, 0.0, 0.0],  # not known yet
        )
    ]
    worse, everywhere = REMEMBERED_SCORES.clone(), replace(graph, open=torch.ones_like(OPEN))
    worse[0, 0, :2] = torch.tensor([-11.0, -12.0])
    assert FrontierHints.columns(everywhere, worse)[0, 0, 3] == -10.0


def test_staying_and_stopping_from_memory_begin_with_scores_of_zero(
    graph: MemoryGraph, moment: Moment
) -> None:
    """And learn from the start; only staying has a score for staying."""
    stay, state = StayScore(WIDTH), torch.randn(1, WIDTH)
    assert stay(state, graph).tolist() == [[0.0] * 4]
    nn.init.constant_(stay.score.bias, 3.0)
    assert stay(state, graph).tolist() == [[0.0, 3.0, 0.0, 0.0]]
    fits = StopFromMemory(WIDTH, 7, 32).double()
    found = fits(moment.grounded, (randn(3, 5, 7), randn(3, 5, 32)), torch.tensor([4, 1, 0]))
    assert found.tolist() == [0.0] * 3
    assert all(gradient.any() for gradient in torch.autograd.grad(found.sum(), list(fits.parameters())))


def test_probabilities_are_those_of_real_neighbours_and_stop() -> None:
    """Empty slots have none: a large negative number that stays finite, whatever was scored there."""
    mask = torch.arange(4) < torch.tensor([4, 1, 0]).unsqueeze(1)
    logits = randn(3, 5).requires_grad_()
    found, table = log_probabilities(logits, mask), log_probabilities(logits.expand(2, -1, -1), mask)
    for row, count in enumerate([4, 1, 0]):
        options = [*range(count), 4]
        close(found[row, options], logits[row, options].softmax(0).log())
        assert found[row, count:4].tolist() == [-1e4] * (4 - count)
    close(table[1], found)
    garbage = logits.masked_fill(~torch.nn.functional.pad(mask, (0, 1), value=True), 1e30)
    assert torch.equal(log_probabilities(garbage, mask), found)
    (gradient,) = torch.autograd.grad(found, logits, randn(3, 5))
    assert gradient.isfinite().all()
    assert not gradient[:, :-1][~mask].any(), "empty slots learn nothing"


# in the agent


def _plus(setting: Setting, **settings: Any) -> SSMPlus:
    agent: SSMPlus = setting.random("ssm-plus", **settings)
    return agent


def test_remembered_scores_have_no_gradient_and_are_there_with_hints_only(setting: Setting) -> None:
    agent = _plus(setting, hints=True)
    point, _ = scored(agent, lambda: setting.learning(agent))[-1]
    assert not point.memory().column(REMEMBERED).requires_grad
    plain = _plus(setting)
    assert plain.node_features(point.observations) == {}
    assert not any("hints" in name or "stop_from" in name for name, _ in plain.named_parameters())


def test_the_memory_may_be_read_with_the_state_before_the_observation(setting: Setting) -> None:
    """Frontiers are scored with the new state all the same."""
    agent = _plus(setting, read_before_update=True)
    point, scores = scored(agent, lambda: setting.learning(agent))[2]
    before = agent.ground_earlier(point.observations)
    rows = type(before)(before.perception[point.row], before.action[point.row])
    nodes = agent.reader(rows, point.heading, point.feature_mask, point.memory())
    frontiers, actions = scores.values()
    close(frontiers, dots(*agent.frontier_score(point.per_observation(agent.ground), nodes)))
    after = _plus(setting)
    after.load_state_dict(agent.state_dict())
    assert not torch.allclose(after.score(point)[next(iter(scores))], frontiers)
    close(list(after.score(point).values())[1], actions)


# ends of walks


@pytest.mark.parametrize(
    ("make", "settings", "space", "ends", "learning_ends"),
    [
        (SSMPlusConfig, {}, FrontierActions, False, False),
        (SSMPlusConfig, {"final_backtrack": True}, FrontierActions, True, False),
        (SSMPlusConfig, {"hop_prior": True}, HopPriorActions, True, True),
        (EndingConfig, {}, LocalMemoryActions, False, False),
        (EndingConfig, {"final_backtrack": True}, LocalMemoryActions, True, False),
        (EndingConfig, {"hop_prior": True}, HopPriorLocalActions, True, False),
    ],
)
def test_settings_choose_how_walks_end(
    make: Any, settings: dict[str, bool], space: type, ends: bool, learning_ends: bool, setting: Setting
) -> None:
    """Walks to learn from are cut off, for the critic to judge, unless their last choice is learnt."""
    kind: Any = SSMPlus if make is SSMPlusConfig else BasicWithEnding
    agent = kind(make(width=16, **settings), setting.sizes)
    for learning, expected in ((False, ends), (True, learning_ends)):
        made = agent.action_space(setting.environment.world, 2, 5, learning=learning)
        assert (made.final_backtrack, made.allow_revisits) == (expected, make is EndingConfig)
        assert type(made) is space
