"""Pragmatic search: a speaker helps an agent that searches to choose which route is the answer."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.agents.agent import Agent
from scenemem.agents.walker import TrainedAgent, WalkConfig
from scenemem.errors import NotFiniteError, SettingError
from scenemem.learning.speaker import Speaker
from scenemem.models.speaker import SpeakerConfig, SpeakerNetwork
from scenemem.world.graph import NONE
from scenemem.zoo import reranking
from scenemem.zoo.reranking import PragmaticSearch, searches, standardised
from scenemem.zoo.search import END, routes_to
from scenemem.zoo.speaker_follower import chosen_route
from tests.zoo.helpers import Constant, Setting, Walk, places_of

SEARCHES = ("speaker-follower-search", "fast-long")


def _agent(setting: Setting, name: str, seed: int = 4) -> TrainedAgent:
    limits = WalkConfig(max_decisions=5, max_steps=60, max_words=40)
    return TrainedAgent(setting.loud(Agent, name, seed=seed), setting.environment, setting.vocabulary, limits)


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
    rollout = PragmaticSearch(_agent(setting, name), speaker, weight).walk(episodes, watcher=walk)
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
        best = known[int(ranks.argmax())]
        walked = places_of(rollout.walked[number])
        assert walked[-1] == best
        assert known[ends[number]] == best, "a replay shows the scores that decided"
        assert chosen_route(walked) == routes[best], "what the release counts"
        moved += best != known[int(ours.argmax())]
        alone += best != known[int(theirs.argmax())]
    assert moved > 0, "the speaker changed an end"
    assert alone > 0, "and did not decide alone"


@pytest.mark.parametrize("name", SEARCHES)
def test_without_a_say_the_speaker_changes_nothing(name: str, setting: Setting, speaker: Speaker) -> None:
    agent = _agent(setting, name)
    plain = agent.walk(setting.episodes)
    silent = PragmaticSearch(agent, speaker, 0.0).walk(setting.episodes)
    assert torch.equal(silent.walked, plain.walked)
    loud = PragmaticSearch(agent, speaker, 1.0).walk(setting.episodes)
    assert not torch.equal(loud.walked, plain.walked)
    before = plain.decisions[END].step.min()
    assert torch.equal(loud.walked[:, :before], plain.walked[:, :before]), "it searches as before"


def test_an_episode_walks_alike_whatever_walks_beside_it(setting: Setting, speaker: Speaker) -> None:
    """Instructions belong to episodes, however many walk at once, and in whatever order they end."""
    agent = PragmaticSearch(_agent(setting, SEARCHES[0]), speaker, 0.8)
    whole = agent.walk(setting.episodes).walked
    few = agent.walk(setting.episodes, at_once=3).walked
    assert torch.equal(few, whole)
    for row in range(0, len(setting.episodes), 3):
        one = agent.walk(setting.episodes.select([row])).walked[0]
        assert torch.equal(one, whole[row, : len(one)])
        assert not (whole[row, len(one) :] != NONE).any()


def test_only_a_long_search_has_routes_to_choose_among(setting: Setting, speaker: Speaker) -> None:
    for name, expected in (("fast-long", True), ("fast", False), ("basic", False)):
        agent = _agent(setting, name)
        assert searches(agent) is expected
        if not expected:
            with pytest.raises(SettingError, match="no routes to choose among; it needs the setting search"):
                PragmaticSearch(agent, speaker, 0.5)
    with pytest.raises(SettingError, match=r"the speaker's weight must be in \[0, 1\], got 1.5"):
        PragmaticSearch(_agent(setting, "fast-long"), speaker, 1.5)
    with pytest.raises(NotFiniteError, match="a score of decision 'final' is not a finite number"):
        PragmaticSearch(_agent(setting, "fast-long"), Constant(torch.nan), 0.5).walk(setting.episodes)


def test_routes_are_read_off_the_tree_of_a_search() -> None:
    """The second search has one place; nodes that do not exist yet change nothing."""
    viewpoint = torch.tensor([[5, 7, 9, 2, NONE], [4, NONE, NONE, NONE, NONE]])
    came_from = torch.tensor([[NONE, 5, 5, 9, 0], [NONE, 0, 0, 0, 0]])
    row, node = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 3, 0])
    pad = [NONE] * 5
    routes = [[5], [5, 7], [5, 9, 2], [4]]
    expected = [(route + pad)[:5] for route in routes]
    assert routes_to(viewpoint, came_from, row, node).tolist() == expected
    assert routes_to(viewpoint, came_from, row[:0], node[:0]).shape == (0, 5)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(-9, 9), st.booleans()), min_size=4, max_size=4), min_size=1, max_size=5
    )
)
def test_standardised_scores_keep_their_order_and_ignore_what_is_not_there(
    rows: list[list[tuple[int, bool]]],
) -> None:
    scores = torch.tensor([[score for score, _ in row] for row in rows], dtype=torch.float64)
    exists = torch.tensor([[known for _, known in row] for row in rows])
    exists[:, 0] = True  # a search has visited its start
    found = standardised(scores, exists)
    for other in (5e3, torch.inf, torch.nan):
        torch.testing.assert_close(found, standardised(scores.masked_fill(~exists, other), exists))
    for row, known in enumerate(exists):
        own, score = found[row][known], scores[row][known]
        assert float(own.mean()) == pytest.approx(0.0, abs=1e-5)
        spread = 1.0 if len(set(score.tolist())) > 1 else 0.0
        assert float(own.std(unbiased=False)) == pytest.approx(spread, abs=1e-5)
        assert own.argsort(stable=True).tolist() == score.argsort(stable=True).tolist()
    assert not found[~exists].any()


@pytest.mark.parametrize(("score", "count"), [(-57.31, 41), (-3.3, 7), (1e-9, 3), (0.0, 2)])
def test_equal_scores_are_0_whatever_they_round_to(score: float, count: int) -> None:
    equal = torch.full((1, count), score)
    assert not standardised(equal, torch.ones_like(equal, dtype=torch.bool)).any()
