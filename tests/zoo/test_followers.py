"""Speaker-Follower, RCM and OAAM: their scores, what they read, what they are rewarded for."""

from __future__ import annotations

import pytest
import torch

from scenemem.agents import walker
from scenemem.agents.build import DataSizes, ModelConfig
from scenemem.agents.rollout import ACTION
from scenemem.evaluation.metrics import ndtw
from scenemem.learning.objectives import RewardConfig, a2c
from scenemem.learning.speaker import steps_along, views_along
from scenemem.models.navigator import Observation, tiled
from scenemem.tasks.vocabulary import PAD
from scenemem.world.graph import NONE
from scenemem.zoo.encoders import OneWayEncoder, TransformerEncoder
from scenemem.zoo.oaam import OAAM
from scenemem.zoo.objectives import (
    matched_a2c,
    matching_critic,
    ndtw_reward,
    negative_entropy,
    path_loss,
    prefix_ndtw,
    views_of_walk,
)
from scenemem.zoo.panoramic import FollowerState, action_taken, candidate_actions
from scenemem.zoo.rcm import RCM
from scenemem.zoo.speaker_follower import SpeakerFollower, chosen_route
from tests.zoo.helpers import Setting, Walk, learnt_by, places_of, roam, with_heads, with_logits

# Speaker-Follower


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


_CONFIG, _SIZES = ModelConfig(word_width=4, width=6, dropout=0.0), DataSizes(9, 2)


def test_words_are_read_last_to_first_without_padding() -> None:
    torch.manual_seed(0)
    encoder = OneWayEncoder(_CONFIG, _SIZES, project=False)
    tokens = torch.tensor([[3, 4, 5, 6], [7, 8, PAD, PAD]])
    read = encoder(tokens, torch.tensor([4, 2]))
    for row, length in enumerate((4, 2)):
        words = tokens[row : row + 1, :length]
        states, (hidden, cell) = encoder.lstm(encoder.embedding(words.flip(1)))
        torch.testing.assert_close(read.context[row, :length], states.flip(1)[0])
        torch.testing.assert_close(read.hidden[row], hidden[0, 0])
        torch.testing.assert_close(read.cell[row], cell[0, 0])
    assert read.mask.tolist() == [[True] * 4, [True, True, False, False]]


def test_a_transformer_reads_words_without_padding() -> None:
    torch.manual_seed(0)
    encoder = TransformerEncoder(_CONFIG, _SIZES, layers=2, heads=2)
    read = encoder(torch.tensor([[3, 4, 5, 6], [7, 8, PAD, PAD]]), torch.tensor([4, 2]))
    alone = encoder(torch.tensor([[7, 8]]), torch.tensor([2]))
    torch.testing.assert_close(read.context[1:, :2], alone.context)
    torch.testing.assert_close(read.hidden[1:], alone.hidden)


def test_the_release_counts_the_route_that_first_led_to_the_end() -> None:
    assert chosen_route([1, 2, 3, 2, 4, 2, 3]) == [1, 2, 3]
    assert chosen_route([1, 2, 1, 3, 4, 3, 2]) == [1, 2], "entered once, from where it was first seen"
    assert chosen_route([1, 2, 3, 2, 1]) == [1], "it ends where it began"
    assert chosen_route([5]) == [5]


# RCM


@torch.no_grad()
@pytest.mark.parametrize("name", ["rcm", "rcm-as-published"])
def test_scores_are_those_of_the_equations(name: str, setting: Setting) -> None:
    agent = setting.loud(RCM, name)
    for seen in setting.walk(agent, roam()).seen[:4]:
        found, state, words = agent.action_logits(seen), seen.state, seen.instructions
        actions = candidate_actions(seen.candidates, seen.feature_mask)
        for row in range(0, len(found), 3):
            hidden = (state.output if isinstance(state, FollowerState) else state.hidden)[row]
            own = words.context[row][words.mask[row]]
            text = (own @ agent.word_query(hidden)).softmax(0) @ own
            views = setting.environment.panorama(seen.viewpoint[row])
            vision = (views @ agent.view_query(text)).softmax(0) @ views
            joint = agent.join(torch.cat([hidden, text, vision]))
            expected = agent.of_action(actions[row]) @ joint
            torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-4)


