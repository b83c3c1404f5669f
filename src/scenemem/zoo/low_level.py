"""The low-level action space of the first R2R agents: turn, tilt, step forward, or stop, one view at a time.

A camera looks in one of 12 headings and 3 elevations; a turn or a tilt is 30 degrees. Forward leads to the
neighbour nearest to the middle of the picture, if one is in sight: its heading lies within half of the
horizontal field of view, 40 degrees of a picture of 640 x 480 with a vertical field of 60. Its elevation only
counts for what is nearest. Shape letters: B episodes, M episodes that decide, K candidate slots.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

import scenemem.extend as ext
from scenemem.world.graph import HEADINGS, ROWS, STAY, STEP, view_elevation, view_heading, wrap

LOW_LEVEL = ext.DecisionType(
    "low_level",
    over_nodes=False,
    names=("turn left", "turn right", "look up", "look down", "forward", "stop"),
)
"""Turn, tilt, step forward, or stop."""

LEFT, RIGHT, UP, DOWN, FORWARD, END = range(6)

IN_SIGHT = math.radians(40.0)
"""Half of the horizontal field of view."""


class LowLevelActions(ext.ActionSpace):
    """Six options: left, right, up, down, forward, stop. Tilting beyond the highest view changes nothing."""

    def __init__(self, world: ext.World, episodes: int, max_decisions: ext.Limit) -> None:
        super().__init__(world, episodes, max_decisions)
        self.view = torch.full((episodes,), ext.NONE, device=world.device)  # (B,) where the cameras look

    def arrive(self, pose: ext.Pose, episodes: Tensor, goes_on: Tensor) -> tuple[ext.Pose, ext.Arrival]:
        """The camera looks where it was turned to; a step forward does not turn it."""
        view = torch.where(self.view[episodes] == ext.NONE, pose.view[episodes], self.view[episodes])
        self.view[episodes] = view
        pose = replace(pose, view=pose.view.index_copy(0, episodes, view))
        return super().arrive(pose, episodes, goes_on)

    def step(self, pose: ext.Pose, episodes: Tensor, decide: ext.Decide) -> Tensor:
        """Every episode chooses one of the six."""
        self.decisions_left[episodes] -= 1
        here, view = pose.viewpoint[episodes], self.view[episodes]
        slot = forward_slot(self.world, here, view)
        ahead = torch.where(slot == ext.NONE, here, self.world.neighbour[here, slot.clamp_min(0)])
        options = torch.ones(len(here), 6, dtype=torch.bool, device=here.device)
        options[:, FORWARD] = slot != ext.NONE
        leads_to = here.unsqueeze(1).repeat(1, 6)
        leads_to[:, FORWARD] = ahead
        choice = decide(ext.DecisionRequest(LOW_LEVEL, episodes, options, leads_to))
        self.view[episodes] = turned(view, choice)
        hop = torch.where(choice == FORWARD, slot, STAY)
        action = torch.full_like(pose.viewpoint, ext.STOP)
        return action.index_copy(0, episodes, torch.where(choice == END, ext.STOP, hop))


def forward_slot(world: ext.World, viewpoint: Tensor, view: Tensor) -> Tensor:
    """The neighbour that a step forward leads to.  viewpoint, view: (M,)  ->  (M,) slot, -1 for none"""
    aside, above, in_sight = seen_from(world, viewpoint, view)
    away = torch.hypot(aside, above).masked_fill(~in_sight, torch.inf)
    nearest, slot = away.min(dim=1)
    return torch.where(nearest.isfinite(), slot, ext.NONE)


def seen_from(world: ext.World, viewpoint: Tensor, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every neighbour relative to the middle of the picture: heading, elevation, and in sight or not.

    viewpoint, view: (M,)  ->  (M, K) each
    """
    aside = wrap(world.neighbour_heading[viewpoint] - view_heading(view).unsqueeze(1))
    above = world.neighbour_elevation[viewpoint] - view_elevation(view).unsqueeze(1)
    return aside, above, (aside.abs() <= IN_SIGHT) & world.neighbour_mask[viewpoint]


def turned(view: Tensor, choice: Tensor) -> Tensor:
    """The view after a choice.  (M,), (M,)  ->  (M,)"""
    heading, row = view % HEADINGS, view // HEADINGS
    heading = (heading + (choice == RIGHT).long() - (choice == LEFT).long()) % HEADINGS
    row = (row + (choice == UP).long() - (choice == DOWN).long()).clamp(0, ROWS - 1)
    return heading + HEADINGS * row


def action_between(before: Tensor, after: Tensor, moved: Tensor) -> Tensor:
    """What was done between two views: one of the six, or ``END`` where nothing changed.

    before, after: (M,) views  moved: (M,) bool, stands elsewhere  ->  (M,)
    """
    turn = (after % HEADINGS - before % HEADINGS) % HEADINGS
    tilt = after // HEADINGS - before // HEADINGS
    done = torch.full_like(after, END)
    done = torch.where(tilt > 0, UP, done)
    done = torch.where(tilt < 0, DOWN, done)
    done = torch.where(turn == 1, RIGHT, done)
    done = torch.where(turn == HEADINGS - 1, LEFT, done)
    return torch.where(moved, FORWARD, done)


def low_level_expert(world: ext.World, viewpoint: Tensor, view: Tensor, goal: Tensor) -> Tensor:
    """What leads to the goal along the shortest path, from where the camera looks.

    The next place in sight is turned to, then tilted to, while it is more than 30 degrees away, and then
    walked to. One out of sight is turned to the shorter way, the camera levelled first. A step forward may
    lead to another place in the middle of the picture; the next label repairs that.

    viewpoint, view, goal: (M,)  ->  (M,)
    """
    slot = world.next_slot(viewpoint, goal)
    aside, above, in_sight = (
        values.gather(1, slot.clamp_min(0).unsqueeze(1)).squeeze(1)
        for values in seen_from(world, viewpoint, view)
    )
    row = view // HEADINGS
    level = torch.where(row > 1, DOWN, torch.where(row < 1, UP, ext.NONE))
    sideways = torch.where(aside > 0, RIGHT, LEFT)
    tilt = torch.where(above > STEP, UP, torch.where(above < -STEP, DOWN, FORWARD))
    tilt = torch.where((tilt == UP) & (row == ROWS - 1) | (tilt == DOWN) & (row == 0), FORWARD, tilt)
    visible = torch.where(aside.abs() > STEP, sideways, tilt)
    hidden = torch.where(level == ext.NONE, sideways, level)
    return torch.where(slot == ext.NONE, END, torch.where(in_sight, visible, hidden))
