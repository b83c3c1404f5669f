"""Student forcing, RPA and PTA: what their cores read, what is imagined, what is kept of the past."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from scenemem.agents.rollout import Rollout
from scenemem.features.store import Environment
from scenemem.learning.objectives import imitation
from scenemem.models.navigator import Observation, RolloutInputs
from scenemem.presets import PRESETS
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.zoo.low_level import END, FORWARD, LEFT, LOW_LEVEL
from scenemem.zoo.objectives import environment_model
from scenemem.zoo.pta import PTA, PastState
from scenemem.zoo.rpa import RPA
from scenemem.zoo.student_forcing import START, LowLevelAgent, ViewAheadUpdater
from tests.zoo.helpers import Setting, learnt_by, roam

# student forcing


@pytest.mark.parametrize("name", ["student-forcing", "student-forcing-as-published"])
def test_only_the_view_ahead_is_seen(name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = setting.loud(LowLevelAgent, name)
    inputs, here = setting.inputs(agent), setting.episodes.start
    view, panorama = torch.full_like(here, 14), setting.environment.panorama(here)

    def hidden(changed: Tensor) -> Tensor:
        monkeypatch.setattr(Environment, "panorama", lambda *_: changed)
        seen = Observation.of(inputs, torch.arange(len(here)), here, here * 0 - 1, view)
        state: Tensor = agent.updater(agent.updater.initial_state(inputs.instructions), seen).hidden
        return state

    other = torch.randn_like(panorama)
    other[:, 14] = panorama[:, 14]
    with torch.no_grad():
        torch.testing.assert_close(hidden(other), hidden(panorama))
        other[:, 14] += 1.0
        assert not torch.allclose(hidden(other), hidden(panorama))


def test_the_action_taken_enters_the_lstm(setting: Setting) -> None:
    embedded: list[Tensor] = []
    agent = setting.loud(LowLevelAgent, "student-forcing-as-published")
    assert isinstance(agent.updater, ViewAheadUpdater)
    agent.updater.action.register_forward_hook(lambda _module, inputs, _output: embedded.append(inputs[0]))
    rollout = setting.walk(agent, roam(1), learning=True).rollout
    table = rollout.decisions[LOW_LEVEL]
    assert set(embedded[0].tolist()) == {START}
    choice = torch.full(rollout.alive.shape, -1)
    choice[table.episode, table.step] = table.choice
    for step in range(1, len(embedded)):
        active = rollout.alive[:, step]
        taken = choice[active, step - 1]
        still = (rollout.view[:, step] == rollout.view[:, step - 1])[active] & (taken != FORWARD)
        expected = torch.where(still, END, taken)  # a tilt beyond the highest view changes nothing
        assert torch.equal(embedded[step], expected)
    assert {LEFT, FORWARD} & set(embedded[2].tolist())


@pytest.mark.parametrize("name", ["student-forcing", "pta-low"])
def test_a_teacher_turns_and_steps_to_the_goal(
    name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What forced walks do is what the labels say, and it ends at the goal."""
    trainer = setting.trainer(setting.agent(name), PRESETS[name], batch=8, max_decisions=24, max_steps=25)
    walked: list[tuple[EpisodeSet, Rollout]] = []
    walk = trainer._walk

    def spy(batch: EpisodeSet, inputs: RolloutInputs, forced: Tensor) -> Rollout:
        walked.append((batch, walk(batch, inputs, forced)))
        return walked[-1][1]

    monkeypatch.setattr(trainer, "_walk", spy)
    report = trainer.step()
    ((batch, rollout),) = walked
    table = rollout.decisions[LOW_LEVEL]
    led, end = table.episode < 8, rollout.viewpoint.gather(1, rollout.length.unsqueeze(1) - 1).squeeze(1)
    assert torch.equal(table.choice[led], table.label[led])
    assert torch.equal(end[:8], batch.goal[:8])
    assert bool(rollout.stopped[:8].all())
    assert bool((rollout.length > batch.path_length)[:8].any()), "they turn, too"
    assert not torch.equal(table.choice[~led], table.label[~led]), "the others walk by themselves"
    assert report.losses["teacher_forcing"] > 0


# RPA: look before you leap


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


def test_squashed_views_lie_between_0_and_1(setting: Setting) -> None:
    agent = setting.loud(RPA, "rpa", squash=True)
    view, _ = agent.model(torch.randn(5, setting.environment.width), torch.eye(6)[:5])
    assert 0 < float(view.min().detach()) < float(view.max().detach()) < 1


# PTA


@torch.no_grad()
def _observed(agent: PTA, setting: Setting, steps: int, begin: PastState | None = None) -> list[PastState]:
    """The states of all episodes, turning on the spot for some steps."""
    inputs, here = setting.inputs(agent), setting.episodes.start
    state, found = begin or agent.updater.initial_state(inputs.instructions), []
    for step in range(steps):
        previous = here if step else torch.full_like(here, -1)
        view = torch.full_like(here, 12 + step % 12)
        state = agent.updater(state, Observation.of(inputs, torch.arange(len(here)), here, previous, view))
        assert isinstance(state, PastState)
        found.append(state)
    return found


@pytest.mark.parametrize("name", ["pta", "pta-low"])
def test_the_newest_tokens_of_the_past_are_kept(name: str, setting: Setting) -> None:
    states = _observed(setting.loud(PTA, name, history=5), setting, 7)
    for step, state in enumerate(states):
        kept = min(step + 1, 5)
        assert state.count.tolist() == [kept] * len(setting.episodes)
        assert not state.past[:, : 5 - kept].any()
        if step:
            torch.testing.assert_close(state.past[:, -2], states[step - 1].past[:, -1])


def test_empty_places_of_the_window_are_not_attended_to(setting: Setting) -> None:
    agent = setting.loud(PTA, "pta", history=4)
    begin = agent.updater.initial_state(setting.inputs(agent).instructions)
    assert isinstance(begin, PastState)
    noisy = replace(begin, past=torch.randn_like(begin.past))
    (expected,), (found,) = (_observed(agent, setting, 1, state) for state in (begin, noisy))
    torch.testing.assert_close(found.hidden, expected.hidden)


def test_the_past_matters_and_words_of_an_episode_sum_to_1(setting: Setting) -> None:
    first, _, third = _observed(setting.loud(PTA, "pta"), setting, 3)
    assert not torch.allclose(first.hidden, third.hidden)
    torch.testing.assert_close(third.word_attention.sum(1), torch.ones(len(setting.episodes)))
    assert third.attention.keys() == {"perception", "action"}
