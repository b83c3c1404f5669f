from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scenemem.agents.build import Kind, WalkConfig, build_network
from scenemem.agents.grounded import MemoryConfig
from scenemem.agents.network import NetworkConfig
from scenemem.agents.sight import Sight
from scenemem.agents.trained import TrainedAgent
from torch import Tensor

from scenemem.agents.reranking import Candidates, Reranking, RerankingAgent, without_detours
from scenemem.agents.rollout import Decisions, Map, Rollout
from scenemem.errors import NotFiniteError, SettingError
from scenemem.features.store import open_store
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, World

KINDS: tuple[Kind, ...] = get_args(Kind)
PLAIN = MemoryConfig(stream=8)


@pytest.fixture(scope="module")
def sight(tiny_trainable: Path) -> Sight:
    world = load_world(tiny_trainable / "connectivity")
    return Sight(world, open_store(tiny_trainable / "features" / "tiny.npy", world))


@pytest.fixture(scope="module")
def episodes(tiny_trainable: Path, sight: Sight) -> EpisodeSet:
    return load_split(DataFolder(tiny_trainable), sight.world, "r2r", "train").select(range(0, 60, 2))


def _agent(
    kind: Kind, sight: Sight, episodes: EpisodeSet, memory: MemoryConfig = PLAIN, rounds: int = 6
) -> TrainedAgent:
    torch.manual_seed(0)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    config, walk = NetworkConfig(word_width=6, width=8), WalkConfig(rounds=rounds, ticks=12, words=12)
    network = build_network(kind, config, memory, walk, vocabulary, sight.width)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(3)  # so that it prefers something
    return TrainedAgent(network, sight, vocabulary, max_words=walk.words, max_ticks=walk.ticks)


@pytest.fixture(scope="module")
def agent(sight: Sight, episodes: EpisodeSet) -> TrainedAgent:
    return _agent("frontier", sight, episodes)


class NearTheGoal:
    """An oracle: knows where the goal is."""

    def __init__(self, world: World) -> None:
        self._world = world

    def score_routes(self, episodes: EpisodeSet, route: Tensor, /) -> Tensor:
        assert torch.equal(route[:, 0], episodes.start)
        last = (route != NONE).sum(dim=1, keepdim=True) - 1
        return -self._world.geodesic(route.gather(1, last).squeeze(1), episodes.goal)


class Indifferent:
    def score_routes(self, episodes: EpisodeSet, _route: Tensor, /) -> Tensor:
        return torch.zeros(len(episodes))


class Broken:
    def score_routes(self, episodes: EpisodeSet, _route: Tensor, /) -> Tensor:
        return torch.full((len(episodes),), torch.nan)


def _ends(rollout: Rollout) -> Tensor:
    return rollout.viewpoint.gather(1, rollout.ticks.unsqueeze(1) - 1).squeeze(1)


def _per_candidate(candidates: Candidates) -> Tensor:
    """(K, B, T)"""
    walked = candidates.walked
    return walked.view(*candidates.score.shape, walked.shape[1])


@pytest.mark.parametrize("kind", KINDS)
def test_one_candidate_is_the_greedy_walk_itself(kind: Kind, sight: Sight, episodes: EpisodeSet) -> None:
    greedy = _agent(kind, sight, episodes)
    plain = greedy.walk(episodes)
    chosen = RerankingAgent(greedy, NearTheGoal(sight.world), Reranking(candidates=1)).walk(episodes)
    for name in ("viewpoint", "view", "alive"):
        assert torch.equal(getattr(plain, name), getattr(chosen, name))
    assert plain.decisions.keys() == chosen.decisions.keys()
    for table, same in zip(plain.decisions.values(), chosen.decisions.values(), strict=True):
        for column in fields(Decisions):
            torch.testing.assert_close(
                getattr(table, column.name), getattr(same, column.name), rtol=0, atol=0, equal_nan=True
            )
    assert (plain.map is None) == (chosen.map is None)
    if plain.map is not None and chosen.map is not None:
        assert all(
            torch.equal(getattr(plain.map, column.name), getattr(chosen.map, column.name))
            for column in fields(Map)
        )


