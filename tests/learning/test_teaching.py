"""A teacher that steps in off the path, against plain references."""

from __future__ import annotations

import networkx as nx
import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, LocalActions
from scenemem.agents.rollout import DecisionRequest
from scenemem.agents.walker import collect
from scenemem.learning.objectives import ClosestToGoal
from scenemem.learning.trainer import InterventionPolicy, hops_to_path
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import Pose, World
from tests.agents.helpers import Roaming, known_graph


def test_hops_to_a_path_are_those_of_its_nearest_point(world: World, episodes: EpisodeSet) -> None:
    graph = known_graph(world, [*range(len(world.viewpoints))])
    some = episodes.select(range(0, len(episodes), 5))
    here = some.goal.roll(1)
    same = world.scan_of[here] == world.scan_of[some.goal]
    here = torch.where(same, here, some.start)
    found = hops_to_path(world, here, some.path)
    for row, place in enumerate(here.tolist()):
        points = [point for point in some.path[row].tolist() if point >= 0]
        ways = [nx.dijkstra_path(graph, place, point, weight="metres") for point in points]
        assert int(found[row]) == min(len(way) - 1 for way in ways)


class _Noting(Roaming):
    """Keeps every request's places and choices."""

    def __init__(self) -> None:
        super().__init__(stops=1e-6)
        self.noted: list[tuple[Tensor, Tensor]] = []

    def decide(
        self, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace, /
    ) -> tuple[Tensor, None]:
        choice, logits = super().decide(request, label, pose, space)
        self.noted.append((pose.viewpoint[request.episode], choice))
        return choice, logits


def test_an_episode_off_the_path_does_what_is_right(world: World, episodes: EpisodeSet) -> None:
    some, roams = episodes.select(range(0, len(episodes), 4)), _Noting()
    policy = InterventionPolicy(roams, world, some.path, hops=2)
    space = LocalActions(world, len(some), 8)
    rollout = collect(world, some, space, policy, max_steps=9, label_rule=ClosestToGoal(world, some.goal))
    (table,) = rollout.decisions.values()
    here, chosen = (torch.cat(column) for column in zip(*roams.noted, strict=True))
    lost = hops_to_path(world, here, some.path[table.episode]) >= 2
    assert lost.any()
    assert (~lost).any()
    assert torch.equal(table.choice, torch.where(lost, table.label, chosen))
