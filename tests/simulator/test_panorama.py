"""The panoramic simulator: where agents stand, what they face, where the shortest ways lead them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scenemem.agents.scripted import ExpertAgent
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import ReferencePath, reference_progress
from scenemem.tasks.episode_set import load_split
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, STEP, STOP, Pose, Simulator, World, wrap


@pytest.fixture(scope="module")
def simulator(world: World) -> Simulator:
    return Simulator(world)


def everywhere(world: World) -> Pose:
    """One agent at every viewpoint that has neighbours, facing all kinds of views."""
    viewpoint = torch.where(world.degree > 0)[0]
    return Pose(viewpoint, (7 * viewpoint) % 36, torch.zeros_like(viewpoint, dtype=torch.bool))


@given(st.lists(st.floats(-10.0, 10.0), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_reset_snaps_the_heading_to_the_nearest_step_at_the_horizon(
    simulator: Simulator, headings: list[float]
) -> None:
    heading = torch.tensor(headings, dtype=torch.float64)
    pose = simulator.reset(torch.arange(len(headings)), heading)
    assert torch.equal(pose.viewpoint, torch.arange(len(headings)))
    assert (pose.elevation == 0).all()
    assert not pose.done.any()
    assert (wrap(pose.heading - heading).abs() <= STEP / 2 + 1e-6).all()


def test_a_step_leads_to_the_neighbour_and_faces_the_view_walked_towards(
    simulator: Simulator, world: World
) -> None:
    pose = everywhere(world)
    for slot in range(world.neighbour.shape[1]):
        able = slot < world.degree[pose.viewpoint]
        here = pose.viewpoint[able]
        moved = simulator.step(Pose(here, pose.view[able], pose.done[able]), torch.full_like(here, slot))
        assert torch.equal(moved.viewpoint, world.neighbour[here, slot])
        assert torch.equal(moved.view, world.neighbour_view[here, slot])
        off = wrap(moved.heading - world.neighbour_heading[here, slot]).abs()
        assert (off <= STEP / 2 + 1e-6).all(), "the agent looks where it walked"
        assert not moved.done.any()


def test_stopping_ends_the_episode_on_the_spot(simulator: Simulator, world: World) -> None:
    pose = everywhere(world)
    stopped = simulator.step(pose, torch.full_like(pose.viewpoint, STOP))
    assert torch.equal(stopped.viewpoint, pose.viewpoint)
    assert torch.equal(stopped.view, pose.view)
    assert stopped.done.all()


def test_agents_that_stopped_stay_whatever_they_do(simulator: Simulator, world: World) -> None:
    pose = everywhere(world)
    done = Pose(pose.viewpoint, pose.view, torch.ones_like(pose.done))
    for action in (0, STOP, 99, -7):
        after = simulator.step(done, torch.full_like(pose.viewpoint, action))
        assert torch.equal(after.viewpoint, pose.viewpoint)
        assert torch.equal(after.view, pose.view)
        assert after.done.all()


@pytest.mark.parametrize("slot", [2, 3, 99, -2])
def test_a_slot_without_neighbour_is_refused_by_name(simulator: Simulator, world: World, slot: int) -> None:
    start = torch.tensor([world.index_of("spiral", "s4"), world.index_of("grid", "g00")])
    pose = simulator.reset(start, torch.zeros(2))
    message = (
        rf"^agent 1 chose slot {slot} at grid_g00, which has 2 neighbours; "
        r"choose a slot below that number, or -1 to stop$"
    )
    with pytest.raises(ValueError, match=message):
        simulator.step(pose, torch.tensor([0, slot]))


def test_unchecked_steps_are_the_same_steps(simulator: Simulator, world: World) -> None:
    pose, action = everywhere(world), torch.zeros(int((world.degree > 0).sum()), dtype=torch.int64)
    checked, unchecked = simulator.step(pose, action), Simulator(world, check=False).step(pose, action)
    assert torch.equal(checked.viewpoint, unchecked.viewpoint)
    assert torch.equal(checked.view, unchecked.view)


def test_candidates_are_the_neighbours_seen_from_the_heading_step(simulator: Simulator, world: World) -> None:
    pose = everywhere(world)
    seen = simulator.candidates(pose)
    for episode, here in enumerate(pose.viewpoint.tolist()):
        degree = int(world.degree[here])
        facing = (int(pose.view[episode]) % 12) * math.pi / 6
        for slot in range(seen.mask.shape[1]):
            there = int(seen.viewpoint[episode, slot])
            assert bool(seen.mask[episode, slot]) == (slot < degree)
            if slot >= degree:
                pads = (seen.view[episode, slot], seen.heading[episode, slot], seen.elevation[episode, slot])
                assert there == NONE
                assert [float(value) for value in pads] == [0.0, 0.0, 0.0]
                continue
            east, north, up = (world.position[there] - world.position[here]).tolist()
            expected = math.remainder(math.atan2(east, north) - facing, 2 * math.pi)
            assert float(seen.heading[episode, slot]) == pytest.approx(expected, abs=1e-5)
            assert float(seen.elevation[episode, slot]) == pytest.approx(
                math.atan2(up, math.hypot(east, north))
            )
            assert int(seen.view[episode, slot]) == int(world.neighbour_view[here, slot])


def test_an_isolated_viewpoint_has_no_candidate(simulator: Simulator, world: World) -> None:
    alone = simulator.reset(torch.tensor([world.index_of("grid", "g-alone")]), torch.zeros(1))
    assert not simulator.candidates(alone).mask.any()
    with pytest.raises(ValueError, match="which has 0 neighbours"):
        simulator.step(alone, torch.tensor([0]))


def test_permuting_the_agents_permutes_the_result(simulator: Simulator, world: World) -> None:
    pose = everywhere(world)
    order = torch.randperm(len(pose.viewpoint), generator=torch.Generator().manual_seed(1))
    action = torch.where(pose.viewpoint % 3 == 0, STOP, 0)
    permuted = Pose(pose.viewpoint[order], pose.view[order], pose.done[order])
    for straight, mixed in (
        (simulator.step(pose, action), simulator.step(permuted, action[order])),
        (simulator.candidates(pose), simulator.candidates(permuted)),
    ):
        for name, values in vars(straight).items():
            assert torch.equal(values[order], getattr(mixed, name)), name


def test_an_empty_batch_walks_nowhere(simulator: Simulator) -> None:
    nobody = simulator.reset(torch.zeros(0, dtype=torch.int64), torch.zeros(0))
    after = simulator.step(nobody, torch.zeros(0, dtype=torch.int64))
    assert [values.shape for values in vars(after).values()] == [(0,)] * 3


def follow_shortest(world: World, start: Tensor, goal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Walk until every agent stopped  ->  where (B,), metres (B,), hops (B,)"""
    simulator = Simulator(world)
    pose = simulator.reset(start, torch.zeros(len(start)))
    metres, hops = torch.zeros(len(start), dtype=torch.float64), torch.zeros_like(start)
    while not bool(pose.done.all()):
        action = world.next_slot(pose.viewpoint, goal)
        length = world.neighbour_length[pose.viewpoint, action.clamp_min(0)]
        metres += torch.where(action == STOP, 0.0, length)
        hops += action != STOP
        pose = simulator.step(pose, action)
    return pose.viewpoint, metres, hops


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
    assert int(world.next_slot(torch.tensor([start]), torch.tensor([alone]))) == STOP


def test_progress_counts_only_the_next_point_and_never_runs_over_the_end(world: World) -> None:
    reference = padded(world, "grid", ["g00", "g10", "g20"], ["g00", "g10"])
    ends = torch.tensor([world.index_of("grid", "g20"), world.index_of("grid", "g10")])
    progress = reference_progress(reference, torch.zeros(2, dtype=torch.int64), ends)
    assert progress.tolist() == [0, 0], "a later point does not count before its turn"
    for names, expected in (("g00", [1, 1]), ("g10", [2, 2]), ("g10", [2, 2]), ("g20", [3, 2])):
        progress = reference_progress(reference, progress, torch.tensor([world.index_of("grid", names)] * 2))
        assert progress.tolist() == expected


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

    some = episodes.select(first.nonzero().squeeze(1))
    walked = ExpertAgent(world, lambda batch: ReferencePath(world, batch.path)).walk(some).walked
    assert [[i for i in row if i != NONE] for row in walked.tolist()] == [
        [i for i in row if i != NONE] for row in path.tolist()
    ]
