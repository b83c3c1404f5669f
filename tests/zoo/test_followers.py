"""Speaker-Follower, RCM, OAAM and AuxRN: their scores, what they read, what they learn from."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scenemem.agents import walker
from scenemem.agents.agent import Agent, Observations
from scenemem.agents.build import DataSizes, ModelConfig
from scenemem.agents.rollout import ACTION
from scenemem.evaluation.metrics import ndtw
from scenemem.learning.objectives import LOSSES, RewardConfig, a2c
from scenemem.learning.speaker import steps_along, views_along
from scenemem.models.navigator import Observation, tiled
from scenemem.models.speaker import WordDecoder
from scenemem.tasks.vocabulary import BOS, EOS, PAD, UNK
from scenemem.world.graph import NONE
from scenemem.zoo import objectives
from scenemem.zoo.auxrn import AUXILIARY, AuxRN
from scenemem.zoo.encoders import OneWayEncoder, TransformerEncoder
from scenemem.zoo.oaam import OAAM
from scenemem.zoo.panoramic import FollowerState, action_taken, candidate_actions
from scenemem.zoo.rcm import RCM
from scenemem.zoo.speaker_follower import SpeakerFollower, chosen_route
from tests.zoo.helpers import Setting, Walk, learnt_by, places_of, roam, with_heads, with_logits

PUBLISHED = "speaker-follower-as-published"


def _score(agent: Agent, seen: Observations, row: int) -> Tensor:
    """The equations of one observation, without padding."""
    state, own = seen.state, seen.instructions.context[row][seen.instructions.mask[row]]
    hidden, actions = state.hidden[row], candidate_actions(seen.candidates, seen.feature_mask)[row]
    assert not actions[-1].any(), "stop is a row of zeros"
    score: Tensor
    if isinstance(agent, SpeakerFollower):
        score = agent.weigh(agent.of_state(hidden) * agent.of_action(actions)).squeeze(1)
        return score
    if isinstance(agent, RCM):
        hidden = state.output[row] if isinstance(state, FollowerState) else hidden
        text = (own @ agent.word_query(hidden)).softmax(0) @ own
        views = seen.environment.panorama(seen.viewpoint[row])
        vision = (views @ agent.view_query(text)).softmax(0) @ views
        score = agent.of_action(actions) @ agent.join(torch.cat([hidden, text, vision]))
        return score
    assert isinstance(agent, OAAM)
    texts, states = [], []
    for stream in (agent.object, agent.action):
        texts.append((own @ stream.query(hidden)).softmax(0) @ own)
        states.append(torch.tanh(stream.join(torch.cat([texts[-1], hidden]))))
    mix = agent.mix(torch.cat(texts)).softmax(0)
    look = seen.candidates.visual[row] @ agent.score_object(states[0])
    lie = tiled(seen.candidates.orientation[row]) @ agent.score_action(states[1])
    return torch.nn.functional.pad(mix[0] * look + mix[1] * lie, (0, 1))


@torch.no_grad()
@pytest.mark.parametrize("name", ["speaker-follower", PUBLISHED, "rcm", "rcm-as-published", "oaam"])
def test_scores_are_those_of_the_equations(name: str, setting: Setting) -> None:
    agent = setting.loud(Agent, name)
    for seen in setting.walk(agent, roam()).seen[:4]:
        for row, found in enumerate(agent.action_logits(seen)):
            torch.testing.assert_close(found, _score(agent, seen, row), rtol=1e-3, atol=1e-4)


# Speaker-Follower


def test_on_the_common_recipe_products_begin_as_a_dot_product(setting: Setting) -> None:
    for name in ("speaker-follower", PUBLISHED):
        agent = setting.agent(name).network
        assert isinstance(agent, SpeakerFollower)
        assert bool((agent.weigh.weight == 1.0).all()) == (name != PUBLISHED), "which the release does not"


def test_the_action_taken_is_the_candidate_as_it_looked_before(setting: Setting) -> None:
    """Its view, and its direction relative to the view faced then; 0 at the start."""
    walk = setting.walk(setting.loud(SpeakerFollower, PUBLISHED), roam(1))
    rollout, nowhere, checked = walk.rollout, torch.tensor([NONE]), 0
    for episode, step in rollout.alive.nonzero().tolist():
        here, view = (table[episode, step].view(1) for table in (rollout.viewpoint, rollout.view))
        before = rollout.viewpoint[episode, step - 1].view(1) if step else nowhere
        faced = rollout.view[episode, max(step - 1, 0)].view(1)
        taken = action_taken(Observation.of(walk.inputs, torch.tensor([episode]), here, before, view), faced)
        if step == 0:
            assert not taken.any()
            continue
        seen = setting.environment.candidates(before, faced)
        expected = candidate_actions(seen, walk.inputs.masks.feature)[0, setting.world.slot_of(before, here)]
        torch.testing.assert_close(taken, expected, atol=1e-5, rtol=1e-5)
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("kind", ["one way", "transformer"])
def test_words_are_read_without_padding(kind: str) -> None:
    torch.manual_seed(0)
    config, sizes = ModelConfig(word_width=4, width=6, dropout=0.0), DataSizes(9, 2)
    tokens, lengths = torch.tensor([[3, 4, 5, 6], [7, 8, PAD, PAD]]), torch.tensor([4, 2])
    one_way = OneWayEncoder(config, sizes, project=False)
    encoder = one_way if kind == "one way" else TransformerEncoder(config, sizes, layers=2, heads=2)
    read = encoder(tokens, lengths)
    assert read.mask.tolist() == [[True] * 4, [True, True, False, False]]
    for row, length in enumerate((4, 2)):
        words = tokens[row : row + 1, :length]
        alone = encoder(words, lengths[row : row + 1])
        expected = alone.context[0], alone.hidden[0], alone.cell[0]
        if kind == "one way":  # last to first
            states, (hidden, cell) = one_way.lstm(one_way.embedding(words.flip(1)))
            expected = states.flip(1)[0], hidden[0, 0], cell[0, 0]
        found = read.context[row, :length], read.hidden[row], read.cell[row]
        torch.testing.assert_close(found, expected)


def test_the_release_counts_the_route_that_first_led_to_the_end() -> None:
    assert chosen_route([1, 2, 3, 2, 4, 2, 3]) == [1, 2, 3]
    assert chosen_route([1, 2, 1, 3, 4, 3, 2]) == [1, 2], "entered once, from where it was first seen"
    assert chosen_route([1, 2, 3, 2, 1]) == [1], "it ends where it began"
    assert chosen_route([5]) == [5]


# RCM


def test_the_critic_reads_walks_as_a_speaker_does(setting: Setting) -> None:
    rollout = setting.walk(setting.loud(RCM, "rcm"), roam(1)).rollout
    found = objectives.views_of_walk(setting.environment, rollout)
    steps = steps_along(setting.world, rollout.walked, setting.episodes.heading)
    expected = views_along(setting.environment, steps)
    for name in ("mask", "chosen", "direction", "panoramas", "angles"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_the_match_is_earned_at_the_end_and_judged_without_dropout(setting: Setting) -> None:
    agent = setting.loud(RCM, "rcm", delta=0.7, dropout=0.5)
    walk = setting.walk(agent, roam(1, stop=1.0), learning=True)
    rollout, context = walk.rollout, setting.context(walk.rollout)
    match, intrinsic = rollout.heads["match"], rollout.heads["intrinsic"]
    torch.testing.assert_close(intrinsic, 0.7 * match.detach().exp())
    assert not intrinsic.requires_grad
    nothing = with_heads(rollout, intrinsic=torch.zeros_like(match))
    torch.testing.assert_close(objectives.matched_a2c(nothing, context), a2c(rollout, context))
    assert bool(rollout.stopped.any())
    assert not torch.allclose(
        objectives.matched_a2c(rollout, context).detach(), a2c(rollout, context).detach()
    )
    loss = objectives.matching_critic(rollout, context)
    torch.testing.assert_close(loss, -match[:, 0].mean())
    taught = {name.partition(".")[0] for name in learnt_by(agent, loss)}
    assert taught == {"matching"}, "only the critic learns from it"
    agent.train()
    learning = agent.whole_walk_heads(rollout, walk.inputs)
    torch.testing.assert_close(learning["intrinsic"], intrinsic)
    assert not torch.allclose(learning["match"], match)
    assert agent.matching.training, "it goes on learning afterwards"


@pytest.mark.parametrize("name", ["rcm-fidelity", "duet"])
def test_fidelity_rewards_add_up_to_the_fidelity_of_the_walk(name: str, setting: Setting) -> None:
    """Also where a decision is a jump of several steps."""
    agent, path = setting.agent(name).network.eval(), setting.episodes.path
    rollout = setting.walk(agent, roam(3, stop=0.5), learning=True).rollout
    values = objectives.prefix_ndtw(setting.world, rollout.viewpoint, path)
    for length in range(1, rollout.alive.shape[1] + 1):
        there = rollout.length >= length
        expected = ndtw(setting.world, rollout.walked[there, :length], path[there])
        torch.testing.assert_close(values[there, length - 1], expected)
    (table,) = rollout.decisions.values()
    context = setting.context(rollout, reward=RewardConfig(rule="ndtw", success=2.0, failure=-0.5))
    earned = objectives.ndtw_reward(table, rollout, context)
    for episode, length in enumerate(rollout.length.tolist()):
        total = float(earned[(table.episode == episode) & ~table.stops].sum())
        assert total == pytest.approx(float(values[episode, length - 1] - values[episode, 0]), abs=1e-4)
    verdict = torch.where(table.after < 3.0, 2.0, -0.5)
    assert torch.equal(earned[table.stops], verdict[table.stops])
    assert int((rollout.walked != NONE).sum()) > len(setting.episodes)


def test_words_are_kept_with_their_instructions(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when they are read in parts, as they are for large splits; the critic needs them."""
    agent = setting.agent("rcm")
    texts = ("go on", "walk past the table and stop at the second door", *setting.episodes.texts)
    whole = agent.read(texts)
    assert torch.equal(whole.repeat(2).tokens, whole.tokens.repeat(2, 1))
    monkeypatch.setattr(walker, "_READ_TOGETHER", 3)
    parts = agent.read(texts)
    for name in ("mask", "hidden", "cell", "tokens"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), atol=1e-5, rtol=1e-5)


