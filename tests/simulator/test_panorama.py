"""The panoramic simulator: where agents stand, what they face, where the shortest ways lead them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.formats.folder import DataFolder
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
        unchecked = Simulator(world, check=False).step(pose, torch.full_like(pose.viewpoint, slot))
        assert torch.equal(unchecked.viewpoint[able], moved.viewpoint)


def test_stopping_ends_the_episode_on_the_spot_whatever_is_done_then(
    simulator: Simulator, world: World
) -> None:
    after = pose = everywhere(world)
    for action in (STOP, 0, STOP, 99, -7):
        after = simulator.step(after, torch.full_like(pose.viewpoint, action))
        assert torch.equal(after.viewpoint, pose.viewpoint)
        assert torch.equal(after.view, pose.view)
        assert after.done.all()


@pytest.mark.parametrize(
    ("place", "degree", "slot"),
    [("g00", 2, 2), ("g00", 2, 3), ("g00", 2, 99), ("g00", 2, -2), ("g-alone", 0, 0)],
)
def test_a_slot_without_neighbour_is_refused_by_name(
    simulator: Simulator, world: World, place: str, degree: int, slot: int
) -> None:
    start = torch.tensor([world.index_of("spiral", "s4"), world.index_of("grid", place)])
    pose = simulator.reset(start, torch.zeros(2))
    message = (
        rf"^agent 1 chose slot {slot} at grid_{place}, which has {degree} neighbours; "
        r"choose a slot below that number, or -1 to stop$"
    )
    with pytest.raises(ValueError, match=message):
        simulator.step(pose, torch.tensor([0, slot]))


def test_candidates_are_the_neighbours_seen_from_the_heading_step(simulator: Simulator, world: World) -> None:
    pose = everywhere(world)
    seen, facing = simulator.candidates(pose), (pose.view % 12 * STEP).unsqueeze(1)
    mask, here = world.neighbour_mask[pose.viewpoint], pose.viewpoint
    assert torch.equal(seen.mask, mask)
    assert torch.equal(seen.viewpoint, world.neighbour[here])
    assert torch.equal(seen.view, world.neighbour_view[here])
    assert torch.equal(seen.elevation, world.neighbour_elevation[here])
    heading = wrap(world.neighbour_heading[here] - facing) * mask
    torch.testing.assert_close(seen.heading, heading.to(seen.heading), atol=1e-5, rtol=0.0)
    assert not seen.viewpoint[~mask].add(1).any(), "-1 where there is none"


@pytest.mark.real_data
@pytest.mark.parametrize("split", ["train", "val_seen", "val_unseen"])
def test_paths_of_real_r2r_are_shortest_but_for_eight(real_data: Path, split: str) -> None:
    folder = DataFolder(real_data)
    world = load_world(folder.connectivity)
    episodes = load_split(folder, world, "r2r", split)
    first = torch.cat([torch.ones(1, dtype=torch.bool), episodes.record[1:] != episodes.record[:-1]])
    start, goal, path = (values[first] for values in (episodes.start, episodes.goal, episodes.path))

    there = path[:, 1:].clamp_min(0)
    edges = world.neighbour_length[path[:, :-1].clamp_min(0), world.slot_of(path[:, :-1].clamp_min(0), there)]
    reference_length = edges.masked_fill(path[:, 1:] == NONE, 0.0).sum(1)
    longer = (reference_length - world.geodesic(start, goal) > 1e-9).sum()
    assert int(longer) == (8 if split == "val_unseen" else 0), "published: 8 paths are not shortest"
