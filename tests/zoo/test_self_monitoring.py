"""Self-Monitoring: its progress target, its monitor, and progress inference against a plain reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.agents.actions import ActionSpace
from scenemem.agents.rollout import DecisionRequest, Outputs
from scenemem.agents.walker import collect
from scenemem.errors import SettingError
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
from scenemem.zoo.self_monitoring import SelfMonitoring, SelfMonitoringConfig
from tests.zoo.helpers import Setting, roam


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
    agent = setting.loud_agent("self-monitoring")
    rollout, log = setting.walk(agent, roam(1))
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    changed = outputs.heads["progress"].clone()
    changed[:, 0] += 1.0
    other = Outputs(outputs.logits, {**outputs.heads, "progress": changed})
    context = setting.context(rollout)
    for loss, matters in ((progress_in_metres, False), (progress_in_hops, True)):
        before, after = (float(loss(rollout, said, context).detach()) for said in (outputs, other))
        assert (abs(before - after) > 0.1) is matters


def test_the_monitor_reads_padded_words_alike() -> None:
    torch.manual_seed(0)
    monitor = ProgressMonitor(6, 5, words=9)
    attention, hidden, seen, cell = torch.rand(4, 7), torch.randn(4, 6), torch.randn(4, 5), torch.randn(4, 6)
    said = monitor(attention, hidden, seen, cell)
    assert said.shape == (4,)
    torch.testing.assert_close(monitor(attention[:, :5], hidden, seen, cell).shape, said.shape)
    padded = torch.nn.functional.pad(attention, (0, 2))
    torch.testing.assert_close(monitor(padded, hidden, seen, cell), said)
    gate = torch.sigmoid(monitor.gate(torch.cat([hidden, seen], 1))) * torch.tanh(cell)
    expected = torch.tanh(monitor.score(torch.cat([padded, gate], 1))).squeeze(1)
    torch.testing.assert_close(said, expected)
    with pytest.raises(ValueError, match=r"built for 9 words, got 10; set --model\.monitor-words to 10"):
        monitor(torch.rand(4, 10), hidden, seen, cell)


@pytest.mark.parametrize("name", ["self-monitoring", "self-monitoring-as-published"])
def test_its_words_and_its_progress_are_shown(name: str, setting: Setting) -> None:
    agent = setting.loud_agent(name)
    assert isinstance(agent, SelfMonitoring)
    seen: list[dict[str, Tensor]] = []

    class Watcher:
        def observed(self, *_: object) -> None:
            pass

        def decided(self, decided: object, /) -> None:
            explanation = decided.explanation  # type: ignore[attr-defined]
            seen.append({**explanation.words, **explanation.numbers})

    rollout, log = setting.walk(agent, roam(), watcher=Watcher())
    heads = agent.evaluate_actions(rollout, log, setting.environment).heads
    first = seen[0]
    torch.testing.assert_close(first["progress"], heads["progress"][:, 0].detach())
    torch.testing.assert_close(first["perception"].sum(1), torch.ones(len(setting.episodes)))
    assert -1 < float(first["progress"].min()) < float(first["progress"].max()) < 1


# progress inference


class _Table:
    """A policy with a fixed score for every way and a fixed progress for every place."""

    def __init__(self, scores: Tensor, progress: Tensor) -> None:
        self._scores, self._progress = scores, progress

    def observe(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
        assert space.memory is not None
        space.memory.write("progress", self._progress[pose.viewpoint[active]].unsqueeze(1), active)

    def decide(self, request: DecisionRequest, _label: Tensor, pose: Pose, _space: ActionSpace, /) -> Tensor:
        scores = self._scores[pose.viewpoint[request.episode]]
        return scores.masked_fill(~request.options, -torch.inf).argmax(dim=1)


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
                walk += _way(world, set(walk), place, place_of_best)
                place = place_of_best
            break
        base, accepted = place, float(progress[place])
    return walk


def _way(world: World, known: set[int], source: int, target: int) -> list[int]:
    """The shortest way over known places, without its begin."""
    import networkx as nx

    graph = nx.Graph()
    for place in known:
        for slot in range(int(world.degree[place])):
            other = int(world.neighbour[place, slot])
            if other in known:
                graph.add_edge(place, other, metres=float(world.neighbour_length[place, slot]))
    path: list[int] = nx.dijkstra_path(graph, source, target, weight="metres")
    return path[1:]


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
    for walked, start in zip(rollout.walked.tolist(), some.start.tolist(), strict=True):
        expected = _plain(world, start, scores, progress, decisions, tries)
        assert [place for place in walked if place != -1] == expected


def test_going_back_restores_the_state(setting: Setting) -> None:
    """Scored alike again at every place it comes back to: the state there does not depend on the detour."""
    agent = setting.loud_agent("self-monitoring", inference="progress", tries=3)
    rollout, log = setting.walk(agent, roam(3))
    came_back = rollout.state_step != torch.arange(rollout.state_step.shape[1])
    assert bool((came_back & rollout.alive).any())
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    assert all(logits.isfinite().any(dim=1).all() for logits in outputs.logits.values())


def test_impossible_settings_are_refused(world: World) -> None:
    with pytest.raises(SettingError, match="tries must be 1 or more, got 0"):
        SelfMonitoringConfig(tries=0)
    with pytest.raises(SettingError, match="tries must be 1 or more, got 0"):
        AcceptActions(world, 2, 3, column="progress", tries=0)
    with pytest.raises(SettingError, match="action_width must be 1 or more, got -1"):
        SelfMonitoringConfig(action_width=-1)