# OAAM


@pytest.fixture(scope="module")
def decoupled(setting: Setting) -> Walk:
    return setting.walk(setting.loud(OAAM, "oaam"), roam(2))


def test_the_path_loss_is_the_expected_distance_of_the_next_place(setting: Setting, decoupled: Walk) -> None:
    table, world, terms = decoupled.rollout.decisions[ACTION], setting.world, []
    for episode, step, logits in zip(table.episode, table.step, table.logits.detach(), strict=True):
        here = int(decoupled.rollout.viewpoint[episode, step])
        path = torch.tensor(places_of(setting.episodes.path[episode]))
        for chance, place in zip(logits.softmax(0).tolist(), [*world.neighbour[here], here], strict=True):
            near = world.geodesic(torch.as_tensor(place), path).min() if place != NONE else 0.0
            terms.append(chance * float(near))
    loss = objectives.path_loss(decoupled.rollout, setting.context(decoupled.rollout))
    assert float(loss.detach()) == pytest.approx(sum(terms) / len(table.episode), rel=1e-4)
    assert loss.requires_grad


def test_the_entropy_bonus_is_largest_for_doubt(setting: Setting, decoupled: Walk) -> None:
    rollout, context = decoupled.rollout, setting.context(decoupled.rollout)
    options = rollout.decisions[ACTION].options
    even = torch.zeros(options.shape).masked_fill(~options, -torch.inf)
    doubt = objectives.negative_entropy(with_logits(rollout, ACTION, even), context)
    torch.testing.assert_close(doubt, -options.sum(1).float().log().sum() / len(rollout.alive))
    assert float(objectives.negative_entropy(rollout, context).detach()) > float(doubt)


