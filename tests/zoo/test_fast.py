"""Tactical Rewind: the order of the search against a plain one with a priority queue."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace, LocalActions
from scenemem.agents.agent import DecisionPoint
from scenemem.agents.rollout import ACTION, GLOBAL, Outputs
from scenemem.agents.walker import take_best
from scenemem.simulator.panorama import Pose
from scenemem.world.graph import NONE, World
from scenemem.zoo.fast import Fast, FastConfig
from scenemem.zoo.rank_pairs import rank_pairs, walked_routes
from scenemem.zoo.search import END, SearchActions
from tests.zoo.helpers import Setting, roam

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
        assert rollout.decisions.keys() == {GLOBAL, END}
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


# the re-ranker


def test_a_fresh_re_ranker_is_the_sum_of_logits(setting: Setting) -> None:
    plain, ranked = (setting.loud_agent(name, seed=2) for name in ("fast-long", "fast-long-reranked"))
    assert isinstance(ranked, Fast)
    ranked.load_state_dict({**plain.state_dict(), "rank.weight": torch.eye(6)[1:2]})
    walks = [setting.walk(agent, take_best, max_decisions=DECISIONS)[0].walked for agent in (plain, ranked)]
    assert torch.equal(*walks)


def test_the_re_ranker_reads_the_numbers_of_every_route(setting: Setting) -> None:
    """Those of a search, and those of a local walk that it learns from, are the same for the same route."""
    agent, watcher = setting.loud_agent("fast-long-reranked"), _Memory()
    assert isinstance(agent, Fast)
    found: list[tuple[Tensor, Tensor]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent, "rank_ends", lambda point, totals: _ranked(agent, point, found, totals))
        setting.walk(agent, take_best, watcher=watcher, max_decisions=3)
    memory = watcher.space.memory
    assert memory is not None
    rows = [row for episodes, numbers in found for row in zip(episodes.tolist(), numbers, strict=True)]
    for episode, numbers in rows:
        known = min(int(memory.count[episode]), len(numbers))
        scores = memory.columns["scores"][episode]
        log_p = scores.log_softmax(dim=-1)
        parent = memory.columns["parent"][episode, :, 0].round().long().tolist()
        place = memory.node[episode].tolist()
        for node in range(known):
            sums, depth, at = [float(scores[node, -1]), float(log_p[node, -1])], 0, node
            while parent[at] != NONE:
                above = place.index(parent[at])
                slot = setting.world.neighbour[place[above]].tolist().index(place[at])
                sums = [sums[0] + float(scores[above, slot]), sums[1] + float(log_p[above, slot])]
                depth, at = depth + 1, above
            expected = [depth, sums[0], sums[0] / (depth + 1), sums[1], sums[1] / (depth + 1)]
            expected.append(float(memory.columns["progress"][episode, node, 0]))
            assert numbers[node].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-3)


def _ranked(agent: Fast, point: DecisionPoint, found: list[tuple[Tensor, Tensor]], totals: Tensor) -> Tensor:
    known = point.memory().viewpoint != NONE  # nodes that are not known yet say nothing
    if bool(known.all()):
        found.append((point.observations.episode[point.row], agent.route_numbers(point)))
    return totals


def test_local_walks_have_the_same_numbers(setting: Setting) -> None:
    agent = setting.loud_agent("fast-long-reranked")
    rollout, log = setting.walk(agent, roam(), learning=True)
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    table, logits = rollout.decisions[ACTION], outputs.logits[ACTION].detach()
    numbers = walked_routes(rollout, logits, outputs.heads["progress"].detach())
    log_p = logits.log_softmax(dim=-1)
    along: dict[int, list[float]] = {}
    for row in table.order.argsort(stable=True).tolist():
        episode, step = int(table.episode[row]), int(table.step[row])
        before = along.setdefault(episode, [0.0, 0.0])
        sums = [before[0] + float(logits[row, -1]), before[1] + float(log_p[row, -1])]
        expected = [step, sums[0], sums[0] / (step + 1), sums[1], sums[1] / (step + 1)]
        assert numbers[episode, step, :5].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-3)
        choice = int(table.choice[row])
        along[episode] = [before[0] + float(logits[row, choice]), before[1] + float(log_p[row, choice])]


def test_places_at_the_goal_rank_above_others(setting: Setting) -> None:
    rollout, _ = setting.walk(setting.loud_agent("fast-long-reranked"), roam(), learning=True)
    rank = torch.randn(rollout.alive.shape, generator=torch.Generator().manual_seed(1))
    found = rank_pairs(rollout, Outputs({}, {"rank": rank}), setting.context(rollout))
    table, losses = rollout.decisions[ACTION], []
    for episode in range(len(rank)):
        steps = table.step[table.episode == episode].tolist()
        goal = setting.episodes.goal[episode]
        near = {
            step: float(setting.world.geodesic(rollout.viewpoint[episode, step], goal)) < 3 for step in steps
        }
        losses += [
            max(0.0, 1 - float(rank[episode, one]) + float(rank[episode, other]))
            for one in steps
            for other in steps
            if near[one] and not near[other]
        ]
    assert losses
    assert float(found) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
