"""Self-Monitoring, Regretful and Tactical Rewind: progress, marks, and searches against plain ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import Agent, LocalActions
from scenemem.agents.rollout import ACTION, GLOBAL, DecisionRequest
from scenemem.agents.walker import collect, take_best
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo import objectives
from scenemem.zoo.fast import FastConfig
from scenemem.zoo.panoramic import ProgressMonitor, candidate_actions, with_stop_option
from scenemem.zoo.regretful import MARKS, Regretful, RememberingActions
from scenemem.zoo.search import END, SearchActions
from scenemem.zoo.self_monitoring import SelfMonitoring
from tests.zoo.helpers import Setting, places_of, roam, way_over


class _First:
    """A policy without a network: always the first option."""

    def observe(self, *_: object) -> None:
        pass

    def decide(self, request: DecisionRequest, *_: object) -> tuple[Tensor, None]:
        return request.options.int().argmax(dim=1), None


# Self-Monitoring


def test_progress_is_the_share_of_the_way_in_metres_or_hops(world: World, episodes: EpisodeSet) -> None:
    metres = torch.tensor([[10.0, 5.0, 12.0, 3.0], [2.0, 4.0, 1.0, 3.1]])
    expected = torch.tensor([[0.0, 0.5, -0.2, 1.0], [1.0, -1.0, 1.0, -0.55]])
    torch.testing.assert_close(objectives.metres_done(metres), expected)
    hops = torch.tensor([[4, 3, 5, 0]])
    torch.testing.assert_close(objectives.hops_done(hops), torch.tensor([[0.0, 0.25, -0.25, 1.0]]))
    # the paths of R2R are shortest paths
    found = world.hops(episodes.start, episodes.goal)
    assert found.tolist() == (episodes.path_length - 1).tolist()


@pytest.mark.parametrize("first", [1, 0], ids=["metres, without the first step", "hops"])
def test_errors_of_progress_are_summed_over_steps_and_averaged_over_episodes(
    first: int, setting: Setting
) -> None:
    rollout = setting.walk(setting.loud(SelfMonitoring, "self-monitoring"), roam(1)).rollout
    goal, world, expected = setting.episodes.goal.unsqueeze(1), setting.world, 0.0
    target, loss = objectives.hops_done(world.hops(rollout.viewpoint, goal)), objectives.progress_in_hops
    if first:
        metres = world.geodesic(rollout.viewpoint, goal)
        target, loss = objectives.metres_done(metres), objectives.progress_in_metres
    for episode, length in enumerate(rollout.length.tolist()):
        error = rollout.heads["progress"][episode, first:length] - target[episode, first:length]
        expected += float(error.square().sum().detach()) / len(goal)
    assert float(loss(rollout, setting.context(rollout)).detach()) == pytest.approx(expected, rel=1e-4)


def test_the_monitor_reads_padded_words_alike() -> None:
    torch.manual_seed(0)
    monitor = ProgressMonitor(6, 5, words=9)
    attention, hidden, seen, cell = torch.rand(4, 7), torch.randn(4, 6), torch.randn(4, 5), torch.randn(4, 6)
    padded = torch.nn.functional.pad(attention, (0, 2))
    gate = torch.sigmoid(monitor.gate(torch.cat([hidden, seen], 1))) * torch.tanh(cell)
    expected = torch.tanh(monitor.score(torch.cat([padded, gate], 1))).squeeze(1)
    for words in (attention, padded):
        torch.testing.assert_close(monitor(words, hidden, seen, cell), expected)
    with pytest.raises(ValueError, match=r"built for 9 words, got 10; set `model\.monitor_words` to 10"):
        monitor(torch.rand(4, 10), hidden, seen, cell)


@torch.no_grad()
@pytest.mark.parametrize("name", ["self-monitoring", "self-monitoring-as-published"])
def test_only_the_published_core_drops_embedded_actions(name: str, setting: Setting) -> None:
    agent = setting.loud(SelfMonitoring, name, dropout=0.5).train()
    seen = setting.walk(agent, roam()).seen[0]
    actions = candidate_actions(seen.candidates, seen.feature_mask)
    expected = agent.embed(actions) if name == "self-monitoring" else agent.updater.embed(actions)
    if name != "self-monitoring":
        expected = expected * seen.mask("embedded_action").unsqueeze(1)
    options = with_stop_option(seen.candidates.mask)
    torch.testing.assert_close(agent.embedded(seen)[options], expected[options])


@pytest.mark.parametrize("name", ["self-monitoring", "self-monitoring-as-published", "regretful"])
def test_words_progress_and_regret_are_shown(name: str, setting: Setting) -> None:
    walk = setting.walk(setting.loud(SelfMonitoring, name), roam())
    first, second = (walk.answers[step].explanation for step in (0, 1))
    progress = first.numbers["progress"]
    torch.testing.assert_close(progress, walk.heads["progress"][:, 0])
    torch.testing.assert_close(first.words["perception"].sum(1), torch.ones(len(setting.episodes)))
    assert -1 < float(progress.min()) < float(progress.max()) < 1
    regret = second.numbers.get("regret")
    assert (regret is not None) == (name == "regretful")
    assert regret is None or 0 < float(regret.min()) < float(regret.max()) < 1


# Regretful


@torch.no_grad()
@pytest.mark.parametrize("name", ["regretful", "regretful-as-published"])
def test_scores_are_those_of_the_equations(name: str, setting: Setting) -> None:
    """One decision after the other, with plain loops over the walk."""
    agent = setting.loud(Regretful, name)
    walk = setting.walk(agent, roam(1), learning=True)
    table, progress, backs = walk.rollout.decisions[ACTION], walk.heads["progress"], 0
    for row in range(0, len(table.episode), 7):
        episode, step = int(table.episode[row]), int(table.step[row])
        seen, own = walk.at(episode, step)
        embedded, query = agent.embedded(seen)[own], agent.query(seen)[own]
        walked = walk.rollout.viewpoint[episode, : step + 1].tolist()
        made = progress[episode, : step + 1].tolist()
        marks = dict(zip(walked, made, strict=True))
        places = setting.world.neighbour[walked[-1]].tolist()
        back = places.index(walked[-2]) if step else len(places)
        risen = made[-1] - made[-2] if step else made[-1]
        weights = agent.regret(torch.tensor([risen])).softmax(0)
        move = agent.move(weights[0] * embedded[back] + weights[1] * query)
        for option in table.options[row].nonzero().squeeze(1).tolist():
            mark = 0.0 if option == len(places) else marks.get(places[option], 1.0)
            whole = torch.cat([embedded[option], torch.full((MARKS,), made[-1] - mark)])
            assert float(table.logits[row, option]) == pytest.approx(float(whole @ move), abs=1e-3)
        backs += len(set(walked)) < len(walked)
    assert backs > 3, "walks that came back are among them"


@pytest.mark.parametrize("block", [False, True])
def test_a_step_back_is_not_repeated_at_once(block: bool, world: World, episodes: EpisodeSet) -> None:
    some, again = episodes.select(range(0, len(episodes), 7)), False
    space = RememberingActions(world, len(some), 12, block=block)
    rollout = collect(world, some, space, _First(), max_steps=40)  # back and forth
    table = rollout.decisions[ACTION]
    for row, (episode, step) in enumerate(zip(table.episode.tolist(), table.step.tolist(), strict=True)):
        walk = rollout.viewpoint[episode].tolist()
        came_back = step >= 2 and walk[step - 2] == walk[step]
        blocked = walk[step - 1] if block and came_back else NONE
        expected = [place not in (NONE, blocked) for place in world.neighbour[walk[step]].tolist()]
        assert table.options[row, :-1].tolist() == expected
        again |= came_back and step >= 3 and walk[step - 3] == walk[step - 1]
    assert again != block


# Tactical Rewind: the search

DECISIONS = 6


def _searched(world: World, scores: dict[int, list[float]], start: int, *, long: bool) -> list[int]:
    """The walk of one search.  scores: the follower's at every place, stop last"""
    walk, here = [start], start
    route = {start: 0.0}  # the sum up to each place

    def value(place: int, slot: int) -> float:
        return route[place] + scores[place][slot]

    for _ in range(DECISIONS):
        frontier = {
            (place, slot): value(place, slot)
            for place in route
            for slot, other in enumerate(places_of(world.neighbour[place]))
            if other not in route
        }
        greedy = here, max(range(len(scores[here])), key=lambda slot: scores[here][slot])
        if not long and greedy[1] == len(scores[here]) - 1:
            return walk
        if not frontier:
            break
        place, slot = max(frontier, key=lambda way: frontier[way])
        if not long and greedy in frontier:
            place, slot = greedy
        walk += way_over(world, route, here, place)
        here = int(world.neighbour[place, slot])
        walk.append(here)
        route[here] = value(place, slot)
    return walk + (
        way_over(world, route, here, max(route, key=lambda place: value(place, -1))) if long else []
    )


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fast", {}),
        ("fast", {"priority": "log_probabilities"}),
        ("fast-as-published", {}),
        ("fast-over-basic", {}),
        ("fast-long", {}),
        ("speaker-follower-search", {}),
    ],
)
def test_the_search_walks_as_the_plain_one(name: str, changes: dict[str, Any], setting: Setting) -> None:
    jumps = 0
    for seed in range(4):
        agent = setting.loud(Agent, name, seed=seed, **changes)
        walk = setting.walk(agent, take_best, max_decisions=DECISIONS)
        memory, long = walk.space.memory, agent.config.search == "long"
        for episode, start in enumerate(setting.episodes.start.tolist()):
            rows = memory.columns["scores"][episode].tolist()
            scores = dict(zip(places_of(memory.node[episode]), rows, strict=False))
            walked = places_of(walk.rollout.walked[episode])
            assert walked == _searched(setting.world, scores, start, long=long)
            jumps += len(set(walked)) < len(walked)
        assert not long or walk.rollout.decisions.keys() == {GLOBAL, END}
    assert jumps > 0, "some walks came back"


@pytest.mark.parametrize("name", ["fast", "fast-long", "fast-over-basic"])
def test_it_learns_as_a_local_agent(name: str, setting: Setting) -> None:
    agent, without = setting.loud(Agent, name), setting.loud(Agent, name, search="none")
    assert type(agent.action_space(setting.world, 2, 5, learning=True)) is LocalActions
    assert type(agent.action_space(setting.world, 2, 5)) is SearchActions
    assert type(without.action_space(setting.world, 2, 5)) is LocalActions
    assert FastConfig().search == "none"
    if name == "fast-over-basic":  # it can begin with the weights of a trained one
        assert agent.state_dict().keys() == setting.loud(Agent, "basic").state_dict().keys()
