"""Questions a world answers: distances, paths, slots and names."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from scenemem.errors import UserError
from scenemem.world.graph import NONE, World


def test_next_viewpoint_stays_at_the_goal_and_where_there_is_no_way(world: World) -> None:
    start, alone = world.index_of("grid", "g00"), world.index_of("grid", "g-alone")
    assert int(world.next_viewpoint(torch.tensor(start), torch.tensor(start))) == start
    assert int(world.next_viewpoint(torch.tensor(start), torch.tensor(alone))) == start


def test_slot_of_finds_neighbours_only(world: World) -> None:
    here, slot = world.neighbour_mask.nonzero(as_tuple=True)
    assert torch.equal(world.slot_of(here, world.neighbour[here, slot]), slot)
    s0, s2 = world.index_of("spiral", "s0"), world.index_of("spiral", "s2")
    assert int(world.slot_of(torch.tensor(s0), torch.tensor(s2))) == NONE
    assert int(world.slot_of(torch.tensor(s0), torch.tensor(s0))) == NONE


def test_index_of_inverts_the_names(world: World) -> None:
    for index, viewpoint in enumerate(world.viewpoints):
        scan = world.scans[int(world.scan_of[index])]
        assert world.index_of(scan, viewpoint) == index
        assert world.names[index] == f"{scan}_{viewpoint}"


def test_index_of_refuses_what_it_does_not_know(world: World) -> None:
    with pytest.raises(UserError, match=r"^unknown scan 'castle'; this world has 3 scans$"):
        world.index_of("castle", "g00")
    with pytest.raises(UserError, match=r"^scan 'grid' has no included viewpoint 's0'$"):
        world.index_of("grid", "s0")
    with pytest.raises(UserError, match="has no included viewpoint 'g-excluded'"):
        world.index_of("grid", "g-excluded")


def test_moving_a_world_moves_every_tensor(world: World) -> None:
    moved = world.to("meta")
    assert moved.device.type == "meta"
    assert (moved.scans, moved.viewpoints) == (world.scans, world.viewpoints)
    for field in fields(World):
        value = getattr(moved, field.name)
        if isinstance(value, torch.Tensor):
            assert value.device.type == "meta", field.name
            assert value.dtype == getattr(world, field.name).dtype
    assert torch.equal(world.to("cpu").pair_distance, world.pair_distance)
