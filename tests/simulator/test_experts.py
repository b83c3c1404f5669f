"""Experts reach what they are asked to reach, over exactly the length they should."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.formats.folder import DataFolder
from scenemem.simulator.panorama import (
    STOP,
    Simulator,
    Track,
    reference_action,
    reference_progress,
    shortest_path_action,
)
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, World


@pytest.fixture(scope="module")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity")


def follow_shortest(world: World, start: Tensor, goal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Walk until every agent stopped  ->  where (B,), metres (B,), hops (B,)"""
    simulator = Simulator(world)
    pose = simulator.reset(start, torch.zeros(len(start)))
    metres, hops = torch.zeros(len(start), dtype=torch.float64), torch.zeros_like(start)
    while not bool(pose.done.all()):
        action = shortest_path_action(world, pose.viewpoint, goal)
        length = world.neighbour_length[pose.viewpoint, action.clamp_min(0)]
        metres += torch.where(action == STOP, 0.0, length)
        hops += action != STOP
        pose = simulator.step(pose, action)
    return pose.viewpoint, metres, hops


def follow_reference(
    world: World, reference: Tensor, start: Tensor, push: Tensor | None = None
) -> list[list[int]]:
    """Every agent's walk behind the reference expert; ``push`` (B,) slots replace its first advice."""
    simulator = Simulator(world)
    pose = simulator.reset(start, torch.zeros(len(start)))
    track = Track(pose)
    progress = reference_progress(reference, torch.zeros_like(start), pose.viewpoint)
    while not bool(pose.done.all()):
        action = reference_action(world, reference, progress, pose.viewpoint)
        if push is not None:
            action, push = push, None
        pose = simulator.step(pose, action)
        progress = reference_progress(reference, progress, pose.viewpoint)
        track.append(pose)
    viewpoint, _, length = track.walked()
    return [row[: int(n)].tolist() for row, n in zip(viewpoint, length, strict=True)]


def visits_in_order(walk: list[int], points: list[int]) -> bool:
    remaining = iter(walk)
    return all(point in remaining for point in points)


def padded(world: World, scan: str, *paths: list[str]) -> Tensor:
    longest = max(map(len, paths))
    rows = [[world.index_of(scan, name) for name in path] for path in paths]
    return torch.tensor([row + [NONE] * (longest - len(row)) for row in rows])


def test_the_shortest_expert_reaches_every_goal_from_everywhere(world: World) -> None:
    everywhere = torch.arange(len(world.viewpoints))
    start, goal = torch.cartesian_prod(everywhere, everywhere).unbind(1)
    reachable = world.geodesic(start, goal).isfinite()
    start, goal = start[reachable], goal[reachable]
    reached, metres, _ = follow_shortest(world, start, goal)
    assert torch.equal(reached, goal)
    torch.testing.assert_close(metres, world.geodesic(start, goal))


def test_the_shortest_expert_stops_where_no_way_leads_to_the_goal(world: World) -> None:
    start, alone = world.index_of("grid", "g00"), world.index_of("grid", "g-alone")
    assert int(shortest_path_action(world, torch.tensor([start]), torch.tensor([alone]))) == STOP


def test_the_reference_expert_follows_the_path_even_where_it_is_not_the_shortest(world: World) -> None:
    detour = ["g00", "g01", "g02", "g12", "g11", "g10", "g20"]
    reference = padded(world, "grid", detour, ["g00", "g10"], ["g21"])
    walks = follow_reference(world, reference, reference[:, 0])
    assert walks == [[i for i in row if i != NONE] for row in reference.tolist()]


def test_the_reference_expert_follows_paths_that_cross_themselves(world: World) -> None:
    crossing = ["g00", "g10", "g11", "g01", "g00", "g10", "g20"]
    back_and_forth = ["g20", "g21", "g20", "g21", "g11"]
    reference = padded(world, "grid", crossing, back_and_forth)
    walks = follow_reference(world, reference, reference[:, 0])
    assert walks == [[i for i in row if i != NONE] for row in reference.tolist()]


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_pushed_off_its_path_the_expert_still_visits_every_point_in_order(world: World, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    connected = torch.where(world.degree > 0)[0]
    start = connected[torch.randint(len(connected), (6,), generator=random)]
    places = [start]
    for _ in range(5):  # a random walk, crossing itself as it likes
        slot = (torch.rand(6, generator=random) * world.degree[places[-1]]).long()
        places.append(world.neighbour[places[-1], slot])
    reference = torch.stack(places, dim=1)
    push = (torch.rand(6, generator=random) * world.degree[start]).long()
    for walk, points in zip(follow_reference(world, reference, start, push), reference.tolist(), strict=True):
        assert visits_in_order(walk, points)
        assert walk[-1] == points[-1]


def test_progress_counts_only_the_next_point_and_never_runs_over_the_end(world: World) -> None:
    reference = padded(world, "grid", ["g00", "g10", "g20"], ["g00", "g10"])
    ends = torch.tensor([world.index_of("grid", "g20"), world.index_of("grid", "g10")])
    progress = reference_progress(reference, torch.zeros(2, dtype=torch.int64), ends)
    assert progress.tolist() == [0, 0], "a later point does not count before its turn"
    for names, expected in (("g00", [1, 1]), ("g10", [2, 2]), ("g10", [2, 2]), ("g20", [3, 2])):
        progress = reference_progress(reference, progress, torch.tensor([world.index_of("grid", names)] * 2))
        assert progress.tolist() == expected
    assert reference_action(world, reference, progress, ends).tolist() == [STOP, STOP]


@pytest.mark.real_data
@pytest.mark.parametrize("split", ["train", "val_seen", "val_unseen"])
def test_experts_solve_real_r2r(real_data: Path, split: str) -> None:
    folder = DataFolder(real_data)
    world = load_world(folder.connectivity)
    episodes = load_split(folder, world, "r2r", split)
    first = torch.cat([torch.ones(1, dtype=torch.bool), episodes.record[1:] != episodes.record[:-1]])
    start, goal, path = (values[first] for values in (episodes.start, episodes.goal, episodes.path))

    reached, metres, _ = follow_shortest(world, start, goal)
    assert torch.equal(reached, goal)
    torch.testing.assert_close(metres, world.geodesic(start, goal))
    there = path[:, 1:].clamp_min(0)
    edges = world.neighbour_length[path[:, :-1].clamp_min(0), world.slot_of(path[:, :-1].clamp_min(0), there)]
    reference_length = edges.masked_fill(path[:, 1:] == NONE, 0.0).sum(1)
    longer = (reference_length - metres > 1e-9).sum()
    assert int(longer) == (8 if split == "val_unseen" else 0), "published: 8 paths are not shortest"

    walks = follow_reference(world, path, start)
    assert walks == [[i for i in row if i != NONE] for row in path.tolist()]
