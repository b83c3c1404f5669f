"""Self-Monitoring: its progress target, its monitor, and progress inference against a plain reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.agents.actions import Arrival
from scenemem.agents.walker import collect
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World
from scenemem.zoo.panoramic import ProgressMonitor
from scenemem.zoo.progress import (
    hops_between,
    hops_done,
    metres_done,
    progress_in_hops,
    progress_in_metres,
    squared_error,
)
from scenemem.zoo.search import AcceptActions
from scenemem.zoo.self_monitoring import SelfMonitoring
from tests.zoo.helpers import Noting, Setting, places_of, roam, way_over, with_heads


def test_progress_is_the_share_of_the_way_in_metres_or_hops() -> None:
    metres = torch.tensor([[10.0, 5.0, 12.0, 3.0], [2.0, 4.0, 1.0, 3.1]])
    expected = torch.tensor([[0.0, 0.5, -0.2, 1.0], [1.0, -1.0, 1.0, -0.55]])
    torch.testing.assert_close(metres_done(metres), expected)
    hops = torch.tensor([[4, 3, 5, 0]])
    torch.testing.assert_close(hops_done(hops), torch.tensor([[0.0, 0.25, -0.25, 1.0]]))


def test_hops_are_the_edges_of_the_shortest_path(world: World, episodes: EpisodeSet) -> None:
    """R2R paths are shortest paths."""
    found = hops_between(world, episodes.start, episodes.goal)
    assert found.tolist() == (episodes.path_length - 1).tolist()


def test_only_counted_steps_are_summed() -> None:
    """As losses of decisions are: over the steps of an episode, then averaged over episodes."""
    progress = torch.tensor([[0.0, 1.0, 5.0], [2.0, 7.0, 7.0]])
    target = torch.tensor([[9.0, 0.0, 3.0], [1.0, 0.0, 0.0]])
    counted = torch.tensor([[False, True, True], [True, False, False]])
    assert float(squared_error(progress, target, counted)) == pytest.approx((1 + 4 + 1) / 2)


def test_progress_in_metres_leaves_out_the_first_step_and_progress_in_hops_does_not(setting: Setting) -> None:
    rollout = setting.walk(setting.loud(SelfMonitoring, "self-monitoring"), roam(1)).rollout
    changed, context = rollout.heads["progress"].clone(), setting.context(rollout)
    changed[:, 0] += 1.0
    for loss, matters in ((progress_in_metres, False), (progress_in_hops, True)):
        before, after = (
            float(loss(found, context).detach()) for found in (rollout, with_heads(rollout, progress=changed))
        )
        assert (abs(before - after) > 0.1) is matters


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
    space = AcceptActions(world, len(some), decisions, column="progress", tries=tries)
    rollout = collect(world, some, space, _Table(scores, progress), max_steps=200)
    for walked, start in zip(rollout.walked, some.start.tolist(), strict=True):
        assert places_of(walked) == _plain(world, start, scores, progress, decisions, tries)
