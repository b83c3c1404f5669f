from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
import torch
from scenemem.agents.collect import collect
from scenemem.agents.hop_prior import FARTHEST, NEAREST, HopPriorSpace
from scenemem.agents.spaces import ActionSpace
from torch import Tensor

from scenemem.learning.objectives import ClosestToGoal, ReferencePath
from scenemem.agents.rollout import Question, Rollout
from scenemem.formats.folder import DataFolder
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import World


class Wanderer:
    """Chooses any option, but stops only when nothing else is left or ``stops`` says so."""

    def __init__(self, seed: int, stops: float) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._stops = stops

    def observe(self, _pose: Pose, _lanes: Tensor, _space: ActionSpace, /) -> None:
        pass

    def answer(self, question: Question, _label: Tensor, _pose: Pose, _space: ActionSpace, /) -> Tensor:
        wish = question.options.double()
        if question.stop is not None:
            wish[:, question.stop] *= self._stops
        return torch.multinomial(wish + 1e-12 * question.options, 1, generator=self._generator).squeeze(1)


@pytest.fixture(scope="module")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity")


@pytest.fixture(scope="module")
def episodes(tiny_data: Path, world: World) -> EpisodeSet:
    return load_split(DataFolder(tiny_data), world, "r2r", "train")


def _walk(world: World, episodes: EpisodeSet, rounds: int, stops: float) -> tuple[Rollout, HopPriorSpace]:
    space = HopPriorSpace(world, len(episodes), rounds)
    return collect(world, episodes, space, Wanderer(0, stops), max_ticks=200), space


def _hops(world: World, nodes: list[int]) -> dict[int, int]:
    """Hops from the first node over edges between the given ones."""
    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    for here in nodes:
        graph.add_edges_from((here, int(n)) for n in world.neighbour[here] if int(n) in nodes)
    return dict(nx.single_source_shortest_path_length(graph, nodes[0]))


def test_hops_are_counted_on_the_known_graph(world: World, episodes: EpisodeSet) -> None:
    _, space = _walk(world, episodes, rounds=7, stops=0.0)
    lanes = torch.arange(len(episodes))
    counted = space.memory.hops_from_start(lanes)
    for lane in lanes.tolist():
        nodes = space.memory.node[lane, : int(space.memory.count[lane])].tolist()
        expected = _hops(world, nodes)
        assert counted[lane, : len(nodes)].tolist() == [expected[node] for node in nodes]
        assert (counted[lane, len(nodes) :] == -1).all()


def test_stopping_is_offered_only_in_the_ring_or_at_a_dead_end(world: World, episodes: EpisodeSet) -> None:
    rollout, _ = _walk(world, episodes, rounds=7, stops=1.0)
    assert rollout.map is not None
    table = rollout.decisions["action"]
    for row in range(len(table.lane)):
        lane, tick = int(table.lane[row]), int(table.tick[row])
        known = rollout.map.node[lane, : int(rollout.map.count[lane, tick])].tolist()
        hops = _hops(world, known)[int(rollout.viewpoint[lane, tick])]
        nowhere_else = not bool(table.options[row, :-1].any())
        assert bool(table.options[row, -1]) == (NEAREST <= hops <= FARTHEST or nowhere_else)


def test_frontiers_beyond_the_ring_are_dropped(world: World, episodes: EpisodeSet) -> None:
    rollout, _ = _walk(world, episodes, rounds=9, stops=0.0)
    assert rollout.map is not None
    table = rollout.decisions["frontier"]
    for row in range(len(table.lane)):
        lane, tick = int(table.lane[row]), int(table.tick[row])
        known = rollout.map.node[lane, : int(rollout.map.count[lane, tick])].tolist()
        hops = _hops(world, known)
        offered = table.options[row].nonzero().squeeze(1).tolist()
        here = int(rollout.map.at[lane, tick])
        assert all(hops[known[node]] <= FARTHEST or node == here for node in offered)


def test_who_never_stopped_ends_in_the_ring_when_it_knows_one(world: World, episodes: EpisodeSet) -> None:
    rollout, space = _walk(world, episodes, rounds=7, stops=0.0)
    hops = space.memory.hops_from_start(torch.arange(len(episodes)))
    knows_ring = ((hops >= NEAREST) & (hops <= FARTHEST)).any(dim=1)
    assert bool(knows_ring.any())
    final = hops.gather(1, space.memory.here.unsqueeze(1)).squeeze(1)
    cut_off = knows_ring & ~rollout.stopped
    assert bool(cut_off.any())
    assert ((final >= NEAREST) & (final <= FARTHEST))[cut_off].all()


@pytest.mark.parametrize("kind", ["goal", "path"])
def test_what_is_right_is_always_possible(world: World, episodes: EpisodeSet, kind: str) -> None:
    """Where stopping or staying is forbidden, labels name something else; the loss would be infinite."""
    rule = ClosestToGoal(world, episodes.goal) if kind == "goal" else ReferencePath(world, episodes.path)
    forbidden = 0
    for seed in range(4):
        space = HopPriorSpace(world, len(episodes), 8)
        rollout = collect(world, episodes, space, Wanderer(seed, 0.2), max_ticks=200, label_rule=rule)
        for table in rollout.decisions.values():
            assert table.options.gather(1, table.label.unsqueeze(1)).all()
        actions = rollout.decisions["action"]
        forbidden += int((~actions.options[:, -1]).sum())
    assert forbidden > 20
