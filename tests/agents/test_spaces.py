from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest
import torch
from scenemem.agents.collect import collect
from scenemem.agents.spaces import ActionSpace, AnywhereSpace, FrontierSpace, LocalSpace
from torch import Tensor

from scenemem.learning.objectives import ClosestToGoal
from scenemem.agents.rollout import Kind, Question, Rollout
from scenemem.formats.folder import DataFolder
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import World

ROUNDS = 6


@pytest.fixture(scope="module")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity")


@pytest.fixture(scope="module")
def episodes(tiny_data: Path, world: World) -> EpisodeSet:
    return load_split(DataFolder(tiny_data), world, "r2r", "train")


class Wanderer:
    """Answers at random; with ``stops=False`` it stops only when there is nothing else to do."""

    def __init__(self, seed: int = 0, *, stops: bool = True) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._stops = stops
        self.observed: list[int] = []

    def observe(self, _pose: Pose, lanes: Tensor, _space: ActionSpace, /) -> None:
        self.observed.extend(lanes.tolist())

    def answer(self, question: Question, _label: Tensor, _pose: Pose, _space: ActionSpace, /) -> Tensor:
        wish = question.options.double()
        if question.stop is not None and not self._stops:
            wish[:, question.stop] = 1e-30
        return torch.multinomial(wish, 1, generator=self._random).squeeze(1)


def _wander(
    world: World, episodes: EpisodeSet, space: ActionSpace, *, seed: int = 0, stops: bool = True
) -> Rollout:
    return collect(world, episodes, space, Wanderer(seed, stops=stops), max_ticks=200)


@dataclass(frozen=True)
class Moment:
    """One observation of one lane and the decisions taken there."""

    here: int
    walked: list[int]  # all viewpoints so far
    then: list[int]  # the viewpoints that follow
    decided: dict[Kind, tuple[list[int], int]]  # options and choice

    @property
    def visited(self) -> list[int]:
        return list(dict.fromkeys(self.walked))


def _moments(rollout: Rollout) -> Iterator[Moment]:
    decided: dict[tuple[int, int], dict[Kind, tuple[list[int], int]]] = {}
    for kind, table in rollout.decisions.items():
        for lane, tick, options, choice in zip(
            table.lane.tolist(), table.tick.tolist(), table.options, table.choice.tolist(), strict=True
        ):
            decided.setdefault((lane, tick), {})[kind] = (options.nonzero().squeeze(1).tolist(), choice)
    for lane, ticks in enumerate(rollout.ticks.tolist()):
        walk = rollout.viewpoint[lane, :ticks].tolist()
        for tick in range(ticks):
            yield Moment(walk[tick], walk[: tick + 1], walk[tick + 1 :], decided.get((lane, tick), {}))


def _known_graph(world: World, visited: list[int]) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(visited)
    for here in visited:
        for slot, there in enumerate(world.neighbour[here].tolist()):
            if there in graph:
                graph.add_edge(here, there, metres=float(world.neighbour_length[here, slot]))
    return graph


def _open_slots(world: World, place: int, visited: list[int]) -> list[int]:
    neighbours = world.neighbour[place].tolist()
    return [slot for slot, there in enumerate(neighbours) if there >= 0 and there not in visited]


def _shortest_way(world: World, moment: Moment, target: int) -> list[int]:
    """The places the lane goes through until it is at ``target``, checked to be a shortest known way."""
    known = _known_graph(world, moment.visited)
    coming = [moment.here, *moment.then]
    way = coming[: coming.index(target) + 1]
    shortest = nx.shortest_path_length(known, moment.here, target, weight="metres")
    assert nx.path_weight(known, way, "metres") == pytest.approx(shortest, rel=1e-6)
    return way


