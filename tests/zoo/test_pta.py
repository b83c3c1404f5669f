"""PTA: what it keeps of the past, and that empty places and padding do not matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from scenemem.agents.rollout import ACTION
from scenemem.errors import SettingError
from scenemem.models.navigator import Observation
from scenemem.zoo.low_level import LOW_LEVEL
from scenemem.zoo.pta import PTA, PastState, PerceiveTransform, PTAConfig
from tests.zoo.helpers import Setting, roam


def _pta(setting: Setting, name: str = "pta", **changes: Any) -> PTA:
    agent = setting.loud_agent(name, **changes)
    assert isinstance(agent, PTA)
    return agent


def _observed(agent: PTA, setting: Setting, steps: int) -> list[PastState]:
    """The states of everybody turning on the spot for some steps."""
    read = setting.read(agent)
    state = agent.initial_state(read)
    masks = agent.dropout_masks(len(setting.episodes))
    here, found = setting.episodes.start, []
    for step in range(steps):
        previous = here if step else torch.full_like(here, -1)
        view = torch.full_like(here, 12 + step % 12)
        panorama = setting.environment.panorama(here)
        seen = Observation(here, previous, view, panorama, read, masks, environment=setting.environment)
        state = agent.observe(state, seen)
        assert isinstance(state, PastState)
        found.append(state)
    return found


@pytest.mark.parametrize("name", ["pta", "pta-low"])
def test_the_newest_tokens_of_the_past_are_kept(name: str, setting: Setting) -> None:
    agent = _pta(setting, name, history=5)
    with torch.no_grad():
        states = _observed(agent, setting, 7)
    for step, state in enumerate(states):
        assert state.count.tolist() == [min(step + 1, 5)] * len(setting.episodes)
        kept = min(step + 1, 5)
        assert not state.past[:, : 5 - kept].any()
        if step:
            torch.testing.assert_close(state.past[:, -2], states[step - 1].past[:, -1])


def test_empty_places_of_the_window_are_not_attended_to(setting: Setting) -> None:
    agent = _pta(setting, history=4)
    updater = agent.updater
    assert isinstance(updater, PerceiveTransform)
    read, here = setting.read(agent), setting.episodes.start
    masks = agent.dropout_masks(len(here))
    panorama = setting.environment.panorama(here)
    seen = Observation(here, here * 0 - 1, here * 0 + 12, panorama, read, masks)
    begin = agent.initial_state(read)
    assert isinstance(begin, PastState)
    noisy = PastState(
        begin.hidden, torch.randn_like(begin.past), begin.count, begin.word_attention, begin.faced
    )
    with torch.no_grad():
        torch.testing.assert_close(updater(begin, seen).hidden, updater(noisy, seen).hidden)


def test_the_past_matters(setting: Setting) -> None:
    agent = _pta(setting)
    with torch.no_grad():
        first, _, third = _observed(agent, setting, 3)
    assert not torch.allclose(first.hidden, third.hidden)


def test_words_of_an_episode_sum_to_1(setting: Setting) -> None:
    with torch.no_grad():
        (state,) = _observed(_pta(setting), setting, 1)
    torch.testing.assert_close(state.word_attention.sum(1), torch.ones(len(setting.episodes)))
    assert state.attention.keys() == {"perception", "action"}


def test_it_decides_about_neighbours_or_about_turns(setting: Setting) -> None:
    for name, kind in (("pta", ACTION), ("pta-low", LOW_LEVEL)):
        rollout, _ = setting.walk(_pta(setting, name), roam())
        assert rollout.decisions.keys() == {kind}


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="map_width must be even and a multiple of heads, got 30"):
        PTAConfig(map_width=30)
    with pytest.raises(SettingError, match="history must be 1 or more, got 0"):
        PTAConfig(history=0)