@pytest.mark.parametrize("kind", ["frontier", "anywhere"])
def test_agents_that_go_back_in_the_end_are_led_to_the_goal_too(
    kind: Kind, sight: Sight, episodes: EpisodeSet
) -> None:
    memory = MemoryConfig(stream=8, hints=True, recalls=True, stop_reads=True, goes_back=True)
    greedy, world = _agent(kind, sight, episodes, memory, rounds=2), sight.world
    found = RerankingAgent(greedy, NearTheGoal(world), Reranking(candidates=6, weight=1.0)).candidates(
        episodes
    )
    assert "last" in found.rollout.decisions, "some candidates used up their decisions"
    assert bool(found.confidence.isfinite().all())
    after = world.geodesic(_ends(found.best(1.0)), episodes.goal)
    assert bool((after <= world.geodesic(_ends(greedy.walk(episodes)), episodes.goal)).all())


@pytest.mark.parametrize("kind", KINDS)
def test_with_an_oracle_nobody_ends_farther_from_the_goal(
    kind: Kind, sight: Sight, episodes: EpisodeSet
) -> None:
    greedy, world = _agent(kind, sight, episodes), sight.world
    best = RerankingAgent(greedy, NearTheGoal(world), Reranking(candidates=6, weight=1.0)).walk(episodes)
    before = world.geodesic(_ends(greedy.walk(episodes)), episodes.goal)
    after = world.geodesic(_ends(best), episodes.goal)
    assert bool((after <= before).all())
    assert float((after < 3).double().mean()) > float((before < 3).double().mean()), "and many end nearer"