def test_a_local_agent_may_go_to_every_neighbour_or_stop(world: World, episodes: EpisodeSet) -> None:
    rollout = _wander(world, episodes, LocalSpace(world, len(episodes), ROUNDS))
    stop = world.neighbour.shape[1]
    assert rollout.map is None
    for moment in _moments(rollout):
        if "action" not in moment.decided:
            continue
        options, choice = moment.decided["action"]
        assert options == [*range(int(world.degree[moment.here])), stop]
        assert moment.then[:1] == ([] if choice == stop else [int(world.neighbour[moment.here, choice])])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_memory_agent_is_offered_frontiers_and_their_sub_nodes(
    world: World, episodes: EpisodeSet, seed: int
) -> None:
    rollout = _wander(world, episodes, FrontierSpace(world, len(episodes), ROUNDS), seed=seed)
    stop = world.neighbour.shape[1]
    for moment in _moments(rollout):
        visited = moment.visited
        if "frontier" in moment.decided:
            frontiers = [n for n, place in enumerate(visited) if _open_slots(world, place, visited)]
            here = visited.index(moment.here)
            assert moment.decided["frontier"][0] == sorted({*frontiers, here})
            assert len(moment.decided["frontier"][0]) > 1, "who can only stay is not asked"
        if "action" in moment.decided:
            assert moment.decided["action"][0] == [*_open_slots(world, moment.here, visited), stop]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_frontier_is_reached_by_the_shortest_known_way(
    world: World, episodes: EpisodeSet, seed: int
) -> None:
    rollout = _wander(world, episodes, FrontierSpace(world, len(episodes), ROUNDS), seed=seed, stops=False)
    jumps = 0
    for moment in _moments(rollout):
        if "frontier" not in moment.decided:
            continue
        target = moment.visited[moment.decided["frontier"][1]]
        _shortest_way(world, moment, target)
        # whoever stays decides on the spot, whoever walks decides on arrival
        assert ("action" in moment.decided) == (target == moment.here)
        jumps += target != moment.here
    assert jumps > 10


