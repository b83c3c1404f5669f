"""EGP and DUET: labels, graphs and scores over all seen places against plain references."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, DecisionPoint
from scenemem.agents.rollout import FINAL, GLOBAL, DecisionRequest
from scenemem.agents.walker import FollowLabels, collect, take_best
from scenemem.evaluation.metrics import measure
from scenemem.learning.objectives import ReferencePath
from scenemem.ssm.graph import WalkOptions
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, Pose, World
from scenemem.zoo.duet import Duet, go_back
from scenemem.zoo.egp import EGP
from scenemem.zoo.objectives import BestNDTW, ReferenceIndex, ShortestDetour
from scenemem.zoo.places import PlaceActions, SeenPlaces
from tests.agents.helpers import Roaming, known_graph
from tests.zoo.helpers import Noting, Setting, places_of, roam

# EGP


def test_the_label_is_the_last_place_of_the_path_that_is_offered(world: World, episodes: EpisodeSet) -> None:
    some, policy = episodes.select(range(0, len(episodes), 6)), Noting()
    space = PlaceActions(world, len(some), 6)
    rule = ReferenceIndex(world, some.path, some.goal)
    collect(world, some, space, policy, max_steps=40, label_rule=rule)
    on_path = off_path = 0
    for request, label, _ in policy.noted:
        for row, episode in enumerate(request.episode.tolist()):
            path = places_of(some.path[episode])
            options = request.options[row, :-1].nonzero().squeeze(1).tolist()
            places = {int(request.viewpoint[row, option]): option for option in options}
            if int(request.viewpoint[row, -1]) == path[-1] or not options:
                assert int(label[row]) == request.stop
                continue
            ahead = [place for place in path if place in places]
            if ahead:
                assert int(label[row]) == places[ahead[-1]]
                on_path += 1
            else:
                goal = torch.tensor(path[-1])
                metres = {o: float(world.geodesic(torch.tensor(p), goal)) for p, o in places.items()}
                assert metres[int(label[row])] == pytest.approx(min(metres.values()), abs=0.05)
                off_path += 1
    assert on_path > 20
    assert off_path > 0


def test_with_revisits_every_known_place_but_here_is_offered_once(world: World, episodes: EpisodeSet) -> None:
    some, policy, again = episodes.select(range(0, len(episodes), 6)), Noting(), 0
    space = PlaceActions(world, len(some), 6, WalkOptions(allow_revisits=True))
    collect(world, some, space, policy, max_steps=40, label_rule=ReferencePath(world, some.path))
    for request, _, nodes in policy.noted:
        for options, places, known in zip(request.options, request.viewpoint, nodes, strict=True):
            offered, visited = places[:-1][options[:-1]].tolist(), set(places_of(known))
            near = {other for place in visited for other in places_of(world.neighbour[place])}
            assert sorted(offered) == sorted(near - {int(places[-1])})
            again += bool(set(offered) & visited)
    assert again > 0


def test_a_teacher_leads_it_along_a_path_that_comes_back(world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 6))
    there_and_back = [path + path[-2::-1] for path in map(places_of, some.path)]
    longest = max(map(len, there_and_back))
    reference = torch.tensor([path + [NONE] * (longest - len(path)) for path in there_and_back])
    space = PlaceActions(world, len(some), longest, WalkOptions(allow_revisits=True))
    rule = ReferencePath(world, reference)
    rollout = collect(world, some, space, FollowLabels(), max_steps=60, label_rule=rule)
    assert [places_of(walk) for walk in rollout.walked] == there_and_back


@pytest.mark.parametrize("name", ["egp", "egp-revisits", "egp-as-published"])
def test_the_graph_has_every_known_way_and_stop(name: str, setting: Setting) -> None:
    agent, world = setting.loud(EGP, name), setting.world
    point = setting.walk(agent, roam(1), learning=True).points[3]
    seen = SeenPlaces.of(point.memory())
    edges = agent._edges(seen, agent.embedded(point.observations)[point.row, -1])
    for row in range(len(point.row)):
        everything = [*seen.all[row].tolist(), "stop"]
        drawn = {
            (everything[int(u)], everything[int(v)])
            for u, v, there in zip(edges.source[row], edges.target[row], edges.mask[row], strict=True)
            if there
        }
        nodes = places_of(seen.graph.viewpoint[row])
        known = {(place, other) for place in nodes for other in places_of(world.neighbour[place])}
        assert drawn == known | {(int(point.viewpoint[row]), "stop")}


def _ndtw(world: World, walk: list[int], path: list[int]) -> float:
    found = measure(world, torch.tensor([walk]), torch.tensor([path]))
    return float(found.ndtw[0])


def test_the_label_has_the_best_ndtw_of_all_options(world: World, episodes: EpisodeSet) -> None:
    some, walks, jumped = episodes.select(range(0, len(episodes), 12)), dict[int, list[int]](), 0

    class Checked(Roaming):
        def observe(self, *given: object) -> None:
            pose, arrival, _ = given
            for episode in arrival.episodes.tolist():  # type: ignore[attr-defined]
                walks.setdefault(episode, []).append(int(pose.viewpoint[episode]))  # type: ignore[attr-defined]

        def decide(
            self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
        ) -> tuple[Tensor, None]:
            nonlocal jumped
            for row, episode in enumerate(request.episode.tolist()):
                walk, path = walks[episode], places_of(some.path[episode])
                visited = list(dict.fromkeys(walk))
                values = {request.stop: _ndtw(world, walk, path)}
                for option in request.options[row, :-1].nonzero().squeeze(1).tolist():
                    seen_from = visited[option // world.neighbour.shape[1]]
                    known = known_graph(world, visited)
                    way = nx.dijkstra_path(known, walk[-1], seen_from, weight="metres")[1:]
                    place = int(request.viewpoint[row, option])
                    values[option] = _ndtw(world, [*walk, *way, place], path)
                    jumped += len(way) > 0
                assert values[int(label[row])] == pytest.approx(max(values.values()), abs=1e-6)
            return super().decide(request, label, pose, space)

    rule = BestNDTW(world, some.path, some.goal)
    space = PlaceActions(world, len(some), 4)
    collect(world, some, space, Checked(stops=1e-6), max_steps=20, label_rule=rule)
    assert jumped > 10


# DUET


@pytest.fixture(scope="module")
def agent(setting: Setting) -> Duet:
    agent: Duet = setting.loud(Duet, "duet")
    return agent


@pytest.fixture(scope="module")
def point(agent: Duet, setting: Setting) -> DecisionPoint:
    """A decision of several episodes that have been to a few places."""
    return setting.walk(agent, roam(1, stop=0.0), learning=True).points[4]


def test_a_place_that_is_not_next_to_here_is_scored_by_the_ways_back(
    point: DecisionPoint, world: World
) -> None:
    graph = point.memory()
    torch.manual_seed(0)
    here = torch.randn(len(point.row), world.neighbour.shape[1])
    found = go_back(here, SeenPlaces.of(graph), world.neighbour_mask[point.viewpoint])
    slots = graph.open.shape[2]
    far = 0
    for row in range(len(found)):
        visited = places_of(graph.viewpoint[row])
        around = world.neighbour[point.viewpoint[row]].tolist()
        back = sum(float(here[row, k]) for k, place in enumerate(around) if place in visited)
        for node, slot in graph.open[row].nonzero().tolist():
            place = int(world.neighbour[graph.viewpoint[row, node], slot])
            expected = float(here[row, around.index(place)]) if place in around else back
            assert float(found[row, node * slots + slot]) == pytest.approx(expected, abs=1e-5)
            far += place not in around
    assert far > 5


@torch.no_grad()
def test_the_score_is_the_weighted_sum_of_both_scales(agent: Duet, point: DecisionPoint) -> None:
    fused, logits = agent.read(point), agent.score(point)[GLOBAL]
    torch.testing.assert_close(fused.mix.sum(1), torch.ones(len(point.row)))
    expected = fused.mix[:, :1] * fused.confidence[..., 0] + fused.mix[:, 1:] * fused.confidence[..., 1]
    torch.testing.assert_close(logits, expected)
    for weights in fused.words().values():
        torch.testing.assert_close(weights.sum(1), torch.ones(len(point.row)))


@torch.no_grad()
def test_a_place_has_one_score_whichever_node_leads_there(
    agent: Duet, point: DecisionPoint, world: World
) -> None:
    logits = agent.score(point)[GLOBAL][:, :-1]
    seen = SeenPlaces.of(point.memory())
    several = 0
    for row in range(len(logits)):
        for number in range(len(places_of(seen.viewpoint[row]))):
            own = logits[row][seen.of_way[row] == number]
            torch.testing.assert_close(own, own[:1].expand_as(own))
            several += len(own) > 1
    assert several > 3


@torch.no_grad()
def test_farther_places_are_attended_less_when_the_bias_says_so(
    agent: Duet, point: DecisionPoint, world: World
) -> None:
    """The map's attention depends on the distances through the bias alone."""
    seen = SeenPlaces.of(point.memory())
    _, bias = agent.map_tokens(point, seen, seen.positions(point.heading))
    weight, constant = agent.distance.weight.item(), agent.distance.bias.item()
    places = seen.all >= 0
    pairs = places.unsqueeze(1) & places.unsqueeze(2)
    torch.testing.assert_close(bias[:, 1:, 1:][pairs], (weight * seen.metres + constant)[pairs])
    assert bool(bias[:, :, 1:].isneginf().any(dim=1)[~places].all())
    assert bool((bias[:, :, 0] == constant).all()), "stop is no metres away from anything"