def test_candidates_follow_the_seed_and_nothing_else(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    def walks(rows: slice, candidates: int, seed: int) -> Tensor:
        reranking = RerankingAgent(agent, Indifferent(), Reranking(candidates, seed=seed))
        found = _per_candidate(reranking.candidates(episodes.select(range(len(episodes))[rows])))
        return torch.nn.functional.pad(found, (0, 12 - found.shape[2]), value=NONE)

    first = walks(slice(None), 4, 0)
    assert torch.equal(walks(slice(None), 4, 0), first)
    assert torch.equal(walks(slice(None), 7, 0)[:4], first), "more candidates leave the first as they are"
    assert torch.equal(walks(slice(5, 9), 4, 0), first[:, 5:9]), "other episodes do not matter"
    other = walks(slice(None), 4, 1)
    assert torch.equal(other[0], first[0]), "the first is greedy"
    assert not torch.equal(other[1:], first[1:])
    assert not torch.equal(first[1], first[2])


def test_confidence_is_what_a_replay_of_the_walk_says(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    found = RerankingAgent(agent, Indifferent(), Reranking(candidates=3)).candidates(episodes)
    agent.network.eval()
    lanes = 3 * len(episodes)
    replay = agent.network.replay(
        found.rollout, agent.sight, agent.read(episodes.texts).repeat(3), agent.network.noise(lanes)
    )
    total, taken = torch.zeros(2, lanes).unbind(0)
    for kind, table in found.rollout.decisions.items():
        chance = replay.logits[kind].log_softmax(dim=-1).gather(1, table.choice.unsqueeze(1)).squeeze(1)
        total.index_add_(0, table.lane, chance.detach())
        taken.index_add_(0, table.lane, torch.ones_like(chance.detach()))
    torch.testing.assert_close(found.confidence.flatten().float(), total / taken, rtol=1e-4, atol=1e-4)


def test_the_weight_says_who_is_listened_to(agent: TrainedAgent, sight: Sight, episodes: EpisodeSet) -> None:
    found = RerankingAgent(agent, NearTheGoal(sight.world), Reranking(candidates=5)).candidates(episodes)
    rows = torch.arange(len(episodes))
    for weight, values in ((0.0, found.confidence), (1.0, found.score)):
        chosen = _per_candidate(found)[values.argmax(dim=0), rows]
        best = found.best(weight)
        assert torch.equal(
            best.viewpoint.masked_fill(~best.alive, NONE), chosen[:, : best.viewpoint.shape[1]]
        )


def test_the_answer_keeps_its_own_decisions(agent: TrainedAgent, sight: Sight, episodes: EpisodeSet) -> None:
    found = RerankingAgent(agent, NearTheGoal(sight.world), Reranking(candidates=5)).candidates(episodes)
    best = found.best(1.0)
    lanes = found.score.argmax(dim=0) * len(episodes) + torch.arange(len(episodes))
    assert torch.equal(best.stopped, found.rollout.stopped[lanes])
    assert best.map is not None
    assert found.rollout.map is not None
    assert torch.equal(best.map.node, found.rollout.map.node[lanes])
    for kind, table in best.decisions.items():
        whole = found.rollout.decisions[kind]
        for row, lane in enumerate(lanes.tolist()):
            assert table.choice[table.lane == row].tolist() == whole.choice[whole.lane == lane].tolist()


def test_looking_at_candidates_leaves_training_as_it_was(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    reranking = RerankingAgent(agent, Indifferent(), Reranking(candidates=2))
    for training in (True, False):
        agent.network.train(training)
        assert not reranking.candidates(episodes).confidence.requires_grad
        assert agent.network.training == training


def test_whoever_may_not_move_has_nothing_to_choose(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    rooted = TrainedAgent(agent.network, agent.sight, agent.vocabulary, max_words=12, max_ticks=1)
    found = RerankingAgent(rooted, Indifferent(), Reranking(candidates=3)).candidates(episodes)
    assert bool((found.confidence == 0).all())
    assert found.best(0.5).viewpoint.squeeze(1).tolist() == episodes.start.tolist()


def test_scores_that_are_not_numbers_are_refused(agent: TrainedAgent, episodes: EpisodeSet) -> None:
    with pytest.raises(NotFiniteError, match="the score of a candidate route is not a finite number; look"):
        RerankingAgent(agent, Broken(), Reranking(candidates=2)).walk(episodes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"candidates": 0}, "the number of candidates must be 1 or more, got 0"),
        ({"weight": 1.5}, r"the speaker's weight must be in \[0, 1\], got 1.5"),
        ({"weight": float("nan")}, r"the speaker's weight must be in \[0, 1\], got nan"),
        ({"seed": -1}, "the seed of the candidates must be 0 or more, got -1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}$"):
        Reranking(**settings)  # type: ignore[arg-type]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), min_size=1, max_size=4))
def test_a_route_has_no_loop_and_only_hops_of_its_walk(walks: list[list[int]]) -> None:
    ticks = max(len(walk) for walk in walks)
    walked = torch.tensor([walk + [NONE] * (ticks - len(walk)) for walk in walks])
    routes = [[place for place in row if place != NONE] for row in without_detours(walked).tolist()]
    for walk, route, row in zip(walks, routes, without_detours(walked).tolist(), strict=True):
        assert row[: len(route)] == route, "padding comes last"
        assert (route[0], route[-1]) == (walk[0], walk[-1])
        assert len(set(route)) == len(route)
        hops = set(itertools.pairwise(walk))
        assert set(itertools.pairwise(route)) <= hops
        if len(set(walk)) == len(walk):
            assert route == walk


def test_detours_are_left_out() -> None:
    walked = torch.tensor(
        [[1, 2, 3, 2, 4, 5, NONE], [1, 2, 1, 2, 3, 1, 6], [7, 8, 9, NONE, NONE, NONE, NONE]]
    )
    assert without_detours(walked).tolist() == [[1, 2, 4, 5], [1, 6, NONE, NONE], [7, 8, 9, NONE]]
