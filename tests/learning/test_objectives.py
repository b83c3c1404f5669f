"""Losses and rewards, each against a loop over episodes and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import Agent
from scenemem.agents.rollout import ACTION, FRONTIER, GLOBAL, DecisionType, Rollout
from scenemem.agents.walker import Sample
from scenemem.learning.objectives import (
    LOSSES,
    LearningConfig,
    LossContext,
    RewardConfig,
    Stage,
    a2c,
    distance_reward,
    imitation,
    rewards,
    student_forcing,
    teacher_forcing,
)
from tests.agents.helpers import Setting, packaged


@pytest.mark.parametrize(
    ("before", "after", "stops", "sign", "metres"),
    [
        (8.0, 5.5, False, 1.0, 2.5),
        (5.5, 8.0, False, -1.0, -2.5),
        (4.0, 4.0, False, 0.0, 0.0),  # staying at a frontier earns nothing
        (4.0, 0.0, False, 1.0, 4.0),  # reaching the goal is not the end
        (2.9, 2.9, True, 2.0, 2.0),
        (3.0, 3.0, True, -2.0, -2.0),  # success is nearer than 3 m
        (9.0, 9.0, True, -2.0, -2.0),
        (0.0, 0.0, True, 2.0, 2.0),
    ],
)
def test_what_a_decision_earns(before: float, after: float, stops: bool, sign: float, metres: float) -> None:
    decision = torch.tensor([before]), torch.tensor([after]), torch.tensor([stops])
    assert rewards(*decision, RewardConfig()).tolist() == [sign]
    assert rewards(*decision, RewardConfig(quantised=False)).tolist() == [metres]


def test_success_can_be_paid_differently() -> None:
    stop = torch.tensor([1.0, 5.0]), torch.tensor([1.0, 5.0]), torch.tensor([True, True])
    assert rewards(*stop, RewardConfig(success=7.0)).tolist() == [7.0, -2.0]
    assert rewards(*stop, RewardConfig(failure=0.0)).tolist() == [2.0, 0.0]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="teacher_hops must be 0 or more, got -1"):
        LearningConfig(teacher_hops=-1)
    with pytest.raises(ValueError, match=r"discount must be in \[0, 1\], got 1.5"):
        RewardConfig(discount=1.5)


def test_losses_say_from_which_walks_they_learn() -> None:
    walks = {name: LOSSES[name].walks for name in ("teacher_forcing", "student_forcing", "a2c")}
    assert walks == {"teacher_forcing": "teacher", "student_forcing": "student", "a2c": "student"}


# the losses of whole rollouts, against a loop over episodes and decisions


@dataclass(frozen=True)
class Walked:
    """A rollout of many episodes, some stopped and some cut off."""

    setting: Setting
    agent: Agent
    rollout: Rollout

    def context(self, config: LearningConfig | None = None, **stage: Any) -> LossContext:
        taken = sum(len(table.episode) for table in self.rollout.decisions.values())
        world, episodes = self.setting.world, self.setting.episodes
        return LossContext(
            world, episodes, config or LearningConfig(), Stage(**stage), taken, distance_reward
        )


@pytest.fixture(scope="module")
def setting(tiny_trainable: Path) -> Setting:
    return Setting.load(tiny_trainable).every(9)


@pytest.fixture(params=["ssm", "ssm-global"])
def walked(request: pytest.FixtureRequest, setting: Setting) -> Walked:
    made = packaged(request.param, dropout=0.3, feature_dropout=0.3, reasoning_steps=2, node_width=7)
    agent = setting.network(made, std=None).train()
    pick = Sample(torch.Generator().manual_seed(1))
    rollout = setting.walk(agent, pick, max_decisions=4, max_steps=8)
    assert 0 < int(rollout.stopped.sum()) < len(setting.episodes), "some stop, some are cut off"
    return Walked(setting, agent, rollout)


@dataclass(frozen=True)
class Step:
    """One decision of one episode."""

    kind: DecisionType
    order: int
    scores: Tensor  # of the options there were
    value: Tensor
    choice: int  # among the options there were
    label: int
    before: float
    after: float
    stops: bool


def _steps(rollout: Rollout, episode: int) -> list[Step]:
    """The decisions of a single episode in their order."""
    steps = []
    for kind, table in rollout.decisions.items():
        for row in (table.episode == episode).nonzero().squeeze(1).tolist():
            options = table.options[row].nonzero().squeeze(1).tolist()
            steps.append(
                Step(
                    kind,
                    int(table.order[row]),
                    table.logits[row][options],
                    rollout.heads["value"][episode, table.step[row]],
                    options.index(int(table.choice[row])),
                    options.index(int(table.label[row])),
                    float(table.before[row]),
                    float(table.after[row]),
                    bool(table.stops[row]),
                )
            )
    return sorted(steps, key=lambda step: step.order)


def _slow_imitation(rollout: Rollout, weights: Mapping[DecisionType, float]) -> Tensor:
    total, count = torch.zeros(()), len(rollout.alive)
    for episode in range(count):
        for step in _steps(rollout, episode):
            probability = step.scores.exp()[step.label] / step.scores.exp().sum()
            total = total - weights.get(step.kind, 1.0) * probability.log()
    return total / count


def slow_a2c(rollout: Rollout, config: LearningConfig) -> Tensor:
    total, count = torch.zeros(()), 0
    for episode, length in enumerate(rollout.length.tolist()):
        steps = _steps(rollout, episode)
        last = rollout.heads["value"][episode, length - 1].detach()
        expected = 0.0 if steps[-1].stops else float(last)
        for step in reversed(steps):
            if step.stops:
                reward = config.reward.success if step.after < 3.0 else config.reward.failure
            else:
                closer = step.before - step.after
                reward = float(np.sign(closer)) if config.reward.quantised else closer
            expected = reward + config.reward.discount * expected
            probability = step.scores.softmax(0)
            total = total - (expected - step.value.detach()) * probability[step.choice].log()
            total = total + config.value * (expected - step.value) ** 2
            total = total + config.entropy * (probability * probability.log()).sum()
            count += 1
    return total / count


def _check(walked: Walked, fast: Tensor, slow: Tensor) -> None:
    """Same value, same gradient of every parameter."""
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-4)
    names, parameters = zip(*walked.agent.named_parameters(), strict=True)
    fast_gradients = torch.autograd.grad(fast, parameters, materialize_grads=True, retain_graph=True)
    slow_gradients = torch.autograd.grad(slow, parameters, materialize_grads=True)
    for name, a, b in zip(names, fast_gradients, slow_gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-6, rtol=1e-3), name
    assert sum(float(gradient.abs().sum()) for gradient in fast_gradients) > 0


@pytest.mark.parametrize("weights", [{}, {FRONTIER: 0.2, ACTION: 1.5, GLOBAL: 0.7}])
def test_imitation_is_the_sum_over_episodes_and_decisions(
    walked: Walked, weights: dict[DecisionType, float]
) -> None:
    _check(walked, imitation(walked.rollout, weights), _slow_imitation(walked.rollout, weights))


def test_frontier_decisions_have_the_weight_of_their_stage(walked: Walked) -> None:
    rollout, context = walked.rollout, walked.context(teacher_frontier=0.3, student_frontier=2.5)
    for loss, weight in ((teacher_forcing, 0.3), (student_forcing, 2.5)):
        assert torch.equal(loss(rollout, context), imitation(rollout, {FRONTIER: weight}))
    if FRONTIER in rollout.decisions:
        assert not torch.equal(imitation(rollout, {}), imitation(rollout, {FRONTIER: 0.3}))


@pytest.mark.parametrize(
    "config",
    [
        LearningConfig(),
        LearningConfig(entropy=0.05, value=0.4, reward=RewardConfig(discount=0.8)),
        LearningConfig(reward=RewardConfig(success=5.0, failure=-1.0, quantised=False, discount=0.5)),
    ],
    ids=["default", "weights", "rewards"],
)
def test_a2c_is_the_sum_over_episodes_and_decisions(walked: Walked, config: LearningConfig) -> None:
    fast = a2c(walked.rollout, walked.context(config))
    _check(walked, fast, slow_a2c(walked.rollout, config))


def test_a2c_of_several_processes_is_divided_by_their_mean_number_of_decisions(walked: Walked) -> None:
    context = walked.context()
    half = a2c(walked.rollout, replace(context, decisions=2 * context.decisions))
    torch.testing.assert_close(2 * half, a2c(walked.rollout, context))


def test_decisions_without_a_label_teach_nothing(walked: Walked) -> None:
    unlabelled = {
        kind: replace(table, label=torch.full_like(table.label, -1))
        for kind, table in walked.rollout.decisions.items()
    }
    assert imitation(replace(walked.rollout, decisions=unlabelled), {}).item() == 0.0