@torch.no_grad()
@pytest.mark.parametrize("seed", range(4))
def test_at_the_beginning_nothing_drowns_anything_else(seed: int, setting: Setting) -> None:
    """Neither distances nor directions hide the rest, and words reach every token, whatever the seed."""
    agent = setting.agent("duet", seed=seed).network.eval()
    assert isinstance(agent, Duet)
    assert abs(agent.distance.weight.item()) < 0.1, "places 10 m away would have e times the weight, or less"
    assert agent.distance.bias.item() == 0.0
    seen = setting.walk(agent, roam(), learning=True).seen[0]
    looks, lies = agent.view(seen.candidates.visual), agent.angle(seen.candidates.orientation)
    mask = seen.candidates.mask
    assert 0.5 < float(looks[mask].norm(dim=-1).mean() / lies[mask].norm(dim=-1).mean()) < 2.0
    words = agent.text(seen.instructions.context)[seen.instructions.mask]
    assert float(words.square().mean()) == pytest.approx(1.0, abs=0.05)


def test_the_pseudo_expert_takes_the_shortest_detour(world: World, episodes: EpisodeSet) -> None:
    some, policy = episodes.select(range(0, len(episodes), 6)), Noting()
    space = PlaceActions(world, len(some), 6)
    collect(world, some, space, policy, max_steps=40, label_rule=ShortestDetour(world, some.goal))
    for request, label, nodes in policy.noted:
        for row, episode in enumerate(request.episode.tolist()):
            here, goal = int(request.viewpoint[row, -1]), int(some.goal[episode])
            known, visited = nx.Graph(), set(places_of(nodes[row]))
            for place in visited:
                for other, metres in zip(world.neighbour[place], world.neighbour_length[place], strict=True):
                    known.add_edge(place, int(other), metres=float(metres))
            options = request.options[row, :-1].nonzero().squeeze(1).tolist()
            places = [int(request.viewpoint[row, option]) for option in options]
            assert len(set(places)) == len(places), "every place is offered once"
            if here == goal or not options:
                assert int(label[row]) == request.stop
                continue
            cost = {}
            for option, place in zip(options, places, strict=True):
                way = nx.dijkstra_path_length(known.subgraph(visited | {place}), here, place, weight="metres")
                cost[option] = way + float(world.geodesic(torch.tensor(place), torch.tensor(goal)))
            assert cost[int(label[row])] == pytest.approx(min(cost.values()), abs=1e-4)


def test_every_end_leads_to_where_stopping_was_likeliest(agent: Duet, setting: Setting) -> None:
    walk, chances = setting.walk(agent, take_best), dict[tuple[int, int], float]()
    for decided in walk.answers:
        if decided.request.type == GLOBAL:
            stop, request = decided.logits.log_softmax(1)[:, -1].tolist(), decided.request
            at = zip(request.episode.tolist(), request.viewpoint[:, -1].tolist(), strict=True)
            chances |= dict(zip(at, stop, strict=True))
    ends = walk.rollout.decisions[FINAL]
    assert len(ends.episode) == len(setting.episodes), "also after a deliberate stop"
    for episode, walked in enumerate(map(places_of, walk.rollout.walked)):
        own = {place: chance for (other, place), chance in chances.items() if other == episode}
        assert own[walked[-1]] == pytest.approx(max(own.values()), abs=1e-5)


def test_learning_walks_end_where_they_stop(agent: Duet, setting: Setting) -> None:
    assert FINAL not in setting.walk(agent, take_best, learning=True).rollout.decisions
