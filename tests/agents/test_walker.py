"""Walking: policies, ways to pick an option, watchers and trained agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace, LocalActions
from scenemem.agents.agent import Agent, DecisionPoint, by_type
from scenemem.agents.build import AGENTS, AgentModules, DataSizes, ModelConfig, lstm_modules
from scenemem.agents.rollout import ACTION, FINAL, FRONTIER, GLOBAL, DecisionRequest, DecisionType
from scenemem.agents.walker import (
    AgentPolicy,
    Decided,
    Rescore,
    Sample,
    SamplePerEpisode,
    TrainedAgent,
    WalkConfig,
    collect,
    take_best,
)
from scenemem.errors import NotFiniteError
from scenemem.features.store import Environment
from scenemem.learning.objectives import ClosestToGoal, MixedRules, ReferencePath
from scenemem.presets import PRESETS
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import NONE, World

VISUAL = 4
SIZES = ModelConfig(word_width=6, width=8)
NAMES = ("basic", "ssm-local", "ssm", "ssm-global")
assert PRESETS, "presets register the packaged agents"


@pytest.fixture(scope="module")
def environment(random_environment: Callable[[World, int], Environment], world: World) -> Environment:
    return random_environment(world, VISUAL)


class FixedScores(Agent):
    """Says the same of every option, whatever it sees."""

    def __init__(self, parts: AgentModules, sizes: DataSizes, scores: Sequence[Sequence[float]]) -> None:
        super().__init__(SIZES, sizes, parts)
        self.scores = torch.tensor(scores)

    def score(self, point: DecisionPoint) -> Tensor:
        return self.scores[point.row]


def _fixed(
    environment: Environment, episodes: EpisodeSet, scores: Sequence[Sequence[float]], count: int
) -> AgentPolicy:
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    sizes = DataSizes(len(vocabulary), VISUAL)
    agent = FixedScores(lstm_modules(SIZES, sizes), sizes, scores)
    instructions = agent.encoder(*vocabulary.encode_batch(episodes.texts[:count], 9))
    log = agent.state_log(environment, instructions, agent.eval().dropout_masks(count))
    return AgentPolicy(agent, log, environment, take_best)


@pytest.fixture
def decide(
    environment: Environment, episodes: EpisodeSet
) -> Callable[[list[list[float]], list[list[bool]]], list[int]]:
    """What an agent with these scores chooses among these options."""

    def chosen(scores: list[list[float]], options: list[list[bool]]) -> list[int]:
        policy = _fixed(environment, episodes, scores, 2)
        space = LocalActions(environment.world, 2, 1)
        pose = Pose(episodes.start[:2], torch.tensor([12, 12]), torch.zeros(2, dtype=torch.bool))
        both = torch.arange(2)
        policy.observe(space.arrive(pose, both), both, space)
        places = torch.zeros(2, len(options[0]), dtype=torch.long)
        request = DecisionRequest(ACTION, both, torch.tensor(options), places)
        choice = policy.decide(request, torch.tensor([0, 0]), pose, space).tolist()
        policy.check_scores()
        return choice

    return chosen


def test_only_options_are_chosen(decide: Callable[[list[list[float]], list[list[bool]]], list[int]]) -> None:
    scores = [[1.0, 9.0, 2.0], [-5.0, -7.0, -6.0]]
    assert decide(scores, [[True, True, True], [True, True, True]]) == [1, 0]
    assert decide(scores, [[True, False, True], [False, True, True]]) == [2, 2]


def test_scores_that_are_not_numbers_are_refused(
    decide: Callable[[list[list[float]], list[list[bool]]], list[int]],
) -> None:
    with pytest.raises(NotFiniteError, match="a score of decision 'action' is not a finite number; look"):
        decide([[1.0, torch.nan, 2.0], [0.0, 0.0, 0.0]], [[True] * 3] * 2)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ACTION, "decision 'action' was asked for before anything was observed"),
        (FINAL, "a final place was asked for before anything was decided"),
    ],
)
def test_nothing_is_decided_before_anything_is_observed(
    environment: Environment, episodes: EpisodeSet, kind: object, message: str
) -> None:
    policy = _fixed(environment, episodes, [[0.0, 0.0]], 1)
    pose = Pose(episodes.start[:1], torch.tensor([12]), torch.zeros(1, dtype=torch.bool))
    options, places = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.long)
    request = DecisionRequest(kind, torch.tensor([0]), options, places)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        policy.decide(request, torch.tensor([NONE]), pose, LocalActions(environment.world, 1, 1))


# picking


def test_sampling_follows_the_probabilities_and_its_seed() -> None:
    def draw(seed: int) -> Tensor:
        return Sample(torch.Generator().manual_seed(seed))(logits)

    share = torch.tensor([0.7, 0.2, 0.1, 0.0])
    logits = share.log().expand(4000, -1)
    drawn = torch.bincount(draw(1), minlength=4) / len(logits)
    torch.testing.assert_close(drawn, share, atol=0.03, rtol=0.0)
    assert int(draw(1).max()) < 3, "what is no option is never drawn"
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_an_episode_draws_with_its_own_numbers_one_after_the_other() -> None:
    logits = torch.tensor([0.25, 0.5, 0.0, 0.25]).log()
    pick = SamplePerEpisode(torch.tensor([[0.0, 0.3, 0.99], [0.74, 0.76, 0.2]]))
    assert pick(logits.expand(2, -1), torch.tensor([1, 2])).tolist() == [1, 3]
    assert pick(logits.expand(3, -1), torch.tensor([0, 1, 2])).tolist() == [0, 3, 0]
    assert pick(logits.expand(1, -1), torch.tensor([0])).tolist() == [1]


def test_drawing_per_episode_follows_the_probabilities() -> None:
    share = torch.tensor([0.7, 0.2, 0.1, 0.0])
    episodes = torch.arange(4000)
    drawn = torch.rand(1, 4000, generator=torch.Generator().manual_seed(0))
    chosen = SamplePerEpisode(drawn)(share.log().expand(4000, -1), episodes)
    torch.testing.assert_close(torch.bincount(chosen, minlength=4) / 4000, share, atol=0.03, rtol=0.0)


# teachers beside agents


@pytest.mark.parametrize("name", NAMES)
def test_forced_episodes_follow_their_labels_and_the_others_the_agent(
    name: str, environment: Environment, episodes: EpisodeSet
) -> None:
    """Walks side by side are what they would be in a batch of their own."""
    agent, world = _agent(name, environment, episodes), environment.world
    agent.network.eval()
    chosen = episodes.select(range(12))
    forced = torch.arange(len(chosen)) % 3 == 0
    log = agent.network.state_log(environment, agent.read(chosen.texts), agent.network.dropout_masks(12))
    rollout = collect(
        world,
        chosen,
        agent.network.action_space(world, 12, torch.where(forced, chosen.path_length, 4), learning=True),
        AgentPolicy(agent.network, log, environment, take_best, forced=forced),
        max_steps=torch.where(forced, chosen.path_length.square(), 9),
        label_rule=MixedRules(forced, ReferencePath(world, chosen.path), ClosestToGoal(world, chosen.goal)),
    )
    alone = agent.walk(chosen)
    for episode in range(12):
        walked = rollout.walked[episode, : int(rollout.length[episode])].tolist()
        if forced[episode]:
            assert walked == chosen.path[episode, : int(chosen.path_length[episode])].tolist()
        else:
            assert walked == alone.walked[episode, : int(alone.length[episode])].tolist()
    for table in rollout.decisions.values():
        led = forced[table.episode]
        assert torch.equal(table.choice[led], table.label[led])


# watching


class Notebook:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.observed_places: list[list[int]] = []
        self.decisions: list[Decided] = []

    def observed(self, pose: Pose, active: Tensor, _space: ActionSpace, /) -> None:
        self.observed_places.append(pose.viewpoint[active].tolist())

    def decided(self, decided: Decided, /) -> None:
        self.decisions.append(decided)


@pytest.mark.parametrize("name", NAMES)
def test_a_watcher_sees_every_observation_and_decision_and_changes_nothing(
    name: str, environment: Environment, episodes: EpisodeSet
) -> None:
    agent = _agent(name, environment, episodes)
    notebook, chosen = Notebook(), episodes.select(range(0, 20, 2))
    rollout = agent.walk(chosen, watcher=notebook)
    assert torch.equal(rollout.viewpoint, agent.walk(chosen).viewpoint)
    for step, places in enumerate(notebook.observed_places):
        assert places == rollout.viewpoint[rollout.alive[:, step], step].tolist()
    words = agent.read(chosen.texts).mask
    for kind, table in rollout.decisions.items():
        told = [decided for decided in notebook.decisions if decided.request.type == kind]
        assert torch.cat([decided.choice for decided in told]).tolist() == table.choice.tolist()
        assert torch.cat([decided.request.episode for decided in told]).tolist() == table.episode.tolist()
        for decided in told:
            own = words[decided.request.episode]
            assert decided.explanation.words
            for attention in decided.explanation.words.values():
                torch.testing.assert_close(attention.sum(dim=1), torch.ones(len(own)))
                assert not attention[~own].any(), "nobody attends to padding"


@pytest.mark.parametrize("name", ["ssm", "ssm-local"])
def test_confidences_and_their_weights_explain_the_scores(
    name: str, environment: Environment, episodes: EpisodeSet
) -> None:
    agent, notebook = _agent(name, environment, episodes), Notebook()
    agent.walk(episodes.select(range(0, 20, 2)), watcher=notebook)
    kinds = set()
    for decided in notebook.decisions:
        kind, options = decided.request.type, decided.request.options
        confidence, mix = decided.explanation.confidence[kind], decided.explanation.mix[kind]
        scores = (confidence * mix.unsqueeze(1)).sum(dim=2)
        for row in range(len(options)):
            known = options[row, : scores.shape[1]]
            expected = decided.logits[row, : scores.shape[1]][known]
            torch.testing.assert_close(scores[row][known], expected, atol=1e-5, rtol=1e-5)
        kinds.add(kind)
    assert kinds == ({ACTION, FRONTIER} if name == "ssm" else {ACTION})


# trained agents


def _agent(name: str, environment: Environment, episodes: EpisodeSet) -> TrainedAgent:
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    spec = AGENTS[name]
    network = spec.build(spec.config(word_width=6, width=8), DataSizes(len(vocabulary), VISUAL))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)  # so that it prefers something
    return TrainedAgent(network, environment, vocabulary, WalkConfig(4, 9, 7))


@pytest.mark.parametrize("name", NAMES)
def test_every_agent_walks_without_knowing_the_goal(
    name: str, environment: Environment, secret_episodes: EpisodeSet
) -> None:
    agent, world = _agent(name, environment, secret_episodes), environment.world
    rollout = agent.walk(secret_episodes)
    assert rollout.viewpoint[:, 0].tolist() == secret_episodes.start.tolist()
    assert int(rollout.length.max()) <= 9
    walks = [walk[:steps] for walk, steps in zip(rollout.viewpoint, rollout.length, strict=True)]
    assert all((world.slot_of(walk[:-1], walk[1:]) >= 0).all() for walk in walks)
    kinds = {"ssm": {FRONTIER, ACTION}, "ssm-global": {GLOBAL}}.get(name, {ACTION})
    assert rollout.decisions.keys() == kinds


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_an_episode_that_waits_its_turn_walks_as_it_would_at_once(
    name: str, restores: bool, environment: Environment, episodes: EpisodeSet
) -> None:
    """Three at a time, the next as soon as one is over: same walks, states, decisions and memories."""
    agent, over = _agent(name, environment, episodes), list[int]()
    if restores and hasattr(agent.network.config, "restore_state"):
        changes = {"restore_state": True, "final_backtrack": True}
        agent.network.config = replace(agent.network.config, **changes)
    together = agent.walk(episodes)
    turns = agent.walk(episodes, at_once=3, progress=over.append)
    assert over == sorted(over)
    assert over[-1] == len(episodes)
    for column in ("viewpoint", "view", "state_step"):
        pad = ~together.alive
        expected, found = getattr(together, column), getattr(turns, column)
        assert torch.equal(found.masked_fill(pad, 0), expected.masked_fill(pad, 0)), column
    assert torch.equal(turns.alive, together.alive)
    assert torch.equal(turns.stopped, together.stopped)
    assert turns.decisions.keys() == together.decisions.keys()
    for kind, expected_table in together.decisions.items():
        found_table = turns.decisions[kind]
        steps = together.alive.shape[1]
        order, other = (
            (table.episode * steps + table.step).argsort() for table in (expected_table, found_table)
        )
        for column in ("episode", "step", "choice", "stops"):
            expected = getattr(expected_table, column)[order]
            assert torch.equal(getattr(found_table, column)[other], expected), (kind, column)
    if together.memory is not None and turns.memory is not None:
        assert torch.equal(turns.memory.node, together.memory.node)
        assert torch.equal(turns.memory.count[turns.alive], together.memory.count[together.alive])


def test_walking_drops_nothing_and_leaves_training_as_it_was(
    environment: Environment, secret_episodes: EpisodeSet
) -> None:
    agent = _agent("ssm", environment, secret_episodes)
    agent.network.train()
    first, again = agent.walk(secret_episodes), agent.walk(secret_episodes)
    assert agent.network.training
    assert torch.equal(first.viewpoint, again.viewpoint)
    agent.network.eval()
    agent.walk(secret_episodes)
    assert not agent.network.training


def test_long_instructions_are_cut(environment: Environment, secret_episodes: EpisodeSet) -> None:
    agent = _agent("basic", environment, secret_episodes)
    assert agent.read(("one two three " * 20,)).context.shape[1] == 7


@pytest.mark.parametrize("name", ["max_decisions", "max_steps", "max_words"])
def test_walks_of_nothing_and_endless_ones_are_refused(name: str) -> None:
    for value in (0, 1001):
        with pytest.raises(ValueError, match=f"{name} must be from 1 to 1,000, got {value}"):
            WalkConfig(**{name: value})
    WalkConfig(**{name: 1000})


def test_the_local_ablation_scores_sub_nodes_as_the_papers_agent_that_stays(
    environment: Environment, episodes: EpisodeSet
) -> None:
    agent, other = _agent("ssm-local", environment, episodes), _agent("ssm", environment, episodes)
    own = agent.network.state_dict()
    other.network.load_state_dict(
        {name: own.get(name, value) for name, value in other.network.state_dict().items()}
    )
    score, elsewhere = agent.network.score, 0

    def compared(point: DecisionPoint) -> Mapping[DecisionType, Tensor]:
        nonlocal elsewhere
        found, whole = by_type(score(point)), by_type(other.network.score(point))
        assert torch.equal(found[ACTION], whole[ACTION])
        elsewhere += int((point.memory().here > 0).sum())
        return found

    agent.network.score = compared  # type: ignore[method-assign]
    walked = agent.walk(episodes.select(range(0, 20, 2))).walked
    assert elsewhere > 10
    for path in walked.tolist():
        places = [place for place in path if place >= 0]
        assert len(set(places)) == len(places), "a visited place is no option"


class _Stays(TrainedAgent):
    """Somebody else wants it to stop at once."""

    def rescoring(self, episodes: EpisodeSet) -> Rescore:
        def rescore(logits: Tensor, request: DecisionRequest, space: ActionSpace, /) -> Tensor:
            assert space.active is not None
            assert len(request.episode) == len(logits) <= len(episodes)
            return torch.zeros_like(logits).index_fill(1, torch.tensor([logits.shape[1] - 1]), 9.0)

        return rescore


def test_scores_may_be_changed_before_an_option_is_picked(
    environment: Environment, episodes: EpisodeSet
) -> None:
    batch, vocabulary = episodes.select(range(5)), Vocabulary.build(episodes.texts, min_count=1)
    torch.manual_seed(0)
    network = AGENTS["basic"].build(SIZES, DataSizes(len(vocabulary), VISUAL))
    plain, stays = (kind(network, environment, vocabulary) for kind in (TrainedAgent, _Stays))
    assert plain.rescoring(batch) is None
    assert plain.walk(batch).walked.shape[1] > 1
    shown: list[Tensor] = []

    class Watching:
        def observed(self, _pose: Pose, _active: Tensor, _space: ActionSpace, /) -> None: ...

        def decided(self, decided: Decided, /) -> None:
            shown.append(decided.logits)

    rollout = stays.walk(batch, watcher=Watching())
    assert rollout.walked.tolist() == batch.start.unsqueeze(1).tolist()
    assert shown[0][:, -1].tolist() == [9.0] * 5, "watchers see what decided"
    assert bool((shown[0][:, :-1][shown[0][:, :-1].isfinite()] == 0).all())
