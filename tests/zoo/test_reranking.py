"""Re-ranking: several routes per episode, and the one that fits its instruction best."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.agents.rollout import FINAL, Rollout
from scenemem.agents.walker import TrainedAgent
from scenemem.errors import NotFiniteError, SettingError
from scenemem.evaluation.evaluate import walk_split
from scenemem.evaluation.metrics import last_viewpoint, path_length
from scenemem.learning.speaker import Speaker
from scenemem.models.speaker import SpeakerConfig, SpeakerNetwork
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo import reranking
from scenemem.zoo.reranking import PragmaticSearch, Reranking, RerankingAgent
from scenemem.zoo.search import END, routes_to
from scenemem.zoo.speaker_follower import chosen_route
from tests.agents.helpers import same_scores, walks_of
from tests.zoo.helpers import Setting, Walk, places_of

NAMES = ("basic", "ssm-local", "ssm", "ssm-global")
SEARCHES = ("speaker-follower-search", "fast-long")


class NearTheGoal:
    """A scorer of routes that reads the goal."""

    def __init__(self, world: World) -> None:
        self._world = world

    def score_routes(self, episodes: EpisodeSet, route: Tensor, /) -> Tensor:
        assert torch.equal(route[:, 0], episodes.start)
        return -self._world.geodesic(last_viewpoint(route), episodes.goal)


class Constant:
    """A scorer that gives every route the same score."""

    def __init__(self, score: float) -> None:
        self._score = score

    def score_routes(self, episodes: EpisodeSet, _route: Tensor, /) -> Tensor:
        return torch.full((len(episodes),), self._score)


def _reranked(
    agent: TrainedAgent, candidates: int, scorer: reranking.RouteScorer | None = None
) -> RerankingAgent:
    scorer = scorer or NearTheGoal(agent.environment.world)
    return RerankingAgent(agent, scorer, Reranking(candidates))


@pytest.fixture(scope="module")
def agent(setting: Setting) -> TrainedAgent:
    return setting.walker("ssm", 6, 12, 12)


@pytest.mark.parametrize("name", NAMES)
def test_one_candidate_is_the_greedy_walk_itself(name: str, setting: Setting) -> None:
    greedy = setting.walker(name, 6, 12, 12)
    plain, chosen = greedy.walk(setting.episodes), _reranked(greedy, 1).walk(setting.episodes)
    for column in ("viewpoint", "view", "alive", "stopped"):
        assert torch.equal(getattr(plain, column), getattr(chosen, column))
    same_scores(chosen, plain, tolerance=0.0)


@pytest.mark.parametrize(("name", "most"), [*((name, 6) for name in NAMES), ("ssm-plus", 2)])
def test_with_an_oracle_no_walk_ends_farther_from_the_goal(name: str, most: int, setting: Setting) -> None:
    """Nor do those of agents that go back in the end."""
    plus = {"restore_state": True, "stop_from_memory": True, "final_backtrack": True, "hints": True}
    greedy = setting.walker(name, most, 12, 12, **(plus if most == 2 else {}))
    found = _reranked(greedy, 6).candidates(setting.episodes)
    assert (FINAL in found.rollout.decisions) == (most == 2), "some candidates used up their decisions"
    assert bool(found.confidence.isfinite().all())

    def metres(rollout: Rollout) -> Tensor:
        return setting.world.geodesic(last_viewpoint(rollout.walked), setting.episodes.goal)

    before, after = metres(greedy.walk(setting.episodes)), metres(found.best(1.0))
    assert bool((after <= before).all())
    assert float(after.mean()) < float(before.mean()), "and some end nearer"


def test_candidates_follow_the_seed_and_nothing_else(agent: TrainedAgent, setting: Setting) -> None:
    def walks(episodes: EpisodeSet, candidates: int, seed: int) -> Tensor:
        config = Reranking(candidates, seed=seed)
        walked = RerankingAgent(agent, Constant(0.0), config).candidates(episodes).rollout.walked
        padded = torch.nn.functional.pad(walked, (0, 12 - walked.shape[1]), value=NONE)
        return padded.view(candidates, len(episodes), 12)

    episodes = setting.episodes
    first, other = (walks(episodes, 4, seed) for seed in (0, 1))
    assert torch.equal(walks(episodes, 4, 0), first)
    assert torch.equal(walks(episodes, 7, 0)[:4], first), "more candidates leave the first as they are"
    assert torch.equal(walks(episodes.select(range(5, 9)), 4, 0), first[:, 5:9]), "nor do other episodes"
    assert torch.equal(other[0], first[0]), "the first is greedy"
    assert not torch.equal(other[1:], first[1:])
    assert not torch.equal(first[1], first[2])


@pytest.mark.parametrize("training", [False, True])
def test_confidence_is_the_mean_log_probability_and_weighed_against_the_score(
    training: bool, agent: TrainedAgent, setting: Setting
) -> None:
    count = len(setting.episodes)
    agent.network.train(training)
    found = _reranked(agent, 5).candidates(setting.episodes)
    assert agent.network.training == training
    assert not found.confidence.requires_grad
    agent.network.eval()
    total, taken = torch.zeros(2, 5 * count).unbind(0)
    for table in found.rollout.decisions.values():
        chance = table.logits.log_softmax(dim=-1).gather(1, table.choice.unsqueeze(1)).squeeze(1)
        total.index_add_(0, table.episode, chance)
        taken.index_add_(0, table.episode, torch.ones_like(chance))
    torch.testing.assert_close(found.confidence.flatten().float(), total / taken, rtol=1e-4, atol=1e-4)
    walks = walks_of(found.rollout)
    for weight, values in (
        (0.0, found.confidence),
        (1.0, found.score),
        (0.3, 0.3 * found.score + 0.7 * found.confidence),
    ):
        best = values.argmax(dim=0).tolist()
        assert walks_of(found.best(weight)) == [walks[k * count + row] for row, k in enumerate(best)]


def test_an_agent_that_may_not_move_has_nothing_to_choose(setting: Setting) -> None:
    found = _reranked(setting.walker("ssm", 6, 1, 12), 3).candidates(setting.episodes)
    assert bool((found.confidence == 0).all())
    assert found.best(0.5).viewpoint.squeeze(1).tolist() == setting.episodes.start.tolist()


def test_everything_walked_is_counted_whatever_the_batch(agent: TrainedAgent, setting: Setting) -> None:
    world, episodes, together = setting.world, setting.episodes, _reranked(agent, 4)
    answer, walker = together.walk(episodes), _reranked(agent, 4)
    walks = walk_split(walker, episodes, batch_size=5)
    assert list(map(places_of, walks.viewpoint)) == walks_of(answer)
    assert torch.equal(walks.jumps, answer.jumps)
    each = path_length(world, together.candidates(episodes).rollout.walked).view(4, len(episodes))
    torch.testing.assert_close(walker.metres, each.sum(dim=0))
    measured, shortest = walks.measured(world), world.geodesic(episodes.start, episodes.goal)
    assert float(walker.metres.mean()) > float(measured.tl.mean()), "the others walked, too"
    expected = measured.sr * shortest / torch.maximum(shortest, walker.metres)
    torch.testing.assert_close(walker.spl(walks, world), expected)


REFUSED: list[tuple[str, Callable[[Setting], object]]] = [
    ("the number of candidates must be 1 or more, got 0", lambda _: Reranking(candidates=0)),
    (r"the speaker's weight must be in \[0, 1\], got 1.5", lambda _: Reranking(weight=1.5)),
    (r"the speaker's weight must be in \[0, 1\], got nan", lambda _: Reranking(weight=float("nan"))),
    ("the seed of the candidates must be 0 or more, got -1", lambda _: Reranking(seed=-1)),
    (
        "the score of a candidate route is not a finite number; look",
        lambda setting: _reranked(setting.walker("ssm"), 2, Constant(torch.nan)).walk(setting.episodes),
    ),
    (
        r"the speaker's weight must be in \[0, 1\], got 1.5",
        lambda setting: PragmaticSearch(setting.walker("fast-long"), Constant(0.0), 1.5),
    ),
    *(
        (
            "no routes to choose among; it needs the setting search",
            lambda setting, name=name: PragmaticSearch(setting.walker(name), Constant(0.0), 0.5),
        )
        for name in ("fast", "basic")
    ),
    (
        "a score of decision 'final' is not a finite number",
        lambda setting: PragmaticSearch(setting.walker("fast-long"), Constant(torch.nan), 0.5).walk(
            setting.episodes
        ),
    ),
]


@pytest.mark.parametrize(("message", "made"), REFUSED)
def test_what_cannot_be_ranked_is_refused(
    message: str, made: Callable[[Setting], object], setting: Setting
) -> None:
    with pytest.raises((SettingError, NotFiniteError), match=message):
        made(setting)


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9), min_size=1, max_size=4))
def test_a_route_has_no_loop_and_only_hops_of_its_walk(walks: list[list[int]]) -> None:
    steps = max(len(walk) for walk in walks)
    walked = torch.tensor([walk + [NONE] * (steps - len(walk)) for walk in walks])
    for walk, row in zip(walks, reranking.without_detours(walked), strict=True):
        route = places_of(row)
        assert row.tolist()[: len(route)] == route, "padding comes last"
        assert (route[0], route[-1]) == (walk[0], walk[-1])
        assert len(set(route)) == len(route)
        assert set(pairwise(route)) <= set(pairwise(walk))
        if len(set(walk)) == len(walk):
            assert route == walk


# Pragmatic search: the routes of one long search


def _searching(setting: Setting, name: str) -> TrainedAgent:
    return setting.walker(name, 5, 60, 40)


@pytest.fixture(scope="module")
def speaker(setting: Setting) -> Speaker:
    torch.manual_seed(3)
    config = SpeakerConfig(word_width=8, width=12)
    network = SpeakerNetwork(config, len(setting.vocabulary), setting.environment.width)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return Speaker(network, setting.environment, setting.vocabulary, max_words=40)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("routes_at_once", [3, 512])
def test_a_speaker_chooses_where_a_search_ends(
    name: str, routes_at_once: int, setting: Setting, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: every place that was entered is the end of a route, told to the speaker by itself."""
    monkeypatch.setattr(reranking, "_ROUTES_AT_ONCE", routes_at_once)
    weight, moved, alone = 0.6, 0, 0
    walk, episodes = Walk(), setting.episodes
    rollout = PragmaticSearch(_searching(setting, name), speaker, weight).walk(episodes, watcher=walk)
    memory = walk.space.memory
    ends = {
        episode: int(best)
        for one in walk.answers
        if one.request.type == END
        for episode, best in zip(one.request.episode.tolist(), one.logits.argmax(dim=1), strict=True)
    }
    for number in range(len(episodes)):
        known = places_of(memory.node[number])
        scores = dict(zip(known, memory.columns["scores"][number].tolist(), strict=False))
        routes = dict[int, list[int]]()
        for place, before in zip(known, memory.columns["parent"][number].tolist(), strict=False):
            routes[place] = [*routes.get(round(before[0]), []), place]  # in the order of entering
        heard, own = [], []
        for place, route in routes.items():
            heading, tokens = episodes.heading[number].view(1), speaker.tokens([episodes.texts[number]])
            heard.append(float(speaker.score(torch.tensor([route]), heading, tokens).per_word))
            slots = (
                (here, setting.world.neighbour[here].tolist().index(there)) for here, there in pairwise(route)
            )
            own.append(scores[place][-1] + sum(scores[here][slot] for here, slot in slots))
        theirs, ours = torch.tensor(heard), torch.tensor(own)
        ranks = weight * theirs / theirs.std() + (1 - weight) * ours / ours.std()
        best, walked = known[int(ranks.argmax())], places_of(rollout.walked[number])
        assert walked[-1] == best
        assert known[ends[number]] == best, "a replay shows the scores that decided"
        assert chosen_route(walked) == routes[best], "what the release counts"
        moved += best != known[int(ours.argmax())]
        alone += best != known[int(theirs.argmax())]
    assert moved > 0, "the speaker changed an end"
    assert alone > 0, "and did not decide alone"


