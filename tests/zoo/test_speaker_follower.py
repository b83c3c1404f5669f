"""Speaker-Follower: its product scorer, what its core reads, how words are read, what its release counts."""

from __future__ import annotations

import pytest
import torch

from scenemem.agents.agent import recorded_observations
from scenemem.agents.rollout import GLOBAL
from scenemem.agents.walker import take_best
from scenemem.errors import SettingError
from scenemem.models.navigator import DropoutMasks, Observation
from scenemem.tasks.vocabulary import PAD
from scenemem.zoo.encoders import OneWayEncoder, TransformerEncoder
from scenemem.zoo.panoramic import FollowerUpdater, action_taken, candidate_actions
from scenemem.zoo.search import END
from scenemem.zoo.speaker_follower import FollowerConfig, SpeakerFollower, chosen_route
from tests.zoo.helpers import Setting, roam


@pytest.mark.parametrize("name", ["speaker-follower", "speaker-follower-as-published"])
def test_candidates_are_scored_by_products(name: str, setting: Setting) -> None:
    agent = setting.loud_agent(name)
    assert isinstance(agent, SpeakerFollower)
    rollout, log = setting.walk(agent, roam())
    seen = recorded_observations(setting.environment, log, rollout)
    with torch.no_grad():
        found = agent.action_logits(seen)
        actions = candidate_actions(seen.candidates, seen.feature_mask)
        for row in range(0, len(found), 9):
            for option in range(found.shape[1]):
                product = agent.of_state(seen.state.hidden[row]) * agent.of_action(actions[row, option])
                assert float(found[row, option]) == pytest.approx(float(agent.weigh(product)), abs=1e-4)
    assert not actions[:, -1].any(), "stop is a row of zeros"


def test_on_the_common_recipe_products_begin_as_a_dot_product(setting: Setting) -> None:
    begun = {}
    for name in ("speaker-follower", "speaker-follower-as-published"):
        agent = setting.agent(name).network
        assert isinstance(agent, SpeakerFollower)
        begun[name] = agent.weigh.weight
    assert bool((begun["speaker-follower"] == 1.0).all())
    assert float(begun["speaker-follower-as-published"].detach().std()) > 0.01, "as the release begins"


def test_the_action_taken_is_the_candidate_as_it_looked_before(setting: Setting) -> None:
    """Its view, and its direction relative to the view faced then; 0 at the start."""
    agent = setting.loud_agent("speaker-follower-as-published")
    rollout, log = setting.walk(agent, roam(1))
    environment, world = setting.environment, setting.world
    checked = 0
    for episode, step in rollout.alive.nonzero().tolist():
        here = rollout.viewpoint[episode, step].view(1)
        before = rollout.viewpoint[episode, step - 1].view(1) if step else torch.tensor([-1])
        faced = rollout.view[episode, max(step - 1, 0)].view(1)
        masks = DropoutMasks(torch.ones(environment.width), {})
        observation = Observation(
            here,
            before,
            rollout.view[episode, step].view(1),
            environment.panorama(here),
            log.instructions,
            masks,
            environment=environment,
        )
        taken = action_taken(observation, faced)
        if step == 0:
            assert not taken.any()
            continue
        slot = int(world.slot_of(before, here))
        expected = candidate_actions(environment.candidates(before, faced), masks.feature)[0, slot]
        torch.testing.assert_close(taken[0], expected, atol=1e-5, rtol=1e-5)
        checked += 1
    assert checked > 20


def test_it_needs_an_environment(setting: Setting) -> None:
    updater = FollowerUpdater(setting.environment.width, 8, 4)
    here = setting.episodes.start[:1]
    read = setting.read(setting.loud_agent("speaker-follower"))
    observation = Observation(
        here, here, here * 0, setting.environment.panorama(here), read, DropoutMasks(torch.ones(8), {})
    )
    with pytest.raises(TypeError, match="the state log has no environment"):
        action_taken(observation, here * 0)
    assert updater.mask_widths()["output"] == 8


@pytest.mark.parametrize("backwards", [False, True])
def test_words_are_read_in_their_order_without_padding(backwards: bool) -> None:
    torch.manual_seed(0)
    encoder = OneWayEncoder(9, 4, 6, 0.0, PAD, backwards=backwards, project=False)
    tokens = torch.tensor([[3, 4, 5, 6], [7, 8, PAD, PAD]])
    read = encoder(tokens, torch.tensor([4, 2]))
    for row, length in enumerate((4, 2)):
        words = tokens[row : row + 1, :length]
        states, (hidden, cell) = encoder.lstm(encoder.embedding(words.flip(1) if backwards else words))
        expected = states.flip(1) if backwards else states
        torch.testing.assert_close(read.context[row, :length], expected[0])
        torch.testing.assert_close(read.hidden[row], hidden[0, 0])
        torch.testing.assert_close(read.cell[row], cell[0, 0])
    assert read.mask.tolist() == [[True] * 4, [True, True, False, False]]


def test_a_transformer_reads_words_without_padding() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(9, 4, 6, 0.0, PAD, layers=2, heads=2)
    read = encoder(torch.tensor([[3, 4, 5, 6], [7, 8, PAD, PAD]]), torch.tensor([4, 2]))
    alone = encoder(torch.tensor([[7, 8]]), torch.tensor([2]))
    torch.testing.assert_close(read.context[1:, :2], alone.context)
    torch.testing.assert_close(read.hidden[1:], alone.hidden)
    with pytest.raises(SettingError, match="width must be a multiple of the 4 heads, got 6"):
        TransformerEncoder(9, 4, 6, 0.0, PAD, layers=1, heads=4)


def test_a_long_search_asks_once_where_to_end(setting: Setting) -> None:
    agent = setting.loud_agent("speaker-follower-search")
    rollout, _ = setting.walk(agent, take_best, max_decisions=5)
    ends = rollout.decisions[END]
    assert sorted(ends.episode.tolist()) == list(range(len(setting.episodes)))
    assert len(rollout.decisions[GLOBAL].episode) > len(ends.episode)


def test_the_release_counts_the_route_that_first_led_to_the_end() -> None:
    assert chosen_route([1, 2, 3, 2, 4, 2, 3]) == [1, 2, 3]
    assert chosen_route([1, 2, 1, 3, 4, 3, 2]) == [1, 2], "entered once, from where it was first seen"
    assert chosen_route([1, 2, 3, 2, 1]) == [1], "it ends where it began"
    assert chosen_route([5]) == [5]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="action_width must be 1 or more, got 0"):
        FollowerConfig(action_width=0)