# AuxRN


@pytest.fixture(scope="module")
def auxrn(setting: Setting) -> AuxRN:
    agent: AuxRN = setting.loud(AuxRN, "auxrn")
    return agent


@pytest.fixture(scope="module")
def retold(auxrn: AuxRN, setting: Setting) -> Walk:
    return setting.walk(auxrn, roam(1), learning=True)


def test_retelling_is_the_mean_cost_of_known_words() -> None:
    torch.manual_seed(0)
    decoder = WordDecoder(11, 4, 6, dropout=0.0)
    states, mask = torch.randn(2, 5, 6), torch.arange(5) < torch.tensor([[5], [2]])
    tokens = torch.tensor([[BOS, 7, UNK, 9, EOS], [BOS, 8, EOS, PAD, PAD]])
    found = objectives.retelling_cost(decoder, states, mask, tokens)
    for row, length in enumerate((5, 3)):
        own = states[row : row + 1, : int(mask[row].sum())]
        alone = torch.ones(1, own.shape[1], dtype=torch.bool)
        expected = objectives.retelling_cost(decoder, own, alone, tokens[row : row + 1, :length])
        torch.testing.assert_close(found[row : row + 1], expected)
    torch.nn.init.zeros_(decoder.words.weight)
    torch.nn.init.zeros_(decoder.words.bias)
    uniform = objectives.retelling_cost(decoder, states[:1], mask[:1], tokens[1:, :3])
    # padding, unknown and begin are never said
    assert float(uniform.detach()[0]) == pytest.approx(math.log(11 - 3), rel=1e-5)


