"""Action spaces: what may be chosen, and how a choice becomes hops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, LocalActions
from scenemem.agents.rollout import ACTION, FINAL, FRONTIER, GLOBAL, DecisionType, Rollout
from scenemem.agents.walker import LabelRule, collect
from scenemem.learning.objectives import ClosestToGoal, ReferencePath
from scenemem.ssm.ablations import GlobalActions, LocalMemoryActions
from scenemem.ssm.additions import HopPrior, HopPriorActions, HopPriorLocalActions
from scenemem.ssm.deciding import FrontierActions, MemoryActions
from scenemem.ssm.graph import WalkOptions
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World
from tests.agents.helpers import Roaming, known_graph, open_slots, walks_of

MAX_DECISIONS = 6
SPACES = (LocalActions, FrontierActions, GlobalActions)
OVER_MEMORY = (FrontierActions, GlobalActions)


def _roam(
    space: ActionSpace,
    episodes: EpisodeSet,
    seed: int = 0,
    *,
    stops: float = 1.0,
    rule: LabelRule | None = None,
    max_steps: int | Tensor = 200,
) -> Rollout:
    policy = Roaming(seed, stops=stops)
    return collect(space.world, episodes, space, policy, max_steps=max_steps, label_rule=rule)


@dataclass(frozen=True)
class Visit:
    """One observation of an episode and the decisions taken there."""

    walked: list[int]  # all viewpoints so far, this one last
    then: list[int]  # the viewpoints that follow
    decided: dict[DecisionType, tuple[list[int], int]]  # options and choice

    @property
    def here(self) -> int:
        return self.walked[-1]

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
    for episode, walk in enumerate(walks_of(rollout)):
        for step in range(len(walk)):
            yield Visit(walk[: step + 1], walk[step + 1 :], decided.get((episode, step), {}))


def _check_shortest_way(world: World, visit: Visit, target: int) -> list[int]:
    """The places the episode goes through until it is at ``target``: a shortest known way."""
    known, coming = known_graph(world, visit.visited), [visit.here, *visit.then]
    way = coming[: coming.index(target) + 1]
    shortest = nx.shortest_path_length(known, visit.here, target, weight="metres")
    assert nx.path_weight(known, way, "metres") == pytest.approx(shortest, rel=1e-6)
    return way


# what may be chosen


@pytest.mark.parametrize("revisits", [False, True])
@pytest.mark.parametrize("kind", [LocalActions, LocalMemoryActions, FrontierActions, GlobalActions])
def test_options_are_the_ways_that_are_open_and_choices_are_carried_out(
    world: World, episodes: EpisodeSet, kind: type[ActionSpace], revisits: bool
) -> None:
    """With revisits all neighbours are open; frontiers stay what they are: nodes with an unvisited one."""
    given = (WalkOptions(allow_revisits=revisits),) if issubclass(kind, MemoryActions) else ()
    rollout = _roam(kind(world, len(episodes), MAX_DECISIONS, *given), episodes)
    slots, back, far = world.neighbour.shape[1], 0, 0
    everywhere = revisits or kind is LocalActions
    for visit in _visits(rollout):
        visited = visit.visited

        def is_open(place: int, visited: list[int] = visited) -> list[int]:
            return [*range(int(world.degree[place]))] if everywhere else open_slots(world, place, visited)

        if FRONTIER in visit.decided:
            options, choice = visit.decided[FRONTIER]
            frontiers = {node for node, place in enumerate(visited) if open_slots(world, place, visited)}
            assert set(options) == frontiers | {visited.index(visit.here)}
            assert len(options) > 1, "an episode that can only stay is not asked"
            assert (ACTION in visit.decided) == (visited[choice] == visit.here), "others decide on arrival"
            far += len(_check_shortest_way(world, visit, visited[choice])) > 1
        if ACTION in visit.decided:
            options, choice = visit.decided[ACTION]
            assert options == [*is_open(visit.here), slots], "stopping is always possible"
            there = int(world.neighbour[visit.here, choice]) if choice != slots else None
            assert visit.then[:1] == ([] if there is None else [there])
            back += there in visited
        if GLOBAL in visit.decided:
            options, choice = visit.decided[GLOBAL]
            stop = (MAX_DECISIONS + 1) * slots
            assert options == [n * slots + k for n, p in enumerate(visited) for k in is_open(p)] + [stop]
            if choice == stop:
                assert visit.then == []
                continue
            way = _check_shortest_way(world, visit, visited[choice // slots])
            there = int(world.neighbour[way[-1], choice % slots])
            assert visit.then[len(way) - 1] == there
            far += len(way) > 2
            back += there in visited
    assert (back > 3) == everywhere
    assert (far > 3) == issubclass(kind, OVER_MEMORY)


@pytest.mark.parametrize("kind", SPACES)
def test_every_hop_is_an_edge_and_is_observed_once(
    world: World, episodes: EpisodeSet, kind: type[FrontierActions]
) -> None:
    """Staying adds no observation, so the state is updated once per hop and not otherwise."""
    observed: list[int] = []

    class Counting(Roaming):
        def observe(self, *given: object) -> None:
            observed.extend(given[1].episodes.tolist())  # type: ignore[attr-defined]

    space = kind(world, len(episodes), MAX_DECISIONS)
    rollout = collect(world, episodes, space, Counting(3, stops=0.0), max_steps=200)
    assert [walk[0] for walk in walks_of(rollout)] == episodes.start.tolist()
    for episode, walk in enumerate(map(torch.tensor, walks_of(rollout))):
        slots = world.slot_of(walk[:-1], walk[1:])
        assert (slots >= 0).all()
        assert torch.equal(rollout.view[episode, 1 : len(walk)], world.neighbour_view[walk[:-1], slots])
        assert observed.count(episode) == len(walk)


def test_an_agent_with_nowhere_to_go_can_only_stop(world: World, episodes: EpisodeSet) -> None:
    alone = episodes.select([0])
    alone.start[0] = world.index_of("grid", "g-alone")
    for kind in SPACES:
        rollout = _roam(kind(world, 1, MAX_DECISIONS), alone, stops=0.0)
        assert rollout.length.tolist() == [1]
        assert rollout.stopped.all()


# where walks end


@pytest.mark.parametrize("kind", SPACES)
def test_walks_end_by_stopping_by_their_decisions_or_by_their_observations(
    world: World, episodes: EpisodeSet, kind: type[FrontierActions]
) -> None:
    stopping = _roam(kind(world, len(episodes), MAX_DECISIONS), episodes)
    assert stopping.stopped.any()
    for table in stopping.decisions.values():
        episode, step = table.episode[table.stops], table.step[table.stops]
        assert torch.equal(step, stopping.length[episode] - 1)
        assert stopping.stopped[episode].all()
    assert len(set(stopping.length.tolist())) > 1

    episodes = episodes.restrict(["grid"])  # without dead ends, so that no episode has to stop
    decided = _roam(kind(world, len(episodes), 3), episodes, stops=0.0)
    (table,) = (table for kind, table in decided.decisions.items() if kind != FRONTIER)
    assert torch.bincount(table.episode).tolist() == [3] * len(episodes)
    assert not decided.stopped.any()

    observed = _roam(kind(world, len(episodes), MAX_DECISIONS), episodes, 1, stops=0.0, max_steps=4)
    assert observed.length.tolist() == [4] * len(episodes)
    assert not observed.stopped.any()
    for table in observed.decisions.values():
        assert int(table.step.max()) < 3, "nothing is decided that cannot be carried out"


def test_a_walk_cut_off_on_the_way_to_its_final_place_has_not_stopped(
    world: World, episodes: EpisodeSet
) -> None:
    space = FrontierActions(world, len(episodes), MAX_DECISIONS, WalkOptions(final_backtrack=True))
    rollout = _roam(space, episodes, stops=0.0, max_steps=MAX_DECISIONS + 5)
    last, walks = rollout.decisions[FINAL], walks_of(rollout)
    ended_there = [walks[row][-1] == place for row, place in zip(last.episode, last.place, strict=True)]
    assert last.stops.tolist() == rollout.stopped[last.episode].tolist() == ended_there
    assert 0 < sum(ended_there) < len(ended_there)


# what is recorded


@pytest.mark.parametrize("kind", SPACES)
def test_places_and_metres_are_those_of_the_choice_or_of_where_the_walk_was_cut_off(
    world: World, episodes: EpisodeSet, kind: type[ActionSpace]
) -> None:
    """An episode cut off on its way has come as far as it has come."""
    limits = 4 + torch.arange(len(episodes)) % 5
    space, rule = kind(world, len(episodes), MAX_DECISIONS), ClosestToGoal(world, episodes.goal)
    rollout = _roam(space, episodes, 3, stops=0.02, rule=rule, max_steps=limits)
    walks, cut_off, slots = walks_of(rollout), 0, world.neighbour.shape[1]
    jumps = [0] * len(episodes)
    for decided, table in rollout.decisions.items():
        for row, episode in enumerate(table.episode.tolist()):
            step, choice = int(table.step[row]), int(table.choice[row])
            visited = list(dict.fromkeys(walks[episode][: step + 1]))
            coming, here = walks[episode][step:], torch.tensor(walks[episode][step])
            if decided == FRONTIER:
                chosen = visited[choice]
                jumps[episode] += chosen != int(here)
            elif bool(table.stops[row]):
                chosen = int(here)
            else:
                node = visited[choice // slots] if decided == GLOBAL else int(here)
                chosen = int(world.neighbour[node, choice % slots])
            reached = torch.tensor(chosen if chosen in coming else coming[-1])
            cut_off += chosen not in coming
            goal = episodes.goal[episode]
            assert int(table.place[row]) == chosen
            assert float(table.before[row]) == float(world.geodesic(here, goal))
            assert float(table.after[row]) == float(world.geodesic(reached, goal))
    assert (cut_off > 3) == issubclass(kind, OVER_MEMORY)
    assert kind is GlobalActions or rollout.jumps.tolist() == jumps
    assert (sum(jumps) > 10) == (kind is FrontierActions)


# the hop prior

PRIORS = {  # of agents that choose frontiers, and of agents that choose among neighbours
    HopPriorActions: WalkOptions(final_backtrack=True),
    HopPriorLocalActions: WalkOptions(final_backtrack=True, allow_revisits=True),
}
NEAREST, FARTHEST = 4, 6


def _hops(world: World, visited: list[int]) -> dict[int, int]:
    """Hops from the first node over edges between the given ones."""
    return dict(nx.single_source_shortest_path_length(known_graph(world, visited), visited[0]))


@pytest.mark.parametrize("kind", PRIORS)
def test_the_hop_prior_keeps_walks_to_the_ring(
    world: World, episodes: EpisodeSet, kind: type[HopPrior]
) -> None:
    """Stopping is offered in the ring or at a dead end, and no frontier beyond it."""
    stop, stops, beyond = world.neighbour.shape[1], 0, 0
    for visit in _visits(_roam(kind(world, len(episodes), 9, PRIORS[kind]), episodes, stops=0.1)):
        hops = _hops(world, visit.visited)
        if ACTION in visit.decided:
            options, _ = visit.decided[ACTION]
            may_stop = NEAREST <= hops[visit.here] <= FARTHEST or options == [stop]
            assert (options[-1] == stop) == may_stop
            stops += may_stop
        if FRONTIER in visit.decided and len(visit.decided[FRONTIER][0]) > 1:
            near = {place for place in visit.visited if open_slots(world, place, visit.visited)}
            near = {place for place in near if hops[place] <= FARTHEST} | {visit.here}
            ring = {place for place, count in hops.items() if NEAREST <= count <= FARTHEST}
            assert {visit.visited[node] for node in visit.decided[FRONTIER][0]} in (near, ring)
            beyond += max(hops.values()) > FARTHEST
    assert stops > 10
    assert (beyond > 0) == (kind is HopPriorActions)


@pytest.mark.parametrize("kind", PRIORS)
def test_a_walk_that_never_stopped_ends_in_the_ring_when_it_knows_one(
    world: World, episodes: EpisodeSet, kind: type[HopPrior]
) -> None:
    space = kind(world, len(episodes), 7, PRIORS[kind])
    rollout = _roam(space, episodes, stops=0.0)
    counted = space.hops_from_start(torch.arange(len(episodes)))
    actions, table, ended = rollout.decisions[ACTION], rollout.decisions[space.final_type], 0
    by_itself = set(actions.episode[actions.stops].tolist())
    for episode, walk in enumerate(walks_of(rollout)):
        visited = list(dict.fromkeys(walk))
        hops = _hops(world, visited)
        assert counted[episode, : len(visited)].tolist() == [hops[place] for place in visited]
        assert (counted[episode, len(visited) :] == -1).all()
        ring = [NEAREST <= hops[place] <= FARTHEST for place in visited]
        if episode not in by_itself and any(ring):
            last = (table.episode == episode).nonzero().max()
            assert table.options[last].tolist() == ring + [False] * (8 - len(ring))
            assert NEAREST <= hops[walk[-1]] <= FARTHEST
            ended += 1
    assert ended > 0


@pytest.mark.parametrize("rule", [ClosestToGoal, ReferencePath])
def test_what_is_right_is_always_possible(
    world: World, episodes: EpisodeSet, rule: type[ClosestToGoal | ReferencePath]
) -> None:
    """Where stopping or staying is forbidden, labels name something else; the loss would be infinite."""
    along = episodes.goal if rule is ClosestToGoal else episodes.path
    forbidden = 0
    for seed in range(4):
        space = HopPriorActions(world, len(episodes), 8, PRIORS[HopPriorActions])
        rollout = _roam(space, episodes, seed, stops=0.2, rule=rule(world, along))
        for kind, table in rollout.decisions.items():
            labelled = table.label >= 0
            assert labelled.all() or kind == FINAL
            assert table.options[labelled].gather(1, table.label[labelled].unsqueeze(1)).all()
        forbidden += int((~rollout.decisions[ACTION].options[:, -1]).sum())
    assert forbidden > 20
