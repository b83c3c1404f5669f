"""Re-ranking: several walks per episode, and the one that fits its instruction best."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scenemem.agents.rollout import FINAL, Rollout
from scenemem.agents.walker import TrainedAgent, WalkConfig
from scenemem.errors import NotFiniteError, SettingError
from scenemem.features.store import Environment
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE
from scenemem.zoo.reranking import Candidates, Reranking, RerankingAgent, without_detours
from tests.agents.helpers import Setting, same_scores
from tests.zoo.helpers import Constant, NearTheGoal

NAMES = ("basic", "ssm-local", "ssm", "ssm-global")


@pytest.fixture(scope="module")
def tiny(tiny_trainable: Path) -> Setting:
    return Setting.load(tiny_trainable).every(3)


@pytest.fixture(scope="module")
def environment(tiny: Setting) -> Environment:
    return tiny.environment


@pytest.fixture(scope="module")
def batch(tiny: Setting) -> EpisodeSet:
    return tiny.episodes


def _agent(tiny: Setting, name: str, max_decisions: int = 6, **settings: Any) -> TrainedAgent:
    return tiny.agent(name, limits=WalkConfig(max_decisions, 12, 12), **settings)


@pytest.fixture(scope="module")
def agent(tiny: Setting) -> TrainedAgent:
    return _agent(tiny, "ssm")


def _ends(rollout: Rollout) -> Tensor:
    return rollout.viewpoint.gather(1, rollout.length.unsqueeze(1) - 1).squeeze(1)


def _per_candidate(candidates: Candidates) -> Tensor:
    """(K, B, T)"""
    walked = candidates.rollout.walked
    return walked.view(*candidates.score.shape, walked.shape[1])


@pytest.mark.parametrize("name", NAMES)
def test_one_candidate_is_the_greedy_walk_itself(name: str, tiny: Setting) -> None:
    greedy = _agent(tiny, name)
    plain = greedy.walk(tiny.episodes)
    chosen = RerankingAgent(greedy, NearTheGoal(tiny.world), Reranking(candidates=1)).walk(tiny.episodes)
    for column in ("viewpoint", "view", "alive", "stopped"):
        assert torch.equal(getattr(plain, column), getattr(chosen, column))
    same_scores(chosen, plain, tolerance=0.0)


@pytest.mark.parametrize(("name", "most"), [*((name, 6) for name in NAMES), ("ssm-plus", 2)])
def test_with_an_oracle_no_walk_ends_farther_from_the_goal(name: str, most: int, tiny: Setting) -> None:
    """Nor do those of agents that go back in the end."""
    plus = {"restore_state": True, "stop_from_memory": True, "final_backtrack": True, "hints": True}
    greedy, world, batch = _agent(tiny, name, most, **(plus if most == 2 else {})), tiny.world, tiny.episodes
    found = RerankingAgent(greedy, NearTheGoal(world), Reranking(candidates=6, weight=1.0)).candidates(batch)
    assert (FINAL in found.rollout.decisions) == (most == 2), "some candidates used up their decisions"
    assert bool(found.confidence.isfinite().all())
    before = world.geodesic(_ends(greedy.walk(batch)), batch.goal)
    after = world.geodesic(_ends(found.best(1.0)), batch.goal)
    assert bool((after <= before).all())
    assert float(after.mean()) < float(before.mean()), "and some end nearer"


def test_candidates_follow_the_seed_and_nothing_else(agent: TrainedAgent, batch: EpisodeSet) -> None:
    def walks(rows: slice, candidates: int, seed: int) -> Tensor:
        reranking = RerankingAgent(agent, Constant(0.0), Reranking(candidates, seed=seed))
        found = _per_candidate(reranking.candidates(batch.select(range(len(batch))[rows])))
        return torch.nn.functional.pad(found, (0, 12 - found.shape[2]), value=NONE)

    first = walks(slice(None), 4, 0)
    assert torch.equal(walks(slice(None), 4, 0), first)
    assert torch.equal(walks(slice(None), 7, 0)[:4], first), "more candidates leave the first as they are"
    assert torch.equal(walks(slice(5, 9), 4, 0), first[:, 5:9]), "other episodes do not matter"
    other = walks(slice(None), 4, 1)
    assert torch.equal(other[0], first[0]), "the first is greedy"
    assert not torch.equal(other[1:], first[1:])
    assert not torch.equal(first[1], first[2])


def test_confidence_is_the_mean_log_probability_of_choices(agent: TrainedAgent, batch: EpisodeSet) -> None:
    found = RerankingAgent(agent, Constant(0.0), Reranking(candidates=3)).candidates(batch)
    total, taken = torch.zeros(2, 3 * len(batch)).unbind(0)
    for table in found.rollout.decisions.values():
        chance = table.logits.log_softmax(dim=-1).gather(1, table.choice.unsqueeze(1)).squeeze(1)
        total.index_add_(0, table.episode, chance)
        taken.index_add_(0, table.episode, torch.ones_like(chance))
    torch.testing.assert_close(found.confidence.flatten().float(), total / taken, rtol=1e-4, atol=1e-4)


def test_the_weight_says_whose_score_counts(
    agent: TrainedAgent, environment: Environment, batch: EpisodeSet
) -> None:
    found = RerankingAgent(agent, NearTheGoal(environment.world), Reranking(candidates=5)).candidates(batch)
    rows = torch.arange(len(batch))
    for weight, values in ((0.0, found.confidence), (1.0, found.score)):
        chosen = _per_candidate(found)[values.argmax(dim=0), rows]
        best = found.best(weight)
        assert torch.equal(
            best.viewpoint.masked_fill(~best.alive, NONE), chosen[:, : best.viewpoint.shape[1]]
        )


def test_looking_at_candidates_leaves_training_as_it_was(agent: TrainedAgent, batch: EpisodeSet) -> None:
    reranking = RerankingAgent(agent, Constant(0.0), Reranking(candidates=2))
    for training in (True, False):
        agent.network.train(training)
        assert not reranking.candidates(batch).confidence.requires_grad
        assert agent.network.training == training


def test_an_agent_that_may_not_move_has_nothing_to_choose(agent: TrainedAgent, batch: EpisodeSet) -> None:
    rooted = TrainedAgent(agent.network, agent.environment, agent.vocabulary, WalkConfig(6, 1, 12))
    found = RerankingAgent(rooted, Constant(0.0), Reranking(candidates=3)).candidates(batch)
    assert bool((found.confidence == 0).all())
    assert found.best(0.5).viewpoint.squeeze(1).tolist() == batch.start.tolist()


def test_scores_that_are_not_numbers_are_refused(agent: TrainedAgent, batch: EpisodeSet) -> None:
    with pytest.raises(NotFiniteError, match="the score of a candidate route is not a finite number; look"):
        RerankingAgent(agent, Constant(torch.nan), Reranking(candidates=2)).walk(batch)


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
    steps = max(len(walk) for walk in walks)
    walked = torch.tensor([walk + [NONE] * (steps - len(walk)) for walk in walks])
    routes = [[place for place in row if place != NONE] for row in without_detours(walked).tolist()]
    for walk, route, row in zip(walks, routes, without_detours(walked).tolist(), strict=True):
        assert row[: len(route)] == route, "padding comes last"
        assert (route[0], route[-1]) == (walk[0], walk[-1])
        assert len(set(route)) == len(route)
        hops = set(itertools.pairwise(walk))
        assert set(itertools.pairwise(route)) <= hops
        if len(set(walk)) == len(walk):
            assert route == walk
