"""Tactical Rewind: the order of the search against a plain one with a priority queue."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from scenemem.agents.agent import Agent, LocalActions
from scenemem.agents.rollout import ACTION, GLOBAL
from scenemem.agents.walker import take_best
from scenemem.world.graph import NONE, World
from scenemem.zoo.fast import Fast, FastConfig, walked_routes
from scenemem.zoo.objectives import rank_pairs
from scenemem.zoo.search import END, SearchActions
from tests.zoo.helpers import Setting, Walk, places_of, roam, way_over, with_heads

DECISIONS = 6
RERANKED = "fast-long-reranked"


@dataclass
class _Plain:
    """The search of one episode: a queue of open ways, a list of places to end at."""

    world: World
    scores: dict[int, list[float]]  # the follower's at every place, stop last
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
            walk += way_over(self.world, self.route, here, place)
            total, depth = self.route[place]
            here = int(self.world.neighbour[place, slot])
            walk.append(here)
            self.enter(here, total + self.scores[place][slot], depth + 1)
        if long:
            ends = {
                place: self._value(total + self.scores[place][-1], depth + 1)
                for place, (total, depth) in self.route.items()
            }
            walk += way_over(self.world, self.route, here, max(ends, key=lambda place: ends[place]))
        return walk


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
    assert jumps > 0, "some walks came back"


def _compared(name: str, changes: dict[str, Any], setting: Setting, seed: int) -> int:
    """The number of walks that came back to a place, after all were compared."""
    agent = setting.loud(Agent, name, seed=seed, **changes)
    walk = setting.walk(agent, take_best, max_decisions=DECISIONS)
    memory, config, jumps = walk.space.memory, agent.config, 0
    for episode, start in enumerate(setting.episodes.start.tolist()):
        rows = memory.columns["scores"][episode].tolist()
        scores = {place: rows[node] for node, place in enumerate(places_of(memory.node[episode]))}
        expected = _Plain(setting.world, scores, config.mean).walk(start, long=config.search == "long")
        walked = places_of(walk.rollout.walked[episode])
        assert walked == expected
        jumps += len(set(walked)) < len(walked)
    if config.search == "long":
        assert walk.rollout.decisions.keys() == {GLOBAL, END}
    return jumps


@pytest.mark.parametrize("name", ["fast", "fast-long", "fast-over-basic"])
def test_it_learns_as_a_local_agent(name: str, setting: Setting) -> None:
    agent, without = setting.loud(Agent, name), setting.loud(Agent, name, search="none")
    assert type(agent.action_space(setting.world, 2, 5, learning=True)) is LocalActions
    assert type(agent.action_space(setting.world, 2, 5)) is SearchActions
    assert type(without.action_space(setting.world, 2, 5)) is LocalActions
    assert FastConfig().search == "none"


def test_a_search_with_a_basic_agent_has_its_weights(setting: Setting) -> None:
    """So that it can begin with those of a trained one."""
    searching, basic = setting.loud(Agent, "fast-over-basic"), setting.loud(Agent, "basic")
    assert searching.state_dict().keys() == basic.state_dict().keys()


# the re-ranker


def test_a_fresh_re_ranker_is_the_sum_of_logits(setting: Setting) -> None:
    plain, ranked = (setting.loud(Fast, name, seed=2) for name in ("fast-long", RERANKED))
    ranked.load_state_dict({**plain.state_dict(), "rank.weight": torch.eye(6)[1:2]})
    walks = [
        setting.walk(agent, take_best, max_decisions=DECISIONS).rollout.walked for agent in (plain, ranked)
    ]
    assert torch.equal(*walks)


def test_the_re_ranker_reads_the_numbers_of_every_route(setting: Setting) -> None:
    """Those of a search: the sums of scores from the start to every node."""
    agent = setting.loud(Fast, RERANKED)
    point = setting.walk(agent, take_best, max_decisions=3).points[-1]
    graph, compared = point.memory(), 0
    scores, parent, progress = (graph.column(name).detach() for name in ("scores", "parent", "progress"))
    both = torch.stack([scores, scores.log_softmax(dim=-1)], dim=2)  # (R, N, 2, K + 1)
    for row, numbers in enumerate(agent.route_numbers(point).tolist()):
        along: dict[int, tuple[int, int, torch.Tensor]] = {}  # node, hops and sums up to every place
        for node, place in enumerate(places_of(graph.viewpoint[row])):
            hops, sums = 0, torch.zeros(2)
            if (before := round(float(parent[row, node, 0]))) != NONE:
                above, hops, sums = along[before]
                sums = sums + both[row, above, :, setting.world.neighbour[before].tolist().index(place)]
                hops += 1
            along[place] = node, hops, sums
            expected = _numbers(hops, (sums + both[row, node, :, -1]).tolist(), float(progress[row, node, 0]))
            assert numbers[node] == pytest.approx(expected, rel=1e-3, abs=1e-3)
            compared += hops
    assert compared > 0


def _numbers(depth: int, sums: list[float], progress: float) -> list[float]:
    """What the re-ranker reads of a route of some hops with these sums."""
    means = [total / (depth + 1) for total in sums]
    return [depth, sums[0], means[0], sums[1], means[1], progress]


@pytest.fixture(scope="module")
def walk(setting: Setting) -> Walk:
    """A local walk to learn from."""
    return setting.walk(setting.loud(Fast, RERANKED), roam(), learning=True)


def test_local_walks_have_the_same_numbers(walk: Walk) -> None:
    table, progress = walk.rollout.decisions[ACTION], walk.heads["progress"].detach()
    logits = table.logits.detach()
    numbers, along = walked_routes(walk.rollout, logits, progress), dict[int, torch.Tensor]()
    both = torch.stack([logits, logits.log_softmax(dim=-1)], dim=1)  # (M, 2, K + 1)
    for row in table.order.argsort(stable=True).tolist():
        episode, step = int(table.episode[row]), int(table.step[row])
        before = along.get(episode, torch.zeros(2))
        expected = _numbers(step, (before + both[row, :, -1]).tolist(), float(progress[episode, step]))
        assert numbers[episode, step].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-3)
        along[episode] = before + both[row, :, int(table.choice[row])]


def test_places_at_the_goal_rank_above_others(setting: Setting, walk: Walk) -> None:
    rollout = walk.rollout
    rank = torch.randn(rollout.alive.shape, generator=torch.Generator().manual_seed(1))
    found = rank_pairs(with_heads(rollout, rank=rank), setting.context(rollout))
    table, losses = rollout.decisions[ACTION], []
    metres = setting.world.geodesic(rollout.viewpoint, setting.episodes.goal.unsqueeze(1))
    for episode in range(len(rank)):
        steps = table.step[table.episode == episode].tolist()
        near = [step for step in steps if float(metres[episode, step]) < 3]
        losses += [
            max(0.0, 1 - float(rank[episode, one]) + float(rank[episode, other]))
            for one in near
            for other in set(steps) - set(near)
        ]
    assert losses
    assert float(found) == pytest.approx(sum(losses) / len(losses), rel=1e-4)
