"""Tactical Rewind: the order of the search against a plain one with a priority queue."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import pytest
from torch import Tensor

from scenemem.agents.actions import ActionSpace, LocalActions
from scenemem.agents.rollout import FRONTIER, GLOBAL
from scenemem.agents.search import SearchActions
from scenemem.agents.walker import take_best
from scenemem.simulator.panorama import Pose
from scenemem.world.graph import NONE, World
from scenemem.zoo.fast import FastConfig
from tests.zoo.helpers import Setting

DECISIONS = 6


class _Memory:
    """A watcher that keeps the action space."""

    space: ActionSpace

    def observed(self, _pose: Pose, _active: Tensor, space: ActionSpace, /) -> None:
        self.space = space

    def decided(self, *_: object) -> None:
        pass


@dataclass
class _Plain:
    """The search of one episode: a queue of open ways, a list of places to end at."""

    world: World
    scores: dict[int, list[float]]  # what the follower says at every place, stop last
    mean: bool
    frontier: list[tuple[float, int, int, int]] = field(default_factory=list)  # priority, number, place, way
    route: dict[int, tuple[float, int]] = field(default_factory=dict)  # sum and decisions up to each place

    def _value(self, total: float, depth: int) -> float:
        return total / depth if self.mean else total

    def enter(self, place: int, total: float, depth: int) -> None:
        self.route[place] = total, depth
        for slot, other in enumerate(self.world.neighbour[place].tolist()):
            if other != NONE:
                value = self._value(total + self.scores[place][slot], depth + 1)
                heapq.heappush(self.frontier, (-value, len(self.frontier), place, slot))

    def pop(self) -> tuple[int, int] | None:
        while self.frontier:
            _, _, place, slot = heapq.heappop(self.frontier)
            if int(self.world.neighbour[place, slot]) not in self.route:
                return place, slot
        return None

    def walk(self, start: int, *, long: bool) -> list[int]:
        walk, here = [start], start
        self.enter(start, 0.0, 0)
        for _ in range(DECISIONS):
            scores = self.scores[here]
            best = max(range(len(scores)), key=lambda slot: scores[slot])
            popped: tuple[int, int] | None = None
            if not long:
                if best == len(scores) - 1:
                    return walk
                if int(self.world.neighbour[here, best]) not in self.route:
                    popped = here, best
            popped = popped or self.pop()
            if popped is None:
                break
            place, slot = popped
            walk += self._way(here, place)
            total, depth = self.route[place]
            here = int(self.world.neighbour[place, slot])
            walk.append(here)
            self.enter(here, total + self.scores[place][slot], depth + 1)
        if long:
            ends = {
                place: self._value(total + self.scores[place][-1], depth + 1)
                for place, (total, depth) in self.route.items()
            }
            walk += self._way(here, max(ends, key=lambda place: ends[place]))
        return walk

    def _way(self, source: int, target: int) -> list[int]:
        graph = nx.Graph()
        graph.add_nodes_from(self.route)
        for place in self.route:
            for slot, other in enumerate(self.world.neighbour[place].tolist()):
                if other in self.route:
                    graph.add_edge(place, other, metres=float(self.world.neighbour_length[place, slot]))
        path: list[int] = nx.dijkstra_path(graph, source, target, weight="metres")
        return path[1:]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fast", {}),
        ("fast", {"priority": "log_probabilities", "mean": True}),
        ("fast-as-published", {}),
        ("fast-over-basic", {}),
        ("fast-long", {}),
        ("fast-long", {"mean": True}),
        ("speaker-follower-search", {}),
    ],
)
def test_the_search_walks_as_the_plain_one(name: str, changes: dict[str, Any], setting: Setting) -> None:
    jumps = sum(_compared(name, changes, setting, seed) for seed in range(4))
    assert jumps > 0, "somebody came back"


def _compared(name: str, changes: dict[str, Any], setting: Setting, seed: int) -> int:
    """How many walks came back to a place, after all were compared."""
    agent, watcher = setting.loud_agent(name, seed=seed, **changes), _Memory()
    rollout, _ = setting.walk(agent, take_best, watcher=watcher, max_decisions=DECISIONS)
    memory, world = watcher.space.memory, setting.world
    config: Any = agent.config
    assert memory is not None
    jumps = 0
    for episode, start in enumerate(setting.episodes.start.tolist()):
        known = memory.node[episode, : int(memory.count[episode])].tolist()
        rows = memory.columns["scores"][episode].tolist()
        scores = {place: rows[node] for node, place in enumerate(known)}
        plain = _Plain(world, scores, config.mean)
        expected = plain.walk(start, long=config.search == "long")
        walked = [place for place in rollout.walked[episode].tolist() if place != NONE]
        assert walked == expected
        jumps += len(set(walked)) < len(walked)
    if config.search == "long":
        assert rollout.decisions.keys() == {GLOBAL, FRONTIER}
    return jumps


def test_it_learns_as_a_local_agent(setting: Setting) -> None:
    for name in ("fast", "fast-long", "fast-over-basic"):
        agent = setting.loud_agent(name)
        assert type(agent.action_space(setting.world, 2, 5, learning=True)) is LocalActions
        assert type(agent.action_space(setting.world, 2, 5)) is SearchActions
    without = setting.loud_agent("fast", search="none")
    assert type(without.action_space(setting.world, 2, 5)) is LocalActions
    assert FastConfig().search == "none"


def test_a_search_with_a_basic_agent_has_its_weights(setting: Setting) -> None:
    """So that it can begin with those of a trained one."""
    searching, basic = setting.loud_agent("fast-over-basic"), setting.loud_agent("basic")
    assert searching.state_dict().keys() == basic.state_dict().keys()
