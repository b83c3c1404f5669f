"""A teacher that steps in off the path, and label rules along a path, against plain references."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.actions import ActionSpace, LocalActions
from scenemem.agents.rollout import DecisionRequest
from scenemem.agents.walker import FollowLabels, collect
from scenemem.errors import SettingError
from scenemem.evaluation.metrics import measure
from scenemem.learning.objectives import ClosestToGoal, LearningConfig
from scenemem.learning.teaching import BackToPath, hops_to_path
from scenemem.simulator.panorama import Pose
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo.labels import BestNDTW, LowLevelPath
from scenemem.zoo.low_level import LowLevelActions
from scenemem.zoo.place_actions import PlaceActions


class _Roams:
    """Chooses anything but to stop, if it can, and keeps every request."""

    def __init__(self) -> None:
        self.noted: list[tuple[DecisionRequest, Tensor, Tensor, Tensor]] = []
        self._random = torch.Generator().manual_seed(0)

    def observe(self, *_: object) -> None:
        pass

    def decide(self, request: DecisionRequest, label: Tensor, pose: Pose, _space: ActionSpace, /) -> Tensor:
        chance = request.options.float()
        chance[:, -1] = 1e-6
        choice = torch.multinomial(chance, 1, generator=self._random).squeeze(1)
        self.noted.append((request, label, pose.viewpoint[request.episode], choice))
        return choice


def _graph(world: World, places: set[int] | None = None) -> nx.Graph:
    graph = nx.Graph()
    for place in range(len(world.viewpoints)) if places is None else places:
        for slot, other in enumerate(world.neighbour[place].tolist()):
            if other != NONE and (places is None or other in places):
                graph.add_edge(place, other, metres=float(world.neighbour_length[place, slot]))
    return graph


def _path(episodes: EpisodeSet, row: int) -> list[int]:
    return [place for place in episodes.path[row].tolist() if place != NONE]


def test_hops_to_a_path_are_those_of_its_nearest_point(world: World, episodes: EpisodeSet) -> None:
    some, graph = episodes.select(range(0, len(episodes), 5)), _graph(world)
    here = some.goal.roll(1)
    same = world.scan_of[here] == world.scan_of[some.goal]
    here = torch.where(same, here, some.start)
    found = hops_to_path(world, here, some.path)
    for row, place in enumerate(here.tolist()):
        ways = [nx.dijkstra_path(graph, place, point, weight="metres") for point in _path(some, row)]
        assert int(found[row]) == min(len(way) - 1 for way in ways)


def test_who_is_off_the_path_does_what_is_right(world: World, episodes: EpisodeSet) -> None:
    some, roams = episodes.select(range(0, len(episodes), 4)), _Roams()
    policy = BackToPath(roams, world, some.path, hops=2)
    space = LocalActions(world, len(some), 8)
    rollout = collect(world, some, space, policy, max_steps=9, label_rule=ClosestToGoal(world, some.goal))
    (table,) = rollout.decisions.values()
    chosen = torch.cat([choice for *_, choice in roams.noted])
    here = torch.cat([place for *_, place, _ in roams.noted])
    lost = hops_to_path(world, here, some.path[table.episode]) >= 2
    assert lost.any()
    assert (~lost).any()
    assert torch.equal(table.choice, torch.where(lost, table.label, chosen))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="teacher_hops must be 0 or more, got -1"):
        LearningConfig(teacher_hops=-1)


def _ndtw(world: World, walk: list[int], path: list[int]) -> float:
    found = measure(world, torch.tensor([walk]), torch.tensor([path]))
    return float(found.ndtw[0])


def test_the_label_has_the_best_ndtw_of_all_options(world: World, episodes: EpisodeSet) -> None:
    some, policy = episodes.select(range(0, len(episodes), 12)), _Roams()
    rule = BestNDTW(world, some.path, some.goal)
    walks: dict[int, list[int]] = {}
    known: list[dict[int, list[int]]] = []

    class Walked(PlaceActions):
        def choose(self, pose: Pose, active: Tensor, decide):  # type: ignore[no-untyped-def]
            known.append({episode: list(walk) for episode, walk in walks.items()})
            return super().choose(pose, active, decide)

        def arrive(self, pose: Pose, active: Tensor) -> Pose:
            for episode, place in zip(active.tolist(), pose.viewpoint[active].tolist(), strict=True):
                walks.setdefault(episode, []).append(place)
            return super().arrive(pose, active)

    steps: list[dict[int, list[int]]] = []
    decide = policy.decide

    def noting(*arguments):  # type: ignore[no-untyped-def]
        steps.append(known[-1])
        return decide(*arguments)

    policy.decide = noting  # type: ignore[method-assign]
    collect(world, some, Walked(world, len(some), 4), policy, max_steps=20, label_rule=rule)
    jumped = 0
    for walked, (request, label, here, _) in zip(steps, policy.noted, strict=True):
        for row, episode in enumerate(request.episode.tolist()):
            walk, path = walked[episode], _path(some, episode)
            graph = _graph(world, set(walk))
            graph.add_node(walk[-1])
            values = {request.stop: _ndtw(world, walk, path)}
            for option in request.options[row, :-1].nonzero().squeeze(1).tolist():
                node = option // world.neighbour.shape[1]
                seen_from = list(dict.fromkeys(walk))[node]
                way = nx.dijkstra_path(graph, int(here[row]), seen_from, weight="metres")[1:]
                place = int(request.viewpoint[row, option])
                values[option] = _ndtw(world, [*walk, *way, place], path)
                jumped += len(way) > 0
            assert values[int(label[row])] == pytest.approx(max(values.values()), abs=1e-6)
    assert jumped > 10


def test_the_low_level_expert_of_a_path_visits_all_its_points(world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 9))
    rule = LowLevelPath(world, some.path, passes_over=False)
    space = LowLevelActions(world, len(some), 80)
    rollout = collect(world, some, space, FollowLabels(), max_steps=81, label_rule=rule)
    for row in range(len(some)):
        walked = [place for place in rollout.walked[row].tolist() if place != NONE]
        rest = iter(walked)
        assert all(point in rest for point in _path(some, row)), "in their order"
        assert walked[-1] == _path(some, row)[-1]
