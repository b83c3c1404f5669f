"""Speaker-Follower: its product scorer, what its core reads, how words are read, what its release counts."""

from __future__ import annotations

import pytest
import torch

from scenemem.models.navigator import Observation
from scenemem.tasks.vocabulary import PAD
from scenemem.zoo.encoders import OneWayEncoder, TransformerEncoder
from scenemem.zoo.panoramic import action_taken, candidate_actions
from scenemem.zoo.speaker_follower import SpeakerFollower, chosen_route
from tests.zoo.helpers import Setting, roam

PUBLISHED = "speaker-follower-as-published"


@torch.no_grad()
@pytest.mark.parametrize("name", ["speaker-follower", PUBLISHED])
def test_candidates_are_scored_by_products(name: str, setting: Setting) -> None:
    agent = setting.loud(SpeakerFollower, name)
    for seen in setting.walk(agent, roam()).seen[:4]:
        found = agent.action_logits(seen)
        actions = candidate_actions(seen.candidates, seen.feature_mask)
        for row in range(0, len(found), 3):
            products = agent.of_state(seen.state.hidden[row]) * agent.of_action(actions[row])
            torch.testing.assert_close(found[row], agent.weigh(products).squeeze(1), rtol=1e-4, atol=1e-4)
        assert not actions[:, -1].any(), "stop is a row of zeros"


def test_on_the_common_recipe_products_begin_as_a_dot_product(setting: Setting) -> None:
    begun = {}
    for name in ("speaker-follower", PUBLISHED):
        agent = setting.agent(name).network
        assert isinstance(agent, SpeakerFollower)
        begun[name] = agent.weigh.weight.detach()
    assert bool((begun["speaker-follower"] == 1.0).all())
    assert float(begun[PUBLISHED].std()) > 0.01, "as the release begins"


def test_the_action_taken_is_the_candidate_as_it_looked_before(setting: Setting) -> None:
    """Its view, and its direction relative to the view faced then; 0 at the start."""
    walk = setting.walk(setting.loud(SpeakerFollower, PUBLISHED), roam(1))
    rollout, environment, checked = walk.rollout, setting.environment, 0
    for episode, step in rollout.alive.nonzero().tolist():
        here, view = rollout.viewpoint[episode, step].view(1), rollout.view[episode, step].view(1)
        before = rollout.viewpoint[episode, step - 1].view(1) if step else torch.tensor([-1])
        faced = rollout.view[episode, max(step - 1, 0)].view(1)
        taken = action_taken(Observation.of(walk.inputs, torch.tensor([episode]), here, before, view), faced)
        if step == 0:
            assert not taken.any()
            continue
        slot = int(setting.world.slot_of(before, here))
        expected = candidate_actions(environment.candidates(before, faced), walk.inputs.masks.feature)
        torch.testing.assert_close(taken[0], expected[0, slot], atol=1e-5, rtol=1e-5)
        checked += 1
    assert checked > 20


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


def test_the_release_counts_the_route_that_first_led_to_the_end() -> None:
    assert chosen_route([1, 2, 3, 2, 4, 2, 3]) == [1, 2, 3]
    assert chosen_route([1, 2, 1, 3, 4, 3, 2]) == [1, 2], "entered once, from where it was first seen"
    assert chosen_route([1, 2, 3, 2, 1]) == [1], "it ends where it began"
    assert chosen_route([5]) == [5]
