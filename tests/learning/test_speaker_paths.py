from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scenemem.errors import UserError
from scenemem.features.store import Environment
from scenemem.learning.speaker import steps_along, views_along
from scenemem.world.graph import (
    HEADINGS,
    NONE,
    STEP,
    STOP,
    VIEWS,
    Pose,
    Simulator,
    World,
    angle_feature,
    view_elevation,
)


def _angles(pose: Pose) -> Tensor:
    """The directions of all 36 views as agents see them  ->  (B, 36, 4)"""
    views = torch.arange(VIEWS)
    heading = (views % HEADINGS - (pose.view % HEADINGS).unsqueeze(1)) * STEP
    return angle_feature(heading, view_elevation(views).expand_as(heading), width=4)


def _random_walks(world: World, count: int) -> tuple[Tensor, Tensor]:
    """Walks of different lengths that also turn back  ->  (count, 7), headings (count,)"""
    generator = torch.Generator().manual_seed(0)
    starts = world.neighbour_mask.any(1).nonzero().squeeze(1)
    here = starts[torch.randint(len(starts), (count,), generator=generator)]
    columns = [here]
    for _ in range(6):
        slot = torch.rand(count, generator=generator).mul(world.degree[here]).long()
        here = world.neighbour[here, slot]
        columns.append(here)
    lengths = torch.randint(1, 8, (count, 1), generator=generator)
    path = torch.stack(columns, dim=1).masked_fill(torch.arange(7) >= lengths, NONE)
    return path, torch.rand(count, generator=generator, dtype=torch.float64) * 2 * math.pi


def test_a_walk_is_what_the_simulator_makes_of_it(environment: Environment) -> None:
    """Everything a speaker is shown, step by step, against the simulator and the store."""
    world, simulator = environment.world, Simulator(environment.world)
    path, heading = _random_walks(world, 40)
    steps = steps_along(world, path, heading)
    views, step_number = views_along(environment, steps), 0
    for row in range(len(path)):
        pose = simulator.reset(path[row, :1], heading[row : row + 1])
        length = int((path[row] != NONE).sum())
        for time in range(length):
            assert pose.viewpoint.item() == path[row, time]
            assert pose.view.item() == steps.view[row, time]
            panorama = environment.store.gather(pose.viewpoint)[0]
            assert torch.equal(views.panoramas[step_number], panorama)
            torch.testing.assert_close(views.angles[step_number : step_number + 1], _angles(pose))
            slot, seen = int(steps.slot[row, time]), simulator.candidates(pose)
            if time == length - 1:
                assert slot == STOP
                assert not views.chosen[row, time].any()
                assert not views.direction[row, time].any()
            else:
                assert torch.equal(views.chosen[row, time], panorama[seen.view[0, slot]])
                expected = angle_feature(seen.heading[0, slot], seen.elevation[0, slot], width=4)
                torch.testing.assert_close(views.direction[row, time], expected)
            pose = simulator.step(pose, steps.slot[row, time : time + 1])
            step_number += 1
        assert bool((steps.slot[row, length:] == STOP).all())
    assert step_number == len(views.panoramas)


def test_selected_walks_lose_the_columns_nobody_reaches(environment: Environment) -> None:
    path, heading = _random_walks(environment.world, 40)
    rows = ((path != NONE).sum(1) <= 3).nonzero().squeeze(1)
    chosen = steps_along(environment.world, path, heading).select(rows)
    again = steps_along(environment.world, path[rows, :3], heading[rows])
    assert all(torch.equal(getattr(chosen, name), getattr(again, name)) for name in vars(chosen))


def test_impossible_paths_are_refused(environment: Environment) -> None:
    world, heading = environment.world, torch.zeros(2, dtype=torch.float64)
    a, b = (world.index_of("grid", name) for name in ("g00", "g11"))
    with pytest.raises(UserError, match="no edge leads from grid_g00 to grid_g11; list every viewpoint"):
        steps_along(world, torch.tensor([[a, NONE], [a, b]]), heading)
    with pytest.raises(UserError, match="a path is empty, expected at least one viewpoint"):
        steps_along(world, torch.tensor([[a, NONE], [NONE, NONE]]), heading)
    with pytest.raises(UserError, match="a path is empty"):
        steps_along(world, torch.empty(2, 0, dtype=torch.int64), heading)
