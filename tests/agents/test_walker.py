"""Walking: policies, ways to pick an option, watchers and trained agents."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scenemem.agents.agent import ActionSpace
from scenemem.agents.rollout import ACTION, FRONTIER, GLOBAL, DecisionRequest
from scenemem.agents.walker import (
    Decided,
    Rescore,
    Sample,
    SamplePerEpisode,
    TrainedAgent,
    WalkConfig,
    evaluating,
    take_best,
)
from scenemem.errors import NotFiniteError, UserError
from scenemem.features.store import Environment
from scenemem.learning.objectives import ClosestToGoal, MixedRules, ReferencePath
from scenemem.tasks.episode_set import EpisodeSet
from tests.agents.helpers import Notebook, Setting, never_stop, packaged, same_scores, walks_of
from tests.faults.fake_card import CARD, CardTensor, fake_card

NAMES = ("basic", "ssm-local", "ssm", "ssm-global", "ssm-plus")
LIMITS = WalkConfig(4, 9, 40)
PLUS = {"hints": True, "restore_state": True, "final_backtrack": True, "stop_from_memory": True}


def _agent(setting: Setting, name: str) -> TrainedAgent:
    return setting.agent(name, limits=LIMITS, **(PLUS if name == "ssm-plus" else {}))


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_scores_that_are_not_numbers_are_refused(setting: Setting, broken: float) -> None:
    agent = _agent(setting, "basic")
    agent.environment = Environment(
        setting.world, replace(setting.environment.store, values=setting.environment.store.values * broken)
    )
    with pytest.raises(NotFiniteError, match="a score of decision 'action' is not a finite number; look"):
        agent.walk(setting.episodes)


# picking


def test_sampling_follows_the_probabilities_and_its_seed() -> None:
    share = torch.tensor([0.7, 0.2, 0.1, 0.0])
    logits, episodes = share.log().expand(4000, -1), torch.arange(4000)

    def draw(seed: int, *, per_episode: bool) -> Tensor:
        random = torch.Generator().manual_seed(seed)
        if not per_episode:
            return Sample(random)(logits)
        return SamplePerEpisode(torch.rand(1, 4000, generator=random))(logits, episodes)

    for per_episode in (False, True):
        first = draw(1, per_episode=per_episode)
        drawn = torch.bincount(first, minlength=4) / len(logits)
        torch.testing.assert_close(drawn, share, atol=0.03, rtol=0.0)
        assert int(first.max()) < 3, "what is no option is never drawn"
        assert torch.equal(first, draw(1, per_episode=per_episode))
        assert not torch.equal(first, draw(2, per_episode=per_episode))


def test_an_episode_draws_with_its_own_numbers_one_after_the_other() -> None:
    logits = torch.tensor([0.25, 0.5, 0.0, 0.25]).log()
    pick = SamplePerEpisode(torch.tensor([[0.0, 0.3, 0.99], [0.74, 0.76, 0.2]]))
    assert pick(logits.expand(2, -1), torch.tensor([1, 2])).tolist() == [1, 3]
    assert pick(logits.expand(3, -1), torch.tensor([0, 1, 2])).tolist() == [0, 3, 0]
    assert pick(logits.expand(1, -1), torch.tensor([0])).tolist() == [1]


# teachers beside agents


@pytest.mark.parametrize("name", NAMES)
def test_forced_episodes_follow_their_labels_and_the_others_the_agent(name: str, setting: Setting) -> None:
    """All are scored at every decision; walks side by side are what they would be in a batch of their own."""
    agent, chosen = setting.network(packaged(name)), setting.episodes
    forced = torch.arange(len(chosen)) % 3 == 0
    rules = ReferencePath(setting.world, chosen.path), ClosestToGoal(setting.world, chosen.goal)
    rollout = setting.walk(
        agent,
        take_best,
        max_decisions=torch.where(forced, chosen.path_length, 4),
        max_steps=torch.where(forced, chosen.path_length.square(), 9),
        learning=True,
        forced=forced,
        rule=MixedRules(forced, *rules),
    )
    alone = setting.walk(agent, take_best, max_decisions=4, max_steps=9, learning=True, learns=False)
    pairs = zip(walks_of(rollout), walks_of(alone), chosen.path.tolist(), forced.tolist(), strict=True)
    for walked, free, path, is_led in pairs:
        assert walked == ([place for place in path if place >= 0] if is_led else free)
    against = 0
    for table in rollout.decisions.values():
        is_led = forced[table.episode]
        assert torch.equal(table.choice[is_led], table.label[is_led])
        assert torch.equal(table.logits.isfinite(), table.options)
        preferred = table.logits.argmax(dim=1)
        assert torch.equal(preferred[~is_led], table.choice[~is_led])
        against += int((preferred[is_led] != table.label[is_led]).sum())
    assert against > 5, "the scores are the agent's own"


# watching


@pytest.mark.parametrize("name", NAMES)
def test_a_watcher_sees_every_observation_and_decision_and_changes_nothing(
    name: str, setting: Setting
) -> None:
    agent, chosen, notebook = _agent(setting, name), setting.episodes, Notebook()
    rollout = agent.walk(chosen, watcher=notebook)
    assert torch.equal(rollout.viewpoint, agent.walk(chosen).viewpoint)
    for step, places in enumerate(notebook.places):
        assert places == rollout.viewpoint[rollout.alive[:, step], step].tolist()
    words = agent.read(chosen.texts).mask
    for kind, table in rollout.decisions.items():
        told = notebook.of(kind)
        assert torch.cat([decided.request.episode for decided in told]).tolist() == table.episode.tolist()
        for decided in told if kind.learned else ():
            own = words[decided.request.episode]
            assert decided.explanation.words
            for attention in decided.explanation.words.values():
                torch.testing.assert_close(attention.sum(dim=1), torch.ones(len(own)))
                assert not attention[~own].any(), "padding is not attended to"
            if name in ("ssm", "ssm-local"):
                _assert_explained(decided)


def _assert_explained(decided: Decided) -> None:
    """Confidences and their weights explain the scores."""
    kind = decided.request.type
    confidence, mix = decided.explanation.confidence[kind], decided.explanation.mix[kind]
    scores = (confidence * mix.unsqueeze(1)).sum(dim=2)
    known = decided.request.options[:, : scores.shape[1]]
    expected = decided.logits[:, : scores.shape[1]][known]
    torch.testing.assert_close(scores[known], expected, atol=1e-5, rtol=1e-5)


# trained agents


@pytest.mark.parametrize("name", NAMES)
def test_every_agent_walks_without_knowing_the_goal(
    name: str, setting: Setting, secret_episodes: EpisodeSet
) -> None:
    agent = _agent(setting, name)
    rollout = agent.walk(secret_episodes)
    assert rollout.viewpoint[:, 0].tolist() == secret_episodes.start.tolist()
    assert int(rollout.length.max()) <= 9
    for walk in map(torch.tensor, walks_of(rollout)):
        assert (setting.world.slot_of(walk[:-1], walk[1:]) >= 0).all()
    for table in rollout.decisions.values():
        assert (table.label == -1).all()
        assert table.before.isnan().all()
        assert table.after.isnan().all()
    kinds = {"ssm": {FRONTIER, ACTION}, "ssm-plus": {FRONTIER, ACTION}, "ssm-global": {GLOBAL}}
    assert {kind for kind in rollout.decisions if kind.learned} == kinds.get(name, {ACTION})


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_that_waits_its_turn_walks_as_it_would_at_once(name: str, whole: Setting) -> None:
    """Three at a time, the next as soon as one is over: same walks, same decisions, same scores."""
    agent, over = _agent(whole, name), list[int]()
    together = agent.walk(whole.episodes)
    turns = agent.walk(whole.episodes, at_once=3, progress=over.append)
    assert over == sorted(over)
    assert over[-1] == len(whole.episodes)
    for column in ("walked", "alive", "stopped", "jumps"):
        assert torch.equal(getattr(turns, column), getattr(together, column)), column
    assert torch.equal(turns.view[turns.alive], together.view[together.alive])
    same_scores(turns, together)


@pytest.mark.parametrize("training", [False, True])
def test_walking_drops_nothing_and_leaves_training_as_it_was(setting: Setting, training: bool) -> None:
    agent = _agent(setting, "ssm")
    agent.network.train(training)
    first, again = agent.walk(setting.episodes), agent.walk(setting.episodes)
    assert agent.network.training == training
    assert torch.equal(first.viewpoint, again.viewpoint)
    with pytest.raises(UserError), evaluating(agent.network):
        assert not agent.network.training
        raise UserError("interrupted")
    assert agent.network.training == training


@pytest.mark.parametrize(("name", "least"), [("max_decisions", 1), ("max_steps", 1), ("max_words", 3)])
def test_walks_of_nothing_and_endless_ones_are_refused(name: str, least: int) -> None:
    for value in (least - 1, 1001):
        with pytest.raises(ValueError, match=f"{name} must be from {least} to 1,000, got {value}"):
            WalkConfig(**{name: value})
    WalkConfig(**{name: 1000})


def test_long_instructions_are_cut(setting: Setting) -> None:
    agent = setting.agent("basic", limits=WalkConfig(4, 9, 7))
    assert agent.read(("one two three " * 20,)).context.shape[1] == 7


class _Stays(TrainedAgent):
    """Its scores are changed, so that it stops at once."""

    def rescoring(self, episodes: EpisodeSet) -> Rescore:
        def rescore(logits: Tensor, request: DecisionRequest, _space: ActionSpace, /) -> Tensor:
            assert len(request.episode) == len(logits) <= len(episodes)
            return torch.zeros_like(logits).index_fill(1, torch.tensor([logits.shape[1] - 1]), 9.0)

        return rescore


def test_scores_may_be_changed_before_an_option_is_picked(setting: Setting) -> None:
    network, batch, notebook = setting.network("basic"), setting.episodes, Notebook()
    plain, stays = (kind(network, setting.environment, setting.vocabulary) for kind in (TrainedAgent, _Stays))
    assert plain.rescoring(batch) is None
    assert plain.walk(batch).walked.shape[1] > 1
    rollout = stays.walk(batch, watcher=notebook)
    assert rollout.walked.tolist() == batch.start.unsqueeze(1).tolist()
    (decided,) = notebook.decisions
    assert torch.equal(decided.logits[:, -1], torch.full((len(batch),), 9.0)), "watchers see what decided"
    assert torch.equal(rollout.decisions[ACTION].logits, decided.logits)


# waiting for the device


class _BooleanIndices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts indexing by a mask: its result has to be sized by the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.index.Tensor and isinstance(args[0], CardTensor):
            self.count += any(index is not None and index.dtype == torch.bool for index in args[1])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "most"), [("basic", 3), ("ssm", 4)])
def test_a_step_of_a_walk_waits_for_the_device_a_few_times_only(
    name: str, most: int, setting: Setting
) -> None:
    def waits(max_steps: int) -> int:
        limits = WalkConfig(max_decisions=20, max_steps=max_steps)
        with fake_card() as card:
            world, store = setting.world.to(CARD), setting.environment.store.to(CARD)
            network, episodes = setting.network(name).to(CARD), setting.episodes.to(CARD)
            agent = TrainedAgent(network, Environment(world, store), setting.vocabulary, limits)
            card.waits.clear()
            with _BooleanIndices() as indices:
                agent.walk(episodes, never_stop)
            total: int = sum(card.waits.values()) + indices.count
            return total

    assert (waits(12) - waits(4)) / 8 <= most