@pytest.mark.parametrize("name", SEARCHES)
def test_a_speaker_changes_ends_only_and_of_its_own_episode(
    name: str, setting: Setting, speaker: Speaker
) -> None:
    agent, episodes = _searching(setting, name), setting.episodes
    plain = agent.walk(episodes)
    silent, loud = (PragmaticSearch(agent, speaker, weight) for weight in (0.0, 1.0))
    assert torch.equal(silent.walk(episodes).walked, plain.walked), "without a say it changes nothing"
    heard = loud.walk(episodes).walked
    assert not torch.equal(heard, plain.walked)
    before = plain.decisions[END].step.min()
    assert torch.equal(heard[:, :before], plain.walked[:, :before]), "it searches as before"
    assert torch.equal(loud.walk(episodes, at_once=3).walked, heard), "whatever walks beside it"
    (alone,) = walks_of(loud.walk(episodes.select([4])))
    assert alone == places_of(heard[4])


def test_routes_are_read_off_the_tree_of_a_search() -> None:
    """The second search has one place; nodes that do not exist yet change nothing."""
    viewpoint = torch.tensor([[5, 7, 9, 2, NONE], [4, NONE, NONE, NONE, NONE]])
    came_from = torch.tensor([[NONE, 5, 5, 9, 0], [NONE, 0, 0, 0, 0]])
    row, node = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 3, 0])
    routes = routes_to(viewpoint, came_from, row, node)
    pad = [NONE] * 5
    assert routes.tolist() == [(route + pad)[:5] for route in ([5], [5, 7], [5, 9, 2], [4])]
    assert routes_to(viewpoint, came_from, row[:0], node[:0]).shape == (0, 5)