def test_the_critic_reads_walks_as_a_speaker_does(setting: Setting) -> None:
    rollout = setting.walk(setting.loud(RCM, "rcm"), roam(1)).rollout
    found = views_of_walk(setting.environment, rollout)
    steps = steps_along(setting.world, rollout.walked, setting.episodes.heading)
    expected = views_along(setting.environment, steps)
    for name in ("mask", "chosen", "direction", "panoramas", "angles"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_the_match_is_earned_at_the_end(setting: Setting) -> None:
    agent = setting.loud(RCM, "rcm", delta=0.7)
    rollout = setting.walk(agent, roam(1, stop=1.0), learning=True).rollout
    match, intrinsic, context = rollout.heads["match"], rollout.heads["intrinsic"], setting.context(rollout)
    torch.testing.assert_close(intrinsic, 0.7 * match.detach().exp())
    assert not intrinsic.requires_grad
    nothing = with_heads(rollout, intrinsic=torch.zeros_like(match))
    torch.testing.assert_close(matched_a2c(nothing, context), a2c(rollout, context))
    assert bool(rollout.stopped.any())
    with_critic, without = (loss(rollout, context).detach() for loss in (matched_a2c, a2c))
    assert not torch.allclose(with_critic, without)
    loss = matching_critic(rollout, context)
    torch.testing.assert_close(loss, -match[:, 0].mean())
    taught = {name.partition(".")[0] for name in learnt_by(agent, loss)}
    assert taught == {"matching"}, "only the critic learns from it"


def test_the_critic_judges_without_dropout_and_learns_with_it(setting: Setting) -> None:
    agent = setting.loud(RCM, "rcm", dropout=0.5)
    walk = setting.walk(agent, roam(1), learning=True)
    agent.train()
    learning = agent.whole_walk_heads(walk.rollout, walk.inputs)
    torch.testing.assert_close(learning["intrinsic"], walk.heads["intrinsic"])
    assert not torch.allclose(learning["match"], walk.heads["match"])
    assert agent.matching.training, "it goes on learning afterwards"


def test_the_fidelity_of_every_beginning_is_the_metric(setting: Setting) -> None:
    rollout = setting.walk(setting.loud(RCM, "rcm"), roam(3)).rollout
    found = prefix_ndtw(setting.world, rollout.viewpoint, setting.episodes.path)
    for length in range(1, rollout.alive.shape[1] + 1):
        there = rollout.length >= length
        expected = ndtw(setting.world, rollout.walked[there, :length], setting.episodes.path[there])
        torch.testing.assert_close(found[there, length - 1], expected)


@pytest.mark.parametrize("name", ["rcm-fidelity", "duet"])
def test_fidelity_rewards_add_up_to_the_fidelity_of_the_walk(name: str, setting: Setting) -> None:
    """Also where a decision is a jump of several steps."""
    agent = setting.agent(name).network.eval()
    rollout = setting.walk(agent, roam(3, stop=0.5), learning=True).rollout
    context = setting.context(rollout, reward=RewardConfig(rule="ndtw", success=2.0, failure=-0.5))
    values = prefix_ndtw(setting.world, rollout.viewpoint, setting.episodes.path)
    (table,) = rollout.decisions.values()
    earned = ndtw_reward(table, rollout, context)
    for episode in range(len(setting.episodes)):
        own = table.episode == episode
        total = float(earned[own & ~table.stops].sum())
        last = int(rollout.length[episode]) - 1
        assert total == pytest.approx(float(values[episode, last] - values[episode, 0]), abs=1e-4)
    verdict = torch.where(table.after < 3.0, 2.0, -0.5)
    assert torch.equal(earned[table.stops], verdict[table.stops])
    assert int((rollout.walked != NONE).sum()) > len(setting.episodes)


def test_words_are_kept_when_instructions_are_read_in_parts(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are for large splits; the critic needs them."""
    agent = setting.agent("rcm")
    texts = ("go on", "walk past the table and stop at the second door", *setting.episodes.texts)
    whole = agent.read(texts)
    monkeypatch.setattr(walker, "_READ_TOGETHER", 3)
    parts = agent.read(texts)
    for name in ("mask", "hidden", "cell", "tokens"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), atol=1e-5, rtol=1e-5)


# OAAM


@pytest.fixture(scope="module")
def agent(setting: Setting) -> OAAM:
    agent: OAAM = setting.loud(OAAM, "oaam")
    return agent


@pytest.fixture(scope="module")
def walk(agent: OAAM, setting: Setting) -> Walk:
    return setting.walk(agent, roam(2))


@torch.no_grad()
def test_objects_are_scored_by_looks_and_actions_by_directions(agent: OAAM, walk: Walk) -> None:
    seen, found = walk.seen[1], walk.seen[1].candidates
    logits = agent.action_logits(seen)
    for row, hidden in enumerate(seen.state.hidden):
        own, texts, states = seen.instructions.context[row][seen.instructions.mask[row]], [], []
        for stream in (agent.object, agent.action):
            texts.append((own @ stream.query(hidden)).softmax(0) @ own)
            states.append(torch.tanh(stream.join(torch.cat([texts[-1], hidden]))))
        mix = agent.mix(torch.cat(texts)).softmax(0)
        look = found.visual[row] @ agent.score_object(states[0])
        lie = tiled(found.orientation[row]) @ agent.score_action(states[1])
        expected = torch.nn.functional.pad(mix[0] * look + mix[1] * lie, (0, 1))
        torch.testing.assert_close(logits[row], expected, rtol=1e-3, atol=1e-4)


def test_the_path_loss_is_the_expected_distance_of_the_next_place(setting: Setting, walk: Walk) -> None:
    table, world, terms = walk.rollout.decisions[ACTION], setting.world, []
    for episode, step, logits in zip(table.episode, table.step, table.logits.detach(), strict=True):
        here, path = int(walk.rollout.viewpoint[episode, step]), places_of(setting.episodes.path[episode])
        places = [*world.neighbour[here].tolist(), here]
        chances = zip(logits.softmax(0).tolist(), places, strict=True)
        metres = {
            place: world.geodesic(torch.tensor(place), torch.tensor(path))
            for place in places_of(torch.tensor(places))
        }
        terms.append(sum(p * float(metres[place].min()) for p, place in chances if place != -1))
    loss = path_loss(walk.rollout, setting.context(walk.rollout))
    assert float(loss.detach()) == pytest.approx(sum(terms) / len(terms), rel=1e-4)
    assert loss.requires_grad


def test_the_entropy_bonus_is_largest_for_doubt(setting: Setting, walk: Walk) -> None:
    context, options = setting.context(walk.rollout), walk.rollout.decisions[ACTION].options
    even = torch.zeros(options.shape).masked_fill(~options, -torch.inf)
    doubt = negative_entropy(with_logits(walk.rollout, ACTION, even), context)
    torch.testing.assert_close(doubt, -options.sum(1).float().log().sum() / len(walk.rollout.alive))
    assert float(negative_entropy(walk.rollout, context).detach()) > float(doubt)
