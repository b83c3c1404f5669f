"""Self-Monitoring and Regretful: progress, its inference, marks and regret against plain references."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.agents.agent import Arrival
from scenemem.agents.rollout import ACTION
from scenemem.agents.walker import collect
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import Pose, World
from scenemem.zoo.objectives import (
    hops_done,
    metres_done,
    progress_in_hops,
    progress_in_metres,
)
from scenemem.zoo.panoramic import ProgressMonitor
from scenemem.zoo.regretful import MARKS, Regretful, RememberingActions
from scenemem.zoo.search import AcceptActions
from scenemem.zoo.self_monitoring import SelfMonitoring
from tests.zoo.helpers import Noting, Setting, places_of, roam, way_over

# Self-Monitoring


def test_progress_is_the_share_of_the_way_in_metres_or_hops() -> None:
    metres = torch.tensor([[10.0, 5.0, 12.0, 3.0], [2.0, 4.0, 1.0, 3.1]])
    expected = torch.tensor([[0.0, 0.5, -0.2, 1.0], [1.0, -1.0, 1.0, -0.55]])
    torch.testing.assert_close(metres_done(metres), expected)
    hops = torch.tensor([[4, 3, 5, 0]])
    torch.testing.assert_close(hops_done(hops), torch.tensor([[0.0, 0.25, -0.25, 1.0]]))


def test_hops_are_the_edges_of_the_shortest_path(world: World, episodes: EpisodeSet) -> None:
    """R2R paths are shortest paths."""
    found = world.hops(episodes.start, episodes.goal)
    assert found.tolist() == (episodes.path_length - 1).tolist()


@pytest.mark.parametrize("first", [1, 0], ids=["metres, without the first step", "hops"])
def test_errors_of_progress_are_summed_over_steps_and_averaged_over_episodes(
    first: int, setting: Setting
) -> None:
    rollout = setting.walk(setting.loud(SelfMonitoring, "self-monitoring"), roam(1)).rollout
    goal, world, expected = setting.episodes.goal.unsqueeze(1), setting.world, 0.0
    metres, hops = world.geodesic(rollout.viewpoint, goal), world.hops(rollout.viewpoint, goal)
    target, loss = (metres_done(metres), progress_in_metres) if first else (hops_done(hops), progress_in_hops)
    for episode, length in enumerate(rollout.length.tolist()):
        error = rollout.heads["progress"][episode, first:length] - target[episode, first:length]
        expected += float(error.square().sum().detach()) / len(goal)
    assert float(loss(rollout, setting.context(rollout)).detach()) == pytest.approx(expected, rel=1e-4)


def test_the_monitor_reads_padded_words_alike() -> None:
    torch.manual_seed(0)
    monitor = ProgressMonitor(6, 5, words=9)
    attention, hidden, seen, cell = torch.rand(4, 7), torch.randn(4, 6), torch.randn(4, 5), torch.randn(4, 6)
    progress = monitor(attention, hidden, seen, cell)
    padded = torch.nn.functional.pad(attention, (0, 2))
    torch.testing.assert_close(monitor(padded, hidden, seen, cell), progress)
    gate = torch.sigmoid(monitor.gate(torch.cat([hidden, seen], 1))) * torch.tanh(cell)
    expected = torch.tanh(monitor.score(torch.cat([padded, gate], 1))).squeeze(1)
    torch.testing.assert_close(progress, expected)
    with pytest.raises(ValueError, match=r"built for 9 words, got 10; set --model\.monitor-words to 10"):
        monitor(torch.rand(4, 10), hidden, seen, cell)


@pytest.mark.parametrize("name", ["self-monitoring", "self-monitoring-as-published"])
def test_its_words_and_its_progress_are_shown(name: str, setting: Setting) -> None:
    walk = setting.walk(setting.loud(SelfMonitoring, name), roam())
    shown = walk.answers[0].explanation
    progress = shown.numbers["progress"]
    torch.testing.assert_close(progress, walk.heads["progress"][:, 0])
    torch.testing.assert_close(shown.words["perception"].sum(1), torch.ones(len(setting.episodes)))
    assert -1 < float(progress.min()) < float(progress.max()) < 1


# progress inference


class _Table(Noting):
    """A policy with a fixed score for every way and a fixed progress for every place."""

    def __init__(self, scores: Tensor, progress: Tensor) -> None:
        super().__init__(
            lambda request, _: (
                scores[request.viewpoint[:, -1]].masked_fill(~request.options, -torch.inf).argmax(dim=1)
            )
        )
        self._progress = progress

    def observe(self, *seen: Any) -> None:
        pose: Pose
        arrival: Arrival
        pose, arrival, space = seen
        progress = self._progress[pose.viewpoint[arrival.episodes]].unsqueeze(1)
        space.memory.write("progress", progress, arrival.episodes)


def _plain(
    world: World, start: int, scores: Tensor, progress: Tensor, decisions: int, tries: int
) -> list[int]:
    """The same, one episode and one step after the other."""
    walk, base = [start], start
    accepted = float(progress[start])
    for _ in range(decisions):
        tried: list[int] = []
        while True:
            slots = int(world.degree[base])
            options = [slot for slot in range(slots) if slot not in tried] + [scores.shape[1] - 1]
            choice = max(options, key=lambda slot: float(scores[base, slot]))
            if choice == scores.shape[1] - 1:
                return walk
            tried.append(choice)
            place = int(world.neighbour[base, choice])
            walk.append(place)
            if float(progress[place]) > accepted:
                break
            if len(tried) < tries and len(tried) < slots:
                walk.append(base)
                continue
            best = max(tried, key=lambda slot: float(progress[int(world.neighbour[base, slot])]))
            place_of_best = int(world.neighbour[base, best])
            if place_of_best != place:
                walk += way_over(world, set(walk), place, place_of_best)
                place = place_of_best
            break
        base, accepted = place, float(progress[place])
    return walk


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), tries=st.integers(1, 5), decisions=st.integers(1, 5))
def test_progress_inference_walks_as_the_plain_one(
    seed: int, tries: int, decisions: int, world: World, episodes: EpisodeSet
) -> None:
    random = torch.Generator().manual_seed(seed)
    slots = world.neighbour.shape[1]
    scores = torch.rand(len(world.viewpoints), slots + 1, generator=random)
    scores[:, -1] -= 0.3
    progress = torch.rand(len(world.viewpoints), generator=random)
    some = episodes.select(range(0, len(episodes), 9))
    space = AcceptActions(world, len(some), decisions, tries=tries)
    rollout = collect(world, some, space, _Table(scores, progress), max_steps=200)
    for walked, start in zip(rollout.walked, some.start.tolist(), strict=True):
        assert places_of(walked) == _plain(world, start, scores, progress, decisions, tries)


# Regretful


@torch.no_grad()
@pytest.mark.parametrize("name", ["regretful", "regretful-as-published"])
def test_scores_are_those_of_the_equations(name: str, setting: Setting) -> None:
    """One decision after the other, with plain loops over the walk."""
    agent = setting.loud(Regretful, name)
    walk = setting.walk(agent, roam(1), learning=True)
    table, world, progress = walk.rollout.decisions[ACTION], setting.world, walk.heads["progress"]
    checked, backs = 0, 0
    for row in range(0, len(table.episode), 7):
        episode, step = int(table.episode[row]), int(table.step[row])
        seen, own = walk.at(episode, step)
        embedded, query = agent.embedded(seen)[own], agent.query(seen)[own]
        places_walked = walk.rollout.viewpoint[episode, : step + 1].tolist()
        marks = {place: float(progress[episode, t]) for t, place in enumerate(places_walked)}
        now, before = float(progress[episode, step]), float(progress[episode, step - 1]) if step else 0.0
        places = world.neighbour[places_walked[-1]].tolist()
        stop = len(places)
        back = places.index(places_walked[-2]) if step else stop
        weights = agent.regret(torch.tensor([now - before])).softmax(0)
        move = agent.move(weights[0] * embedded[back] + weights[1] * query)
        for option in table.options[row].nonzero().squeeze(1).tolist():
            mark = 0.0 if option == stop else marks.get(places[option], 1.0)
            whole = torch.cat([embedded[option], torch.full((MARKS,), now - mark)])
            assert float(table.logits[row, option]) == pytest.approx(float(whole @ move), abs=1e-3)
            checked += 1
        backs += len(set(places_walked)) < len(places_walked)
    assert checked > 30
    assert backs > 3, "walks that came back are among them"


@pytest.mark.parametrize("block", [False, True])
def test_a_step_back_is_not_repeated_at_once(block: bool, world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 7))
    policy = Noting(lambda request, _: request.options.int().argmax(dim=1))  # back and forth
    space = RememberingActions(world, len(some), 12, block=block)
    rollout = collect(world, some, space, policy, max_steps=40)
    for episode, walk in enumerate(rollout.viewpoint.tolist()):
        for step in range(int(rollout.length[episode]) - 1):
            offered = policy.noted[step][0].options[episode]
            came_back = step >= 2 and walk[step - 2] == walk[step]
            for slot, place in enumerate(world.neighbour[walk[step]].tolist()):
                blocked = block and came_back and place == walk[step - 1]
                assert bool(offered[slot]) == (place != -1 and not blocked)
    oscillates = (rollout.viewpoint[:, 3:] == rollout.viewpoint[:, 1:-2]) & rollout.alive[:, 3:]
    again = oscillates & (rollout.viewpoint[:, 2:-1] == rollout.viewpoint[:, :-3])
    assert bool(again.any()) != block


def test_regret_and_progress_are_shown(setting: Setting) -> None:
    walk = setting.walk(setting.loud(Regretful, "regretful"), roam())
    numbers = walk.answers[1].explanation.numbers
    assert numbers.keys() == {"progress", "regret"}
    assert 0 < float(numbers["regret"].min()) < float(numbers["regret"].max()) < 1
