"""EGP: its label rule, and its graph."""

from __future__ import annotations

import pytest
import torch

from scenemem.agents.walker import FollowLabels, collect
from scenemem.learning.objectives import ReferencePath
from scenemem.ssm.graph import WalkOptions
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo.egp import EGP
from scenemem.zoo.labels import ReferenceIndex
from scenemem.zoo.place_actions import PlaceActions
from scenemem.zoo.seen_places import SeenPlaces
from tests.zoo.helpers import Noting, Setting, places_of, roam


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
    seen = SeenPlaces.of(point.memory(), world)
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
