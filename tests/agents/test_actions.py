"""Action spaces: what may be chosen, and how a choice becomes hops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import (
    ActionSpace,
    FrontierActions,
    GlobalActions,
    HopPrior,
    HopPriorActions,
    HopPriorLocalActions,
    LocalActions,
    LocalMemoryActions,
    MemoryActions,
    WalkOptions,
)
from scenemem.agents.rollout import ACTION, FINAL, FRONTIER, GLOBAL, DecisionRequest, DecisionType, Rollout
from scenemem.agents.walker import collect
from scenemem.learning.objectives import ClosestToGoal, ReferencePath
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World

MAX_DECISIONS = 6


class Wanderer:
    """Decides at random; ``stops`` is how much it likes to, 0 only where there is nothing else to do."""

    def __init__(self, seed: int = 0, *, stops: float = 1.0) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._stops = stops
        self.observed: list[int] = []

    def observe(self, _pose: Pose, active: Tensor, _space: ActionSpace, /) -> None:
        self.observed.extend(active.tolist())

    def decide(self, request: DecisionRequest, _label: Tensor, _pose: Pose, _space: ActionSpace, /) -> Tensor:
        chance = request.options.double()
        if not request.type.over_nodes:
            chance[:, request.stop] *= max(self._stops, 1e-30)
        return torch.multinomial(chance, 1, generator=self._random).squeeze(1)


def _wander(
    world: World, episodes: EpisodeSet, space: ActionSpace, *, seed: int = 0, stops: float = 1.0
) -> Rollout:
    return collect(world, episodes, space, Wanderer(seed, stops=stops), max_steps=200)


@dataclass(frozen=True)
class Visit:
    """One observation of an episode and the decisions taken there."""

    here: int
    walked: list[int]  # all viewpoints so far
    then: list[int]  # the viewpoints that follow
    decided: dict[DecisionType, tuple[list[int], int]]  # options and choice

    @property
    def visited(self) -> list[int]:
        return list(dict.fromkeys(self.walked))


def _visits(rollout: Rollout) -> Iterator[Visit]:
    decided: dict[tuple[int, int], dict[DecisionType, tuple[list[int], int]]] = {}
    for kind, table in rollout.decisions.items():
        for episode, step, options, choice in zip(
            table.episode.tolist(), table.step.tolist(), table.options, table.choice.tolist(), strict=True
        ):
            decided.setdefault((episode, step), {})[kind] = (options.nonzero().squeeze(1).tolist(), choice)
    for episode, length in enumerate(rollout.length.tolist()):
        walk = rollout.viewpoint[episode, :length].tolist()
        for step in range(length):
            yield Visit(walk[step], walk[: step + 1], walk[step + 1 :], decided.get((episode, step), {}))


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


def _shortest_way(world: World, visit: Visit, target: int) -> list[int]:
    """The places the episode goes through until it is at ``target``, checked to be a shortest known way."""
    known = _known_graph(world, visit.visited)
    coming = [visit.here, *visit.then]
    way = coming[: coming.index(target) + 1]
    shortest = nx.shortest_path_length(known, visit.here, target, weight="metres")
    assert nx.path_weight(known, way, "metres") == pytest.approx(shortest, rel=1e-6)
    return way


def test_a_local_agent_may_go_to_every_neighbour_or_stop(world: World, episodes: EpisodeSet) -> None:
    rollout = _wander(world, episodes, LocalActions(world, len(episodes), MAX_DECISIONS))
    stop = world.neighbour.shape[1]
    assert rollout.memory is None
    for visit in _visits(rollout):
        if ACTION not in visit.decided:
            continue
        options, choice = visit.decided[ACTION]
        assert options == [*range(int(world.degree[visit.here])), stop]
        assert visit.then[:1] == ([] if choice == stop else [int(world.neighbour[visit.here, choice])])


@pytest.mark.parametrize("seed", [0, 1])
def test_a_memory_agent_is_offered_frontiers_and_their_sub_nodes(
    world: World, episodes: EpisodeSet, seed: int
) -> None:
    rollout = _wander(world, episodes, FrontierActions(world, len(episodes), MAX_DECISIONS), seed=seed)
    stop = world.neighbour.shape[1]
    for visit in _visits(rollout):
        visited = visit.visited
        if FRONTIER in visit.decided:
            frontiers = [n for n, place in enumerate(visited) if _open_slots(world, place, visited)]
            here = visited.index(visit.here)
            assert visit.decided[FRONTIER][0] == sorted({*frontiers, here})
            assert len(visit.decided[FRONTIER][0]) > 1, "who can only stay is not asked"
        if ACTION in visit.decided:
            assert visit.decided[ACTION][0] == [*_open_slots(world, visit.here, visited), stop]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_frontier_is_reached_by_the_shortest_known_way(
    world: World, episodes: EpisodeSet, seed: int
) -> None:
    rollout = _wander(
        world, episodes, FrontierActions(world, len(episodes), MAX_DECISIONS), seed=seed, stops=0.0
    )
    jumps = 0
    for visit in _visits(rollout):
        if FRONTIER not in visit.decided:
            continue
        target = visit.visited[visit.decided[FRONTIER][1]]
        _shortest_way(world, visit, target)
        # whoever stays decides on the spot, whoever walks decides on arrival
        assert (ACTION in visit.decided) == (target == visit.here)
        jumps += target != visit.here
    assert jumps > 10


@pytest.mark.parametrize("seed", [0, 1])
def test_any_sub_node_of_the_memory_is_reached_in_one_decision(
    world: World, episodes: EpisodeSet, seed: int
) -> None:
    rollout = _wander(world, episodes, GlobalActions(world, len(episodes), MAX_DECISIONS), seed=seed)
    slots, stop, far = world.neighbour.shape[1], (MAX_DECISIONS + 1) * world.neighbour.shape[1], 0
    for visit in _visits(rollout):
        if GLOBAL not in visit.decided:
            continue
        visited = visit.visited
        options, choice = visit.decided[GLOBAL]
        open_slots = [(n, k) for n, place in enumerate(visited) for k in _open_slots(world, place, visited)]
        assert options == [*(n * slots + k for n, k in open_slots), stop]
        if choice == stop:
            assert visit.then == []
            continue
        node = visited[choice // slots]
        way = _shortest_way(world, visit, node)
        assert visit.then[len(way) - 1] == int(world.neighbour[node, choice % slots])
        far += len(way) > 2
    assert far > 5


def _spaces(world: World, episodes: int, max_decisions: int = MAX_DECISIONS) -> list[ActionSpace]:
    return [kind(world, episodes, max_decisions) for kind in (LocalActions, FrontierActions, GlobalActions)]


def test_stopping_is_always_possible(world: World, episodes: EpisodeSet) -> None:
    for space in _spaces(world, len(episodes)):
        rollout = _wander(world, episodes, space, stops=0.0)
        for kind, table in rollout.decisions.items():
            if kind != FRONTIER:
                assert table.options[:, -1].all()
            assert table.options.gather(1, table.choice.unsqueeze(1)).all()


def test_every_hop_is_an_edge_and_is_observed_once(world: World, episodes: EpisodeSet) -> None:
    """Staying adds no observation, so the state is updated once per hop and not otherwise."""
    for space in _spaces(world, len(episodes)):
        policy = Wanderer(3, stops=0.0)
        rollout = collect(world, episodes, space, policy, max_steps=200)
        for episode, length in enumerate(rollout.length.tolist()):
            walk = rollout.viewpoint[episode, :length]
            assert int(walk[0]) == int(episodes.start[episode])
            slots = world.slot_of(walk[:-1], walk[1:])
            assert (slots >= 0).all()
            assert torch.equal(rollout.view[episode, 1:length], world.neighbour_view[walk[:-1], slots])
            assert policy.observed.count(episode) == length
        assert torch.equal(rollout.alive, rollout.alive.cummin(dim=1).values)


def test_episodes_are_cut_off_after_their_decisions(world: World, episodes: EpisodeSet) -> None:
    episodes = episodes.restrict(["grid"])  # without dead ends, so that nobody has to stop
    for space in _spaces(world, len(episodes), max_decisions=3):
        rollout = _wander(world, episodes, space, stops=0.0)
        (table,) = (table for kind, table in rollout.decisions.items() if kind != FRONTIER)
        assert torch.bincount(table.episode).tolist() == [3] * len(episodes)
        assert not rollout.stopped.any()


def test_stopping_ends_an_episode_and_only_that_one(world: World, episodes: EpisodeSet) -> None:
    for space in _spaces(world, len(episodes)):
        rollout = _wander(world, episodes, space)
        assert rollout.stopped.any()
        for table in rollout.decisions.values():
            episode, step = table.episode[table.stops], table.step[table.stops]
            assert torch.equal(step, rollout.length[episode] - 1)
        assert len(set(rollout.length.tolist())) > 1


def test_episodes_are_cut_off_in_mid_walk_after_too_many_observations(
    world: World, episodes: EpisodeSet
) -> None:
    episodes = episodes.restrict(["grid"])
    for space in _spaces(world, len(episodes)):
        rollout = collect(world, episodes, space, Wanderer(1, stops=0.0), max_steps=4)
        assert rollout.length.tolist() == [4] * len(episodes)
        assert not rollout.stopped.any()
        for table in rollout.decisions.values():
            assert int(table.step.max()) < 3, "nothing is decided that cannot be carried out"


def test_the_memory_tells_what_was_known_when(world: World, episodes: EpisodeSet) -> None:
    rollout = _wander(world, episodes, FrontierActions(world, len(episodes), MAX_DECISIONS), stops=0.0)
    assert rollout.memory is not None
    for episode, length in enumerate(rollout.length.tolist()):
        walk = rollout.viewpoint[episode, :length].tolist()
        for step in range(length):
            visited = list(dict.fromkeys(walk[: step + 1]))
            assert (
                rollout.memory.node[episode, : int(rollout.memory.count[episode, step])].tolist() == visited
            )
            assert visited[int(rollout.memory.here[episode, step])] == walk[step]


def test_decision_steps_are_when_an_episode_decides_episode_after_episode(
    world: World, episodes: EpisodeSet
) -> None:
    """Who chooses a frontier and a sub-node at one step has one decision step; final places have none."""
    space = FrontierActions(world, len(episodes), MAX_DECISIONS, WalkOptions(final_backtrack=True))
    rollout = _wander(world, episodes, space, stops=0.1)
    steps = rollout.decision_steps()
    assert FINAL in rollout.decisions
    assert steps.of.keys() == {FRONTIER, ACTION}
    tables = [rollout.decisions[kind] for kind in steps.of]
    for kind, table in zip(steps.of, tables, strict=True):
        assert torch.equal(steps.episode[steps.of[kind]], table.episode)
        assert torch.equal(steps.step[steps.of[kind]], table.step)
    for episode in range(len(episodes)):
        decided = {step for table in tables for step in table.step[table.episode == episode].tolist()}
        assert steps.step[steps.episode == episode].tolist() == sorted(decided)
        assert steps.packing.step[steps.episode == episode].tolist() == list(range(len(decided)))
    assert len(steps.episode) < sum(len(table.episode) for table in tables)


def test_distances_before_and_after_are_those_to_the_goal(world: World, episodes: EpisodeSet) -> None:
    for space in _spaces(world, len(episodes)):
        rule = ClosestToGoal(world, episodes.goal)
        rollout = collect(world, episodes, space, Wanderer(2), max_steps=200, label_rule=rule)
        for kind, table in rollout.decisions.items():
            goal, here = episodes.goal[table.episode], rollout.viewpoint[table.episode, table.step]
            assert torch.equal(table.before, world.geodesic(here, goal))
            assert torch.equal(table.after[table.stops], table.before[table.stops])
            if kind == ACTION:
                moved = ~table.stops
                there = world.neighbour[here[moved], table.choice[moved]]
                assert torch.equal(table.after[moved], world.geodesic(there, goal[moved]))
            if kind == FRONTIER:
                assert rollout.memory is not None
                there = rollout.memory.node[table.episode, table.choice]
                assert torch.equal(table.after, world.geodesic(there, goal))


@pytest.mark.parametrize(("space", "kind"), [(FrontierActions, FRONTIER), (GlobalActions, GLOBAL)])
def test_a_place_that_was_never_reached_does_not_count_as_reached(
    world: World, episodes: EpisodeSet, space: type[MemoryActions], kind: DecisionType
) -> None:
    """A walk cut off on its way to a chosen place has come as far as it has come."""
    actions = space(world, len(episodes), MAX_DECISIONS)
    rule = ClosestToGoal(world, episodes.goal)
    rollout = collect(
        world,
        episodes,
        actions,
        Wanderer(3, stops=0.0),
        max_steps=4 + torch.arange(len(episodes)) % 5,
        label_rule=rule,
    )
    assert rollout.memory is not None
    table, cut_off = rollout.decisions[kind], 0
    for row, episode in enumerate(table.episode.tolist()):
        length, choice = int(rollout.length[episode]), int(table.choice[row])
        walk = rollout.viewpoint[episode, int(table.step[row]) : length].tolist()
        if kind == FRONTIER:
            chosen = int(rollout.memory.node[episode, choice])
        elif bool(table.stops[row]):
            chosen = walk[0]
        else:
            node, slot = divmod(choice, world.neighbour.shape[1])
            chosen = int(world.neighbour[rollout.memory.node[episode, node], slot])
        reached = chosen if chosen in walk else walk[-1]
        cut_off += chosen not in walk
        assert float(table.after[row]) == float(world.geodesic(torch.tensor(reached), episodes.goal[episode]))
    assert cut_off > 3


def test_without_a_rule_there_are_no_labels_and_goals_may_be_secret(
    world: World, secret_episodes: EpisodeSet
) -> None:
    episodes = secret_episodes
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
        rollout = _wander(world, alone, space, stops=0.0)
        assert rollout.length.tolist() == [1]
        assert rollout.stopped.all()


@pytest.mark.parametrize("kind", [FrontierActions, GlobalActions])
def test_coming_back_restores_where_one_looked_and_what_one_had_seen(
    world: World, episodes: EpisodeSet, kind: type[FrontierActions | GlobalActions]
) -> None:
    space = kind(world, len(episodes), MAX_DECISIONS, WalkOptions(restore_state=True))
    rollout = _wander(world, episodes, space, stops=0.0)
    plain = _wander(world, episodes, kind(world, len(episodes), MAX_DECISIONS), stops=0.0)
    assert torch.equal(rollout.viewpoint, plain.viewpoint), "random walks do not depend on where one looks"
    steps = torch.arange(rollout.alive.shape[1]).expand_as(rollout.state_step)
    assert torch.equal(plain.state_step[plain.alive], steps[plain.alive])
    came_back = 0
    for episode, count in enumerate(rollout.length.tolist()):
        walked = rollout.viewpoint[episode, :count].tolist()
        first = [walked.index(place) for place in walked]
        assert rollout.state_step[episode, :count].tolist() == first
        assert rollout.view[episode, :count].tolist() == plain.view[episode, first].tolist()
        came_back += sum(step != then for step, then in enumerate(first))
    assert came_back > 10


def test_whoever_comes_back_sees_nothing_new(world: World, episodes: EpisodeSet) -> None:
    known: dict[int, set[int]] = {}

    class NewcomerCheck(Wanderer):
        def observe(self, pose: Pose, active: Tensor, space: ActionSpace, /) -> None:
            super().observe(pose, active, space)
            new = active[space.state_step[active] == space.now].tolist()
            places = pose.viewpoint.tolist()
            for episode in active.tolist():
                assert (episode in new) == (places[episode] not in known.setdefault(episode, set()))
                known[episode].add(places[episode])

    space = FrontierActions(world, len(episodes), MAX_DECISIONS, WalkOptions(restore_state=True))
    collect(world, episodes, space, NewcomerCheck(1, stops=0.0), max_steps=200)


def test_who_revisits_places_may_hop_to_every_neighbour(world: World, episodes: EpisodeSet) -> None:
    """Frontiers stay what they are: nodes that have seen an unvisited place, and here."""
    rollout = _wander(
        world,
        episodes,
        FrontierActions(world, len(episodes), MAX_DECISIONS, WalkOptions(allow_revisits=True)),
    )
    stop, back = world.neighbour.shape[1], 0
    for visit in _visits(rollout):
        if FRONTIER in visit.decided:
            options, _ = visit.decided[FRONTIER]
            open_nodes = {place for place in visit.visited if _open_slots(world, place, visit.visited)}
            assert {visit.visited[node] for node in options} == open_nodes | {visit.here}
        if ACTION in visit.decided:
            options, choice = visit.decided[ACTION]
            assert options == [*range(int(world.degree[visit.here])), stop]
            back += choice != stop and int(world.neighbour[visit.here, choice]) in visit.visited
    assert back > 5


def test_who_hops_back_sees_anew_and_who_jumps_back_restores(world: World, episodes: EpisodeSet) -> None:
    space = FrontierActions(
        world, len(episodes), MAX_DECISIONS, WalkOptions(restore_state=True, allow_revisits=True)
    )
    rollout = _wander(world, episodes, space, stops=0.0)
    actions = rollout.decisions[ACTION]
    hops = {
        (episode, step + 1)
        for episode, step in zip(actions.episode.tolist(), actions.step.tolist(), strict=True)
    }
    anew = restored = 0
    for episode, count in enumerate(rollout.length.tolist()):
        saw: dict[int, int] = {}
        for step, place in enumerate(rollout.viewpoint[episode, :count].tolist()):
            anew += (episode, step) in hops and place in saw
            restored += (episode, step) not in hops and place in saw
            if (episode, step) in hops:
                saw[place] = step
            assert int(rollout.state_step[episode, step]) == saw.setdefault(place, step)
    assert anew > 5
    assert restored > 5


def test_every_neighbour_of_a_known_place_can_be_named_by_who_revisits(
    world: World, episodes: EpisodeSet
) -> None:
    rollout = _wander(
        world, episodes, GlobalActions(world, len(episodes), MAX_DECISIONS, WalkOptions(allow_revisits=True))
    )
    slots = world.neighbour.shape[1]
    for visit in _visits(rollout):
        if GLOBAL in visit.decided:
            options, _ = visit.decided[GLOBAL]
            named = {(visit.visited[option // slots], option % slots) for option in options[:-1]}
            known = {(place, slot) for place in visit.visited for slot in range(int(world.degree[place]))}
            assert named == known


@pytest.mark.parametrize("kind", [FrontierActions, GlobalActions])
def test_whoever_has_used_up_its_decisions_goes_to_the_place_it_chooses(
    world: World, episodes: EpisodeSet, kind: type[FrontierActions | GlobalActions]
) -> None:
    assert (~_wander(world, episodes, kind(world, len(episodes), MAX_DECISIONS), stops=0.0).stopped).any()
    rollout = _wander(
        world,
        episodes,
        kind(world, len(episodes), MAX_DECISIONS, WalkOptions(final_backtrack=True)),
        stops=0.0,
    )
    assert rollout.stopped.all(), "nobody is cut off any more"
    last, known = rollout.decisions[FINAL], rollout.memory
    assert known is not None
    assert last.stops.all()
    decided = rollout.decisions[ACTION if kind is FrontierActions else GLOBAL]
    went_back = 0
    for episode, step, choice, options in zip(
        last.episode.tolist(), last.step.tolist(), last.choice.tolist(), last.options, strict=True
    ):
        assert int((decided.episode == episode).sum()) == MAX_DECISIONS
        assert options.nonzero().squeeze(1).tolist() == list(range(int(known.count[episode, step])))
        end = int(rollout.length[episode]) - 1
        assert rollout.viewpoint[episode, end] == known.node[episode, choice]
        steps = rollout.viewpoint[episode, step : end + 1].tolist()
        assert all(there in world.neighbour[here] for here, there in pairwise(steps))
        went_back += end > step
    assert went_back > 5
    others = set(range(len(episodes))) - set(last.episode.tolist())
    assert others == set(decided.episode[decided.stops].tolist())


def test_whoever_is_cut_off_on_the_way_to_its_last_place_has_not_stopped(
    world: World, episodes: EpisodeSet
) -> None:
    space = FrontierActions(world, len(episodes), MAX_DECISIONS, WalkOptions(final_backtrack=True))
    rollout = collect(world, episodes, space, Wanderer(stops=0.0), max_steps=MAX_DECISIONS + 5)
    last, known = rollout.decisions[FINAL], rollout.memory
    assert known is not None
    end = known.here[last.episode, rollout.length[last.episode] - 1]
    assert torch.equal(rollout.stopped[last.episode], end == last.choice)
    assert 0 < int(last.stops.sum()) < len(last.stops)


# the hop prior


PRIORS = {  # of agents that choose frontiers, and of agents that choose among neighbours
    HopPriorActions: WalkOptions(),
    HopPriorLocalActions: WalkOptions(final_backtrack=True, allow_revisits=True),
}


def _walk_with_prior(
    world: World,
    episodes: EpisodeSet,
    max_decisions: int,
    stops: float,
    kind: type[HopPrior] = HopPriorActions,
) -> tuple[Rollout, HopPrior]:
    space = kind(world, len(episodes), max_decisions, PRIORS[kind])
    return collect(world, episodes, space, Wanderer(stops=stops), max_steps=200), space


def _hops(world: World, nodes: list[int]) -> dict[int, int]:
    """Hops from the first node over edges between the given ones."""
    graph = nx.Graph()
    graph.add_nodes_from(nodes)
    for here in nodes:
        graph.add_edges_from((here, int(n)) for n in world.neighbour[here] if int(n) in nodes)
    return dict(nx.single_source_shortest_path_length(graph, nodes[0]))


def test_hops_are_counted_on_the_known_graph(world: World, episodes: EpisodeSet) -> None:
    _, space = _walk_with_prior(world, episodes, max_decisions=7, stops=0.0)
    counted = space.memory.hops_from_start(torch.arange(len(episodes)))
    for episode in range(len(episodes)):
        nodes = space.memory.node[episode, : int(space.memory.count[episode])].tolist()
        expected = _hops(world, nodes)
        assert counted[episode, : len(nodes)].tolist() == [expected[node] for node in nodes]
        assert (counted[episode, len(nodes) :] == -1).all()


@pytest.mark.parametrize("kind", PRIORS)
def test_stopping_is_offered_only_in_the_ring_or_at_a_dead_end(
    world: World, episodes: EpisodeSet, kind: type[HopPrior]
) -> None:
    rollout, _ = _walk_with_prior(world, episodes, max_decisions=7, stops=1.0, kind=kind)
    assert rollout.memory is not None
    table = rollout.decisions[ACTION]
    for row in range(len(table.episode)):
        episode, step = int(table.episode[row]), int(table.step[row])
        known = rollout.memory.node[episode, : int(rollout.memory.count[episode, step])].tolist()
        hops = _hops(world, known)[int(rollout.viewpoint[episode, step])]
        nowhere_else = not bool(table.options[row, :-1].any())
        assert bool(table.options[row, -1]) == (
            HopPriorActions.NEAREST <= hops <= HopPriorActions.FARTHEST or nowhere_else
        )


def test_frontiers_beyond_the_ring_are_dropped(world: World, episodes: EpisodeSet) -> None:
    rollout, _ = _walk_with_prior(world, episodes, max_decisions=9, stops=0.0)
    assert rollout.memory is not None
    table = rollout.decisions[FRONTIER]
    for row in range(len(table.episode)):
        episode, step = int(table.episode[row]), int(table.step[row])
        known = rollout.memory.node[episode, : int(rollout.memory.count[episode, step])].tolist()
        hops = _hops(world, known)
        offered = table.options[row].nonzero().squeeze(1).tolist()
        here = int(rollout.memory.here[episode, step])
        assert all(hops[known[node]] <= HopPriorActions.FARTHEST or node == here for node in offered)


@pytest.mark.parametrize("kind", PRIORS)
def test_who_never_stopped_ends_in_the_ring_when_it_knows_one(
    world: World, episodes: EpisodeSet, kind: type[HopPrior]
) -> None:
    rollout, space = _walk_with_prior(world, episodes, max_decisions=7, stops=0.0, kind=kind)
    hops = space.memory.hops_from_start(torch.arange(len(episodes)))
    knows_ring = ((hops >= HopPriorActions.NEAREST) & (hops <= HopPriorActions.FARTHEST)).any(dim=1)
    assert bool(knows_ring.any())
    final = hops.gather(1, space.memory.here.unsqueeze(1)).squeeze(1)
    actions = rollout.decisions[ACTION]
    cut_off = knows_ring.index_fill(0, actions.episode[actions.stops], False)
    assert bool(cut_off.any())
    assert ((final >= HopPriorActions.NEAREST) & (final <= HopPriorActions.FARTHEST))[cut_off].all()


def test_a_local_agent_with_a_memory_may_go_to_every_neighbour_and_returns_at_the_end(
    world: World, episodes: EpisodeSet
) -> None:
    options = WalkOptions(final_backtrack=True, allow_revisits=True)
    space = LocalMemoryActions(world, len(episodes), 5, options)
    rollout = collect(world, episodes, space, Wanderer(stops=0.0), max_steps=200)
    assert rollout.decisions.keys() == {ACTION, FINAL}
    actions, final = rollout.decisions[ACTION], rollout.decisions[FINAL]
    here = rollout.viewpoint[actions.episode, actions.step]
    assert torch.equal(actions.options[:, :-1], world.neighbour_mask[here]), "visited ones, too"
    assert actions.options[:, -1].all()
    assert torch.bincount(actions.episode).max() == 5
    ends = rollout.viewpoint.gather(1, rollout.length.unsqueeze(1) - 1).squeeze(1)
    assert torch.equal(ends[final.episode], space.memory.node[final.episode, final.choice])
    assert bool((final.choice != space.memory.count[final.episode] - 1).any()), "some went back"


@pytest.mark.parametrize("kind", ["goal", "path"])
def test_what_is_right_is_always_possible(world: World, episodes: EpisodeSet, kind: str) -> None:
    """Where stopping or staying is forbidden, labels name something else; the loss would be infinite."""
    rule = ClosestToGoal(world, episodes.goal) if kind == "goal" else ReferencePath(world, episodes.path)
    forbidden = 0
    for seed in range(4):
        space = HopPriorActions(world, len(episodes), 8)
        rollout = collect(world, episodes, space, Wanderer(seed, stops=0.2), max_steps=200, label_rule=rule)
        for table in rollout.decisions.values():
            assert table.options.gather(1, table.label.unsqueeze(1)).all()
        actions = rollout.decisions[ACTION]
        forbidden += int((~actions.options[:, -1]).sum())
    assert forbidden > 20