SCORED = st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=4, max_size=4)


@settings(deadline=None)
@given(st.lists(SCORED, min_size=1, max_size=5))
def test_standardised_scores_ignore_what_is_not_there(rows: list[list[tuple[int, bool]]]) -> None:
    scores = torch.tensor([[score for score, _ in row] for row in rows], dtype=torch.float64)
    exists = torch.tensor([[known for _, known in row] for row in rows])
    exists[:, 0] = True  # a search has visited its start
    found = reranking.standardised(scores, exists)
    for other in (5e3, torch.inf, torch.nan):
        torch.testing.assert_close(found, reranking.standardised(scores.masked_fill(~exists, other), exists))
    for row, known in enumerate(exists):
        own = scores[row][known]
        spread = own.std(unbiased=False) if len(set(own.tolist())) > 1 else torch.inf
        torch.testing.assert_close(found[row][known], (own - own.mean()) / spread)
    assert not found[~exists].any()


@pytest.mark.parametrize(("score", "count"), [(-57.31, 41), (-3.3, 7), (1e-9, 3), (0.0, 2)])
def test_equal_scores_are_0_whatever_they_round_to(score: float, count: int) -> None:
    equal = torch.full((1, count), score)
    assert not reranking.standardised(equal, torch.ones_like(equal, dtype=torch.bool)).any()
