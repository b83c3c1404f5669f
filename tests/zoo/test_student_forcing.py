"""Student forcing: what its core reads, and that it sees nothing but the view ahead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scenemem.agents.rollout import Rollout
from scenemem.features.store import Environment
from scenemem.models.navigator import Observation, RolloutInputs
from scenemem.presets import PRESETS
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.zoo.low_level import END, FORWARD, LEFT, LOW_LEVEL
from scenemem.zoo.student_forcing import START, LowLevelAgent, ViewAheadUpdater
from tests.zoo.helpers import Setting, roam


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
