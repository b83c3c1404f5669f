"""RPA: its environment model against what happened, and decisions that never change it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scenemem.learning.objectives import imitation
from scenemem.zoo.low_level import END, LOW_LEVEL
from scenemem.zoo.rpa import RPA, environment_model
from tests.zoo.helpers import Setting, learnt_by, roam


def test_the_error_is_that_of_the_next_view_and_the_metres_won(setting: Setting) -> None:
    agent = setting.loud(RPA, "rpa")
    walk = setting.walk(agent, roam(1), learning=True)
    rollout, store = walk.rollout, setting.environment.store
    table, expected, counted = rollout.decisions[LOW_LEVEL], 0.0, 0
    for row, (episode, step) in enumerate(zip(table.episode.tolist(), table.step.tolist(), strict=True)):
        found = float(walk.heads["model_error"][episode, step].detach())
        if bool(table.stops[row]) or step + 1 >= int(rollout.length[episode]):
            assert found == 0.0
            continue
        views = store.gather_views(
            rollout.viewpoint[episode, step : step + 2], rollout.view[episode, step : step + 2]
        )
        chance = torch.eye(6)[int(table.choice[row])]
        with torch.no_grad():
            view, reward = agent.model(views[:1], chance.unsqueeze(0))
        error = float((view[0] - views[1]).square().sum())
        error += (float(reward) - float(table.before[row] - table.after[row])) ** 2
        assert found == pytest.approx(error, rel=1e-3, abs=1e-4)
        expected, counted = expected + error, counted + 1
    assert counted > 30
    loss = environment_model(rollout, setting.context(rollout))
    assert float(loss.detach()) == pytest.approx(expected / int(rollout.alive.sum()), rel=1e-3)


def test_decisions_do_not_change_the_environment_model(setting: Setting) -> None:
    agent = setting.loud(RPA, "rpa")
    rollout = setting.walk(agent, roam(1), learning=True).rollout
    context = setting.context(rollout)
    touched = {name.partition(".")[0] for name in learnt_by(agent, imitation(rollout, {}))}
    assert "ahead" in touched
    assert "model" not in touched
    touched = {name.partition(".")[0] for name in learnt_by(agent, environment_model(rollout, context))}
    assert touched == {"model"}


def test_stopping_is_not_imagined(setting: Setting) -> None:
    agent, chances = setting.loud(RPA, "rpa"), list[torch.Tensor]()
    seen = setting.walk(agent, roam(1)).seen[1]
    agent.model.register_forward_hook(lambda _module, inputs, _output: chances.append(inputs[1]))
    agent.imagine(seen)
    imagined = torch.cat(chances)
    assert not imagined[:, END].any()
    torch.testing.assert_close(imagined.sum(dim=1), torch.ones(len(imagined)))


def test_what_is_imagined_matters(setting: Setting) -> None:
    agent = setting.loud(RPA, "rpa", look_aheads=1, imagined_steps=3)
    seen = setting.walk(agent, roam(1)).seen[1]
    with torch.no_grad():
        before = agent.logits(seen)
        agent.model.enter.bias.add_(1.0)
        assert not torch.allclose(agent.logits(replace(seen, cache={})), before)


def test_squashed_views_lie_between_0_and_1(setting: Setting) -> None:
    agent = setting.loud(RPA, "rpa", squash=True)
    view, _ = agent.model(torch.randn(5, setting.environment.width), torch.eye(6)[:5])
    assert 0 < float(view.min().detach()) < float(view.max().detach()) < 1
