"""Student forcing: what its core reads, and that it sees nothing but the view ahead."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scenemem.agents.rollout import Rollout
from scenemem.models.navigator import Observation, StateLog
from scenemem.presets import PRESETS
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.zoo.low_level import END, FORWARD, LEFT, LOW_LEVEL
from scenemem.zoo.student_forcing import START, LowLevelAgent, ViewAheadUpdater
from tests.zoo.helpers import Setting, roam


@pytest.mark.parametrize("name", ["student-forcing", "student-forcing-as-published"])
def test_only_the_view_ahead_is_seen(name: str, setting: Setting) -> None:
    agent = setting.loud_agent(name)
    assert isinstance(agent, LowLevelAgent)
    read = setting.read(agent)
    masks = agent.dropout_masks(len(setting.episodes))
    here, view = setting.episodes.start, torch.full_like(setting.episodes.start, 14)
    panorama = setting.environment.panorama(here)

    def hidden(changed: torch.Tensor) -> torch.Tensor:
        seen = Observation(here, here * 0 - 1, view, changed, read, masks, environment=setting.environment)
        return agent.observe(agent.initial_state(read), seen).hidden

    other = torch.randn_like(panorama)
    other[:, 14] = panorama[:, 14]
    with torch.no_grad():
        torch.testing.assert_close(hidden(other), hidden(panorama))
        other[:, 14] += 1.0
        assert not torch.allclose(hidden(other), hidden(panorama))


def test_the_action_taken_enters_the_lstm(setting: Setting) -> None:
    updater = ViewAheadUpdater(setting.environment.width, 8, 3)
    embedded: list[torch.Tensor] = []
    updater.action.register_forward_hook(lambda _module, inputs, _output: embedded.append(inputs[0]))
    agent = setting.loud_agent("student-forcing-as-published", width=8)
    agent.updater = updater
    agent.visual = setting.environment.width
    rollout, _ = setting.walk(agent, roam(1), learning=True)
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
    assert LEFT in embedded[2].tolist() or FORWARD in embedded[2].tolist()


@pytest.mark.parametrize("name", ["student-forcing", "pta-low"])
def test_a_teacher_turns_and_steps_to_the_goal(name: str, setting: Setting) -> None:
    """What forced walks do is what the labels say, and it ends at the goal."""
    agent = setting.agent(name)
    trainer = setting.trainer(agent, PRESETS[name], batch=8, max_decisions=24, max_steps=25)
    walked: list[tuple[Rollout, Tensor, Tensor]] = []
    walk = trainer._walk

    def spy(batch: EpisodeSet, log: StateLog, forced: Tensor) -> Rollout:
        rollout = walk(batch, log, forced)
        end = rollout.viewpoint.gather(1, rollout.length.unsqueeze(1) - 1).squeeze(1)
        walked.append((rollout, end == batch.goal, rollout.length > batch.path_length))
        return rollout

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "_walk", spy)
        report = trainer.step()
    ((rollout, at_goal, turned),) = walked
    table = rollout.decisions[LOW_LEVEL]
    led = table.episode < 8
    assert torch.equal(table.choice[led], table.label[led])
    assert bool(at_goal[:8].all())
    assert bool(rollout.stopped[:8].all())
    assert bool(turned[:8].any()), "they turn, too"
    assert not torch.equal(table.choice[~led], table.label[~led]), "the others walk by themselves"
    assert report.losses["teacher_forcing"] > 0
