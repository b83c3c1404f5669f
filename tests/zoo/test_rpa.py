"""RPA: its environment model against what happened, and decisions that never change it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scenemem.errors import SettingError
from scenemem.learning.objectives import imitation
from scenemem.zoo.low_level import END, LOW_LEVEL
from scenemem.zoo.rpa import RPA, RPAConfig, environment_model
from tests.zoo.helpers import Setting, roam


def _rpa(setting: Setting, **changes: Any) -> RPA:
    agent = setting.loud_agent("rpa", **changes)
    assert isinstance(agent, RPA)
    return agent


def test_the_error_is_that_of_the_next_view_and_the_metres_won(setting: Setting) -> None:
    agent = _rpa(setting)
    rollout, log = setting.walk(agent, roam(1), learning=True)
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    table, store = rollout.decisions[LOW_LEVEL], setting.environment.store
    expected, counted = 0.0, 0
    for row in range(len(table.episode)):
        episode, step = int(table.episode[row]), int(table.step[row])
        found = float(outputs.heads["model_error"][episode, step].detach())
        if bool(table.stops[row]) or step + 1 >= int(rollout.length[episode]):
            assert found == 0.0
            continue
        views = [
            store.gather_views(rollout.viewpoint[episode, t], rollout.view[episode, t])
            for t in (step, step + 1)
        ]
        chance = torch.eye(6)[int(table.choice[row])]
        with torch.no_grad():
            view, reward = agent.model(views[0].unsqueeze(0), chance.unsqueeze(0))
        error = float((view[0] - views[1]).square().sum())
        error += (float(reward) - float(table.before[row] - table.after[row])) ** 2
        assert found == pytest.approx(error, rel=1e-3, abs=1e-4)
        expected, counted = expected + error, counted + 1
    assert counted > 30
    loss = environment_model(rollout, outputs, setting.context(rollout))
    assert float(loss.detach()) == pytest.approx(expected / int(rollout.alive.sum()), rel=1e-3)


def test_decisions_do_not_change_the_environment_model(setting: Setting) -> None:
    agent = _rpa(setting)
    rollout, log = setting.walk(agent, roam(1), learning=True)
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    names, parameters = zip(*agent.named_parameters(), strict=True)
    loss = imitation(rollout, outputs, {})
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    touched = {name for name, g in zip(names, gradients, strict=True) if g is not None and g.any()}
    assert not {name for name in touched if name.startswith("model.")}
    assert {name for name in touched if name.startswith("ahead.")}
    loss = environment_model(rollout, outputs, setting.context(rollout))
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    touched = {name for name, g in zip(names, gradients, strict=True) if g is not None}
    assert {name.partition(".")[0] for name in touched} == {"model"}


def test_stopping_is_not_imagined(setting: Setting) -> None:
    agent = _rpa(setting)
    chances: list[torch.Tensor] = []
    agent.model.register_forward_hook(lambda _module, inputs, _output: chances.append(inputs[1]))
    setting.walk(agent, roam(1), learning=True)
    imagined = torch.cat(chances)
    assert not imagined[:, END].any()
    torch.testing.assert_close(imagined.sum(dim=1), torch.ones(len(imagined)))


def test_what_is_imagined_matters(setting: Setting) -> None:
    agent = _rpa(setting, look_aheads=1, imagined_steps=3)
    rollout, log = setting.walk(agent, roam(1), learning=True)
    with torch.no_grad():
        before = agent.evaluate_actions(rollout, log, setting.environment).logits[LOW_LEVEL]
        agent.model.enter.bias.add_(1.0)
        after = agent.evaluate_actions(rollout, log, setting.environment).logits[LOW_LEVEL]
    options = rollout.decisions[LOW_LEVEL].options
    assert not torch.allclose(before[options], after[options])


def test_squashed_views_lie_between_0_and_1(setting: Setting) -> None:
    agent = _rpa(setting, squash=True)
    view, _ = agent.model(torch.randn(5, setting.environment.width), torch.eye(6)[:5])
    assert 0 < float(view.min().detach()) < float(view.max().detach()) < 1


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="look_aheads must be 1 or more, got 0"):
        RPAConfig(look_aheads=0)
