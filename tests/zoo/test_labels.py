"""Label rules along a path, against plain references."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace
from scenemem.agents.rollout import DecisionRequest
from scenemem.agents.walker import FollowLabels, collect
from scenemem.evaluation.metrics import measure
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import Pose, World
from scenemem.zoo.labels import BestNDTW, LowLevelPath
from scenemem.zoo.low_level import LowLevelActions
from scenemem.zoo.place_actions import PlaceActions
from tests.agents.helpers import Roaming, known_graph, walks_of


def _ndtw(world: World, walk: list[int], path: list[int]) -> float:
    found = measure(world, torch.tensor([walk]), torch.tensor([path]))
    return float(found.ndtw[0])


def _path(episodes: EpisodeSet, row: int) -> list[int]:
    return [place for place in episodes.path[row].tolist() if place >= 0]


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
                walk, path = walks[episode], _path(some, episode)
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


def test_the_low_level_expert_of_a_path_visits_all_its_points(world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 9))
    rule = LowLevelPath(world, some.path, passes_over=False)
    space = LowLevelActions(world, len(some), 80)
    rollout = collect(world, some, space, FollowLabels(), max_steps=81, label_rule=rule)
    for row, walked in enumerate(walks_of(rollout)):
        rest = iter(walked)
        assert all(point in rest for point in _path(some, row)), "in their order"
        assert walked[-1] == _path(some, row)[-1]
