"""Paths as a speaker meets them: where the walker stands and looks, where it goes, what it sees.

Shape letters: B paths, T viewpoints of the longest, M viewpoints of all paths together, D visual columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from scenemem.errors import UserError
from scenemem.features.store import Environment
from scenemem.models.speaker import PathViews
from scenemem.simulator.panorama import STOP, Simulator
from scenemem.world.graph import NONE, VIEWS, World, angle_feature, rotated, view_elevation, view_heading


@dataclass(frozen=True)
class Steps:
    """Walks along given paths, in the simulator's terms."""

    viewpoint: Tensor  # (B, T) int64, where the walker stands; -1 after the end
    view: Tensor  # (B, T) int64, the view it faces
    slot: Tensor  # (B, T) int64, the neighbour it goes to; STOP at the last viewpoint and after

    def select(self, rows: Tensor) -> Steps:
        """The given walks, in the given order, without columns that none of them reaches."""
        viewpoint = self.viewpoint[rows]
        longest = int((viewpoint != NONE).sum(dim=1).max())
        return Steps(viewpoint[:, :longest], self.view[rows, :longest], self.slot[rows, :longest])


def steps_along(world: World, path: Tensor, heading: Tensor) -> Steps:
    """How one walks along paths: after a hop the walker faces the view it walked along.

    path: (B, T) int64, padded with -1  heading: (B,) radians at the start

    Raises:
        UserError: a path is empty, or goes where there is no edge.
    """
    if path.shape[1] == 0 or bool((path[:, 0] == NONE).any()):
        raise UserError("a path is empty, expected at least one viewpoint")
    here, there = path[:, :-1].clamp_min(0), path[:, 1:]
    moves = there != NONE
    slot = world.slot_of(here, there).masked_fill(~moves, STOP)
    missing = moves & (slot == NONE)
    if bool(missing.any()):
        row, step = missing.nonzero()[0].tolist()
        source, target = (world.name(place) for place in path[row, step : step + 2].tolist())
        raise UserError(f"no edge leads from {source} to {target}; list every viewpoint walked through")
    begin = Simulator(world).reset(path[:, 0], heading).view.unsqueeze(1)
    walked_along = world.neighbour_view[here, slot.clamp_min(0)]
    return Steps(path, torch.cat([begin, walked_along], dim=1), functional.pad(slot, (0, 1), value=STOP))


def views_along(environment: Environment, steps: Steps) -> PathViews:
    """What is seen on the way."""
    world, mask = environment.world, steps.viewpoint != NONE
    here, facing, slot = steps.viewpoint[mask], steps.view[mask], steps.slot[mask]
    goes, slot = (slot != STOP).unsqueeze(-1), slot.clamp_min(0)
    heading = view_heading(facing)
    panoramas = environment.panorama(here).float()
    chosen = panoramas[torch.arange(len(here), device=here.device), world.neighbour_view[here, slot]]
    direction = angle_feature(world.neighbour_heading[here, slot], world.neighbour_elevation[here, slot], 4)
    views = torch.arange(VIEWS, device=here.device)
    angles = angle_feature(view_heading(views), view_elevation(views), width=4)
    return PathViews(
        mask=mask,
        chosen=_spread(chosen * goes, mask),
        direction=_spread(rotated(direction, heading) * goes, mask),
        panoramas=panoramas,
        angles=rotated(angles, heading.unsqueeze(-1)),
    )


def _spread(rows: Tensor, mask: Tensor) -> Tensor:
    """rows: (M, W)  mask: (B, T)  ->  (B, T, W), 0 where the mask is false"""
    table = rows.new_zeros(*mask.shape, rows.shape[1])
    table[mask] = rows
    return table