@pytest.mark.parametrize("seed", [0, 1])
def test_any_sub_node_on_the_map_is_reached_in_one_decision(
    world: World, episodes: EpisodeSet, seed: int
) -> None:
    rollout = _wander(world, episodes, AnywhereSpace(world, len(episodes), ROUNDS), seed=seed)
    slots, stop, far = world.neighbour.shape[1], (ROUNDS + 1) * world.neighbour.shape[1], 0
    for moment in _moments(rollout):
        if "anywhere" not in moment.decided:
            continue
        visited = moment.visited
        options, choice = moment.decided["anywhere"]
        open_slots = [(n, k) for n, place in enumerate(visited) for k in _open_slots(world, place, visited)]
        assert options == [*(n * slots + k for n, k in open_slots), stop]
        if choice == stop:
            assert moment.then == []
            continue
        node = visited[choice // slots]
        way = _shortest_way(world, moment, node)
        assert moment.then[len(way) - 1] == int(world.neighbour[node, choice % slots])
        far += len(way) > 2
    assert far > 5


def _spaces(world: World, lanes: int, rounds: int = ROUNDS) -> list[ActionSpace]:
    return [kind(world, lanes, rounds) for kind in (LocalSpace, FrontierSpace, AnywhereSpace)]


def test_stopping_is_always_possible(world: World, episodes: EpisodeSet) -> None:
    for space in _spaces(world, len(episodes)):
        rollout = _wander(world, episodes, space, stops=False)
        for kind, table in rollout.decisions.items():
            if kind != "frontier":
                assert table.options[:, -1].all()
            assert table.options.gather(1, table.choice.unsqueeze(1)).all()


def test_every_hop_is_an_edge_and_is_observed_once(world: World, episodes: EpisodeSet) -> None:
    """Staying adds no observation, so the state is updated once per hop and not otherwise."""
    for space in _spaces(world, len(episodes)):
        policy = Wanderer(3, stops=False)
        rollout = collect(world, episodes, space, policy, max_ticks=200)
        for lane, ticks in enumerate(rollout.ticks.tolist()):
            walk = rollout.viewpoint[lane, :ticks]
            assert int(walk[0]) == int(episodes.start[lane])
            slots = world.slot_of(walk[:-1], walk[1:])
            assert (slots >= 0).all()
            assert torch.equal(rollout.view[lane, 1:ticks], world.neighbour_view[walk[:-1], slots])
            assert policy.observed.count(lane) == ticks
        assert torch.equal(rollout.alive, rollout.alive.cummin(dim=1).values)


def test_lanes_are_cut_off_after_their_rounds(world: World, episodes: EpisodeSet) -> None:
    episodes = episodes.restrict(["grid"])  # without dead ends, so that nobody has to stop
    for space in _spaces(world, len(episodes), rounds=3):
        rollout = _wander(world, episodes, space, stops=False)
        (table,) = (table for kind, table in rollout.decisions.items() if kind != "frontier")
        assert torch.bincount(table.lane).tolist() == [3] * len(episodes)
        assert not rollout.stopped.any()


def test_stopping_ends_a_lane_and_only_that_lane(world: World, episodes: EpisodeSet) -> None:
    for space in _spaces(world, len(episodes)):
        rollout = _wander(world, episodes, space)
        assert rollout.stopped.any()
        for table in rollout.decisions.values():
            lane, tick = table.lane[table.stops], table.tick[table.stops]
            assert torch.equal(tick, rollout.ticks[lane] - 1)
        assert len(set(rollout.ticks.tolist())) > 1


def test_lanes_are_cut_off_in_mid_walk_after_too_many_observations(
    world: World, episodes: EpisodeSet
) -> None:
    episodes = episodes.restrict(["grid"])
    for space in _spaces(world, len(episodes)):
        rollout = collect(world, episodes, space, Wanderer(1, stops=False), max_ticks=4)
        assert rollout.ticks.tolist() == [4] * len(episodes)
        assert not rollout.stopped.any()
        for table in rollout.decisions.values():
            assert int(table.tick.max()) < 3, "nothing is decided that cannot be carried out"


def test_the_map_tells_what_was_known_when(world: World, episodes: EpisodeSet) -> None:
    rollout = _wander(world, episodes, FrontierSpace(world, len(episodes), ROUNDS), stops=False)
    assert rollout.map is not None
    for lane, ticks in enumerate(rollout.ticks.tolist()):
        walk = rollout.viewpoint[lane, :ticks].tolist()
        for tick in range(ticks):
            visited = list(dict.fromkeys(walk[: tick + 1]))
            assert rollout.map.node[lane, : int(rollout.map.count[lane, tick])].tolist() == visited
            assert visited[int(rollout.map.at[lane, tick])] == walk[tick]


def test_moments_are_when_a_lane_decides_lane_after_lane(world: World, episodes: EpisodeSet) -> None:
    """A lane that chooses a frontier and a sub-node at one tick does so at one moment."""
    rollout = _wander(world, episodes, FrontierSpace(world, len(episodes), ROUNDS))
    moments = rollout.moments(["frontier", "action"])
    for kind, table in rollout.decisions.items():
        assert torch.equal(moments.lane[moments.of[kind]], table.lane)
        assert torch.equal(moments.tick[moments.of[kind]], table.tick)
    for lane in range(len(episodes)):
        ticks = {
            tick for table in rollout.decisions.values() for tick in table.tick[table.lane == lane].tolist()
        }
        assert moments.tick[moments.lane == lane].tolist() == sorted(ticks)
        assert moments.seating.tick[moments.lane == lane].tolist() == list(range(len(ticks)))
    assert len(moments.lane) < sum(len(table.lane) for table in rollout.decisions.values())
    alone = rollout.moments(["frontier"])
    assert len(alone.lane) == len(rollout.decisions["frontier"].lane)


def test_distances_before_and_after_are_those_to_the_goal(world: World, episodes: EpisodeSet) -> None:
    for space in _spaces(world, len(episodes)):
        rule = ClosestToGoal(world, episodes.goal)
        rollout = collect(world, episodes, space, Wanderer(2), max_ticks=200, label_rule=rule)
        for kind, table in rollout.decisions.items():
            goal, here = episodes.goal[table.lane], rollout.viewpoint[table.lane, table.tick]
            assert torch.equal(table.before, world.geodesic(here, goal))
            assert torch.equal(table.after[table.stops], table.before[table.stops])
            if kind == "action":
                moved = ~table.stops
                there = world.neighbour[here[moved], table.choice[moved]]
                assert torch.equal(table.after[moved], world.geodesic(there, goal[moved]))
            if kind == "frontier":
                assert rollout.map is not None
                there = rollout.map.node[table.lane, table.choice]
                assert torch.equal(table.after, world.geodesic(there, goal))


def test_without_a_rule_there_are_no_labels_and_goals_may_be_secret(tiny_data: Path, world: World) -> None:
    episodes = load_split(DataFolder(tiny_data), world, "r2r", "test")
    assert not episodes.has_goals
    for space in _spaces(world, len(episodes)):
        rollout = _wander(world, episodes, space)
        for table in rollout.decisions.values():
            assert (table.label == -1).all()
            assert table.before.isnan().all()
            assert table.after.isnan().all()


def test_an_agent_with_nowhere_to_go_can_only_stop(world: World, episodes: EpisodeSet) -> None:
    alone = episodes.select([0])
    alone.start[0] = world.index_of("grid", "g-alone")
    for space in _spaces(world, 1):
        rollout = _wander(world, alone, space, stops=False)
        assert rollout.ticks.tolist() == [1]
        assert rollout.stopped.all()


@pytest.mark.parametrize("kind", [FrontierSpace, AnywhereSpace])
def test_coming_back_restores_where_one_looked_and_what_one_had_seen(
    world: World, episodes: EpisodeSet, kind: type[FrontierSpace | AnywhereSpace]
) -> None:
    space = kind(world, len(episodes), ROUNDS, recalls=True)
    rollout = _wander(world, episodes, space, stops=False)
    plain = _wander(world, episodes, kind(world, len(episodes), ROUNDS), stops=False)
    assert torch.equal(rollout.viewpoint, plain.viewpoint), "random walks do not depend on where one looks"
    ticks = torch.arange(rollout.alive.shape[1]).expand_as(rollout.seen)
    assert torch.equal(plain.seen[plain.alive], ticks[plain.alive])
    came_back = 0
    for lane, count in enumerate(rollout.ticks.tolist()):
        walked = rollout.viewpoint[lane, :count].tolist()
        first = [walked.index(place) for place in walked]
        assert rollout.seen[lane, :count].tolist() == first
        assert rollout.view[lane, :count].tolist() == plain.view[lane, first].tolist()
        came_back += sum(tick != then for tick, then in enumerate(first))
    assert came_back > 10


def test_whoever_comes_back_sees_nothing_new(world: World, episodes: EpisodeSet) -> None:
    known: dict[int, set[int]] = {}

    class Watcher(Wanderer):
        def observe(self, pose: Pose, lanes: Tensor, space: ActionSpace, /) -> None:
            super().observe(pose, lanes, space)
            new = space.newcomers(lanes).tolist()
            places = pose.viewpoint.tolist()
            for lane in lanes.tolist():
                assert (lane in new) == (places[lane] not in known.setdefault(lane, set()))
                known[lane].add(places[lane])

    space = FrontierSpace(world, len(episodes), ROUNDS, recalls=True)
    collect(world, episodes, space, Watcher(1, stops=False), max_ticks=200)


def test_who_revisits_places_may_hop_to_every_neighbour(world: World, episodes: EpisodeSet) -> None:
    """Frontiers stay what they are: nodes that have seen an unvisited place, and here."""
    rollout = _wander(world, episodes, FrontierSpace(world, len(episodes), ROUNDS, revisits=True))
    stop, back = world.neighbour.shape[1], 0
    for moment in _moments(rollout):
        if "frontier" in moment.decided:
            options, _ = moment.decided["frontier"]
            open_nodes = {place for place in moment.visited if _open_slots(world, place, moment.visited)}
            assert {moment.visited[node] for node in options} == open_nodes | {moment.here}
        if "action" in moment.decided:
            options, choice = moment.decided["action"]
            assert options == [*range(int(world.degree[moment.here])), stop]
            back += choice != stop and int(world.neighbour[moment.here, choice]) in moment.visited
    assert back > 5


def test_who_hops_back_sees_anew_and_who_jumps_back_recalls(world: World, episodes: EpisodeSet) -> None:
    space = FrontierSpace(world, len(episodes), ROUNDS, recalls=True, revisits=True)
    rollout = _wander(world, episodes, space, stops=False)
    actions = rollout.decisions["action"]
    hops = {(lane, tick + 1) for lane, tick in zip(actions.lane.tolist(), actions.tick.tolist(), strict=True)}
    anew = recalled = 0
    for lane, count in enumerate(rollout.ticks.tolist()):
        saw: dict[int, int] = {}
        for tick, place in enumerate(rollout.viewpoint[lane, :count].tolist()):
            anew += (lane, tick) in hops and place in saw
            recalled += (lane, tick) not in hops and place in saw
            if (lane, tick) in hops:
                saw[place] = tick
            assert int(rollout.seen[lane, tick]) == saw.setdefault(place, tick)
    assert anew > 5
    assert recalled > 5


def test_every_neighbour_of_a_known_place_can_be_named_by_who_revisits(
    world: World, episodes: EpisodeSet
) -> None:
    rollout = _wander(world, episodes, AnywhereSpace(world, len(episodes), ROUNDS, revisits=True))
    slots = world.neighbour.shape[1]
    for moment in _moments(rollout):
        if "anywhere" in moment.decided:
            options, _ = moment.decided["anywhere"]
            named = {(moment.visited[option // slots], option % slots) for option in options[:-1]}
            known = {(place, slot) for place in moment.visited for slot in range(int(world.degree[place]))}
            assert named == known


@pytest.mark.parametrize("kind", [FrontierSpace, AnywhereSpace])
def test_whoever_has_used_up_its_rounds_goes_to_the_place_it_chooses(
    world: World, episodes: EpisodeSet, kind: type[FrontierSpace | AnywhereSpace]
) -> None:
    assert (~_wander(world, episodes, kind(world, len(episodes), ROUNDS), stops=False).stopped).any()
    rollout = _wander(world, episodes, kind(world, len(episodes), ROUNDS, goes_back=True), stops=False)
    assert rollout.stopped.all(), "nobody is cut off any more"
    last, known = rollout.decisions["last"], rollout.map
    assert known is not None
    assert last.stops.all()
    decided = rollout.decisions["action" if kind is FrontierSpace else "anywhere"]
    went_back = 0
    for lane, tick, choice, options in zip(
        last.lane.tolist(), last.tick.tolist(), last.choice.tolist(), last.options, strict=True
    ):
        assert int((decided.lane == lane).sum()) == ROUNDS
        assert options.nonzero().squeeze(1).tolist() == list(range(int(known.count[lane, tick])))
        end = int(rollout.ticks[lane]) - 1
        assert rollout.viewpoint[lane, end] == known.node[lane, choice]
        steps = rollout.viewpoint[lane, tick : end + 1].tolist()
        assert all(there in world.neighbour[here] for here, there in pairwise(steps))
        went_back += end > tick
    assert went_back > 5
    others = set(range(len(episodes))) - set(last.lane.tolist())
    assert others == set(decided.lane[decided.stops].tolist())


def test_whoever_is_cut_off_on_the_way_to_its_last_place_has_not_stopped(
    world: World, episodes: EpisodeSet
) -> None:
    space = FrontierSpace(world, len(episodes), ROUNDS, goes_back=True)
    rollout = collect(world, episodes, space, Wanderer(stops=False), max_ticks=ROUNDS + 5)
    last, known = rollout.decisions["last"], rollout.map
    assert known is not None
    end = known.at[last.lane, rollout.ticks[last.lane] - 1]
    assert torch.equal(rollout.stopped[last.lane], end == last.choice)
    assert 0 < int(last.stops.sum()) < len(last.stops)
