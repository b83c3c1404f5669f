"""PTA: what it keeps of the past, and that empty places and padding do not matter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scenemem.models.navigator import Observation
from scenemem.zoo.pta import PTA, PastState
from tests.zoo.helpers import Setting


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
