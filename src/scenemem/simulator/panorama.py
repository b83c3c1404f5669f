"""The panoramic simulator: batches of agents that stand at viewpoints, face a view and hop along edges.

Shape letters: B agents, K largest number of neighbours in the world.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.world.graph import (
    HEADINGS,
    STEP,
    VIEWS,
    World,
    nearest_heading_step,
    view_elevation,
    view_heading,
    wrap,
)

STOP = -1
"""The action that ends an episode; every other action is a slot of the neighbour row."""

STAY = -3
"""The action that goes nowhere, for action spaces in which agents turn on the spot."""


@dataclass(frozen=True)
class Pose:
    """Where a batch of agents stand, which view they face, and who has stopped."""

    viewpoint: Tensor  # (B,) int64, global index
    view: Tensor  # (B,) int64, 0..35: heading step + 12 * elevation row
    done: Tensor  # (B,) bool

    @property
    def heading(self) -> Tensor:
        """(B,) radians, the centre of the view the agent faces."""
        return view_heading(self.view)

    @property
    def elevation(self) -> Tensor:
        """(B,) radians"""
        return view_elevation(self.view)


@dataclass(frozen=True)
class Candidates:
    """What a batch of agents can do next: the neighbours of where they stand."""

    viewpoint: Tensor  # (B, K) int64, padded with -1
    mask: Tensor  # (B, K) bool, true at real neighbours
    view: Tensor  # (B, K) int64, the view that looks at the neighbour; 0 at pads
    heading: Tensor  # (B, K) radians in [-pi, pi], relative to the agent's heading step; 0 at pads
    elevation: Tensor  # (B, K) radians, absolute; 0 at pads


class Simulator:
    """Moves batches of agents over a world, on its device; every method maps a pose to something new.

    ``check`` refuses actions that lead nowhere. It costs one look at the result per step, so a training loop
    whose choices are masked anyway turns it off to keep a GPU busy.
    """

    def __init__(self, world: World, *, check: bool = True) -> None:
        self.world = world
        self.check = check

    def reset(self, start: Tensor, heading: Tensor) -> Pose:
        """Put agents at ``start`` facing the heading step closest to ``heading``, at the horizon.

        start: (B,) int64  heading: (B,) radians
        """
        view = nearest_heading_step(heading) + HEADINGS
        return Pose(start, view, torch.zeros_like(start, dtype=torch.bool))

    def candidates(self, pose: Pose) -> Candidates:
        """The neighbours of every agent, in the order of the world's neighbour rows."""
        here, world = pose.viewpoint, self.world
        # index_select copies whole rows: four times as fast as plain indexing on a CPU
        mask = world.neighbour_mask.index_select(0, here)
        relative = wrap(world.neighbour_heading.index_select(0, here) - pose.heading.unsqueeze(-1))
        return Candidates(
            viewpoint=world.neighbour.index_select(0, here),
            mask=mask,
            view=world.neighbour_view.index_select(0, here),
            heading=relative * mask,
            elevation=world.neighbour_elevation.index_select(0, here),
        )

    def step(self, pose: Pose, action: Tensor) -> Pose:
        """Every agent hops to the neighbour in slot ``action`` and faces where it walked, or stops.

        Agents that have stopped stay where they are, whatever their action.

        action: (B,) int64, a slot of the neighbour row, STOP, or STAY

        Raises:
            ValueError: with ``check``, an agent chose a slot that holds no neighbour.
        """
        moving = (action != STOP) & (action != STAY) & ~pose.done
        if self.check:
            self._check_slots(pose, action, moving)
        slot = torch.where(moving, action, 0)
        entry = pose.viewpoint * self.world.neighbour.shape[1] + slot
        viewpoint = self.world.neighbour.view(-1).index_select(0, entry)
        view = self.world.neighbour_view.view(-1).index_select(0, entry)
        return Pose(
            viewpoint=torch.where(moving, viewpoint, pose.viewpoint),
            view=torch.where(moving, view, pose.view),
            done=pose.done | (action == STOP),
        )

    def _check_slots(self, pose: Pose, action: Tensor, moving: Tensor) -> None:
        degree = self.world.degree[pose.viewpoint]
        bad = moving & ((action < 0) | (action >= degree))
        if bool(bad.any()):
            agent = int(bad.int().argmax())
            name = self.world.names[pose.viewpoint[agent]]
            raise ValueError(
                f"agent {agent} chose slot {int(action[agent])} at {name}, which has "
                f"{int(degree[agent])} neighbours; choose a slot below that number, or {STOP} to stop"
            )


def view_angles(pose: Pose) -> tuple[Tensor, Tensor]:
    """Direction of all 36 views as the agents see them: heading relative to the agent, elevation absolute.

    ->  heading (B, 36) radians in [-pi, pi], elevation (B, 36)
    """
    views = torch.arange(VIEWS, device=pose.view.device)
    relative_step = (views % HEADINGS) - (pose.view % HEADINGS).unsqueeze(-1)
    heading = wrap(relative_step * STEP)
    return heading, view_elevation(views).expand_as(heading)
