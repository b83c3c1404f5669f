"""RCM: its reasoning, its matching critic as a reward, and the fidelity reward against the metrics."""

from __future__ import annotations

import pytest
import torch

from scenemem.agents import walker
from scenemem.evaluation.metrics import ndtw
from scenemem.learning.objectives import RewardConfig, a2c
from scenemem.learning.speaker import steps_along, views_along
from scenemem.world.graph import NONE
from scenemem.zoo.fidelity import ndtw_reward, prefix_ndtw
from scenemem.zoo.matching import matched_a2c, matching_critic, views_of_walk
from scenemem.zoo.panoramic import FollowerState, candidate_actions
from scenemem.zoo.rcm import RCM
from tests.zoo.helpers import Setting, learnt_by, roam, with_heads


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