def test_the_direction_of_the_next_hop_is_the_one_the_agent_sees(setting: Setting, retold: Walk) -> None:
    rollout = retold.rollout
    target, moves = objectives.next_directions(setting.world, rollout)
    last = torch.arange(rollout.alive.shape[1]) == rollout.length.unsqueeze(1) - 1
    assert torch.equal(moves, rollout.alive & ~last)
    assert not target[~moves].any()
    for episode, step in moves.nonzero().tolist():
        here, there = rollout.viewpoint[episode, step : step + 2]
        seen = setting.environment.candidates(here.view(1), rollout.view[episode, step].view(1))
        slot = int(setting.world.slot_of(here, there))
        torch.testing.assert_close(target[episode, step], seen.orientation[0, slot], atol=1e-5, rtol=1e-5)


def test_the_losses_of_its_tasks_are_what_they_say(setting: Setting, retold: Walk) -> None:
    rollout, context = retold.rollout, setting.context(retold.rollout)
    target, _ = objectives.next_directions(setting.world, rollout)
    for off, expected in ((0.0, 0.0), (1.0, 4.0)):
        loss = objectives.next_angle(with_heads(rollout, angle=target + off), context)
        assert float(loss) == pytest.approx(expected)
    same = with_heads(rollout, step_progress=torch.ones(rollout.alive.shape))
    done = sum(t / (length - 1) for length in rollout.length.tolist() for t in range(1, length))
    expected = math.log(1 + math.e) - done / int(rollout.alive.sum())
    assert float(objectives.step_progress(same, context)) == pytest.approx(expected, rel=1e-5)
    logits = torch.zeros(*rollout.alive.shape, 2)
    logits[torch.arange(len(logits)), rollout.length - 1] = torch.tensor([30.0, -30.0])
    assert float(objectives.matching(with_heads(rollout, matching=logits), context)) == pytest.approx(
        0.0, abs=1e-6
    )
    assert {LOSSES[name].walks for name in AUXILIARY} == {"teacher"}, "from the reference path only"


def test_another_instruction_is_matched_with_every_walk(auxrn: AuxRN, retold: Walk) -> None:
    words = retold.inputs.instructions.context[:, 0]
    state = torch.zeros_like(words)
    for episode, _, hidden in retold.arrivals():  # the last one stays
        state[episode] = hidden
    pairs = (torch.cat([state, word], dim=1) for word in (words, words.roll(1, 0)))
    expected = torch.cat([auxrn.matching(pair) for pair in pairs], dim=1)
    torch.testing.assert_close(retold.heads["matching"][:, 0], expected)
