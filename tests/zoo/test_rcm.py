"""RCM: its reasoning, its matching critic as a reward, and the fidelity reward against the metrics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scenemem.agents import walker
from scenemem.agents.agent import recorded_observations
from scenemem.agents.rollout import ACTION, Outputs
from scenemem.errors import SettingError
from scenemem.evaluation.metrics import ndtw
from scenemem.learning.objectives import RewardConfig, a2c
from scenemem.learning.speaker import steps_along, views_along
from scenemem.world.graph import NONE
from scenemem.zoo.fidelity import ndtw_reward, prefix_ndtw
from scenemem.zoo.matching import matched_a2c, matching_critic, views_of_walk
from scenemem.zoo.panoramic import FollowerState, candidate_actions
from scenemem.zoo.rcm import RCM, RCMConfig
from tests.zoo.helpers import Setting, roam


@pytest.mark.parametrize("name", ["rcm", "rcm-as-published"])
def test_scores_are_those_of_the_equations(name: str, setting: Setting) -> None:
    agent = setting.loud_agent(name)
    assert isinstance(agent, RCM)
    rollout, log = setting.walk(agent, roam())
    seen = recorded_observations(setting.environment, log, rollout)
    with torch.no_grad():
        found = agent.action_logits(seen)
        actions = candidate_actions(seen.candidates, seen.feature_mask)
        for row in range(0, len(found), 9):
            state, episode = seen.state, int(seen.episode[row])
            hidden = (state.output if isinstance(state, FollowerState) else state.hidden)[row]
            words = log.instructions.context[episode][log.instructions.mask[episode]]
            text = (words @ agent.word_query(hidden)).softmax(0) @ words
            views = setting.environment.panorama(seen.viewpoint[row])
            vision = (views @ agent.view_query(text)).softmax(0) @ views
            joint = agent.join(torch.cat([hidden, text, vision]))
            expected = agent.of_action(actions[row]) @ joint
            torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-4)


def test_the_critic_reads_walks_as_a_speaker_does(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent("rcm"), roam(1))
    found = views_of_walk(setting.environment, rollout)
    steps = steps_along(setting.world, rollout.walked, setting.episodes.heading)
    expected = views_along(setting.environment, steps)
    for name in ("mask", "chosen", "direction", "panoramas", "angles"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_what_the_critic_says_is_earned_at_the_end(setting: Setting) -> None:
    agent = setting.loud_agent("rcm", delta=0.7)
    rollout, log = setting.walk(agent, roam(1, stop=1.0), learning=True)
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    match = outputs.heads["match"]
    torch.testing.assert_close(outputs.heads["intrinsic"], 0.7 * match.detach().exp())
    assert not outputs.heads["intrinsic"].requires_grad
    context = setting.context(rollout)
    nothing = Outputs(outputs.logits, {**outputs.heads, "intrinsic": torch.zeros_like(match)})
    torch.testing.assert_close(matched_a2c(rollout, nothing, context), a2c(rollout, outputs, context))
    assert bool(rollout.stopped.any())
    with_critic, without = (loss(rollout, outputs, context).detach() for loss in (matched_a2c, a2c))
    assert not torch.allclose(with_critic, without)
    loss = matching_critic(rollout, outputs, context)
    torch.testing.assert_close(loss, -match[:, 0].mean())
    names, parameters = zip(*agent.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    taught = {name.partition(".")[0] for name, g in zip(names, gradients, strict=True) if g is not None}
    assert taught == {"matching"}, "only the critic learns from it"


def test_the_critic_judges_without_dropout_and_learns_with_it(setting: Setting) -> None:
    agent = setting.loud_agent("rcm", dropout=0.5)
    assert isinstance(agent, RCM)
    rollout, log = setting.walk(agent, roam(1), learning=True)
    judged = agent.evaluate_actions(rollout, log, setting.environment).heads
    agent.train()
    learning = agent.evaluate_actions(rollout, log, setting.environment).heads
    torch.testing.assert_close(learning["intrinsic"], judged["intrinsic"])
    assert not torch.allclose(learning["match"], judged["match"])
    assert agent.matching.training, "it goes on learning afterwards"


def test_the_fidelity_of_every_beginning_is_the_metric(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent("rcm"), roam(3))
    found = prefix_ndtw(setting.world, rollout.viewpoint, setting.episodes.path)
    for length in range(1, rollout.alive.shape[1] + 1):
        there = rollout.length >= length
        walked = rollout.walked[there, :length]
        expected = ndtw(setting.world, walked, setting.episodes.path[there])
        torch.testing.assert_close(found[there, length - 1], expected)


@pytest.mark.parametrize("name", ["rcm-fidelity", "duet"])
def test_fidelity_rewards_add_up_to_the_fidelity_of_the_walk(name: str, setting: Setting) -> None:
    """Also where a decision is a jump of several steps."""
    rollout, _ = setting.walk(setting.loud_agent(name), roam(3, stop=0.5), learning=True)
    context = setting.context(rollout, reward=RewardConfig(rule="ndtw", success=2.0, failure=-0.5))
    values = prefix_ndtw(setting.world, rollout.viewpoint, setting.episodes.path)
    (table,) = rollout.decisions.values()
    earned: Tensor = ndtw_reward(table, rollout, context)
    for episode in range(len(setting.episodes)):
        own = table.episode == episode
        total = float(earned[own & ~table.stops].sum())
        last = int(rollout.length[episode]) - 1
        assert total == pytest.approx(float(values[episode, last] - values[episode, 0]), abs=1e-4)
        for row in (own & table.stops).nonzero().flatten().tolist():
            assert float(earned[row]) == (2.0 if float(table.after[row]) < 3.0 else -0.5)
    assert ACTION in rollout.decisions or rollout.memory is not None
    assert int((rollout.walked != NONE).sum()) > len(setting.episodes)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingError, match=r"delta must be 0 or more, got -1\.0; use 0 to ignore the critic"):
        RCMConfig(delta=-1.0)
    with pytest.raises(SettingError, match="action_width must be 1 or more, got 0"):
        RCMConfig(action_width=0)


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
