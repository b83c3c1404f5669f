"""The world: angles, the 36 views, the graphs of all scans as static tensors, and poses that hop along them.

Headings are radians, clockwise from +y, in [0, 2 pi); elevations are radians, positive upwards. A view index
is ``heading step + 12 * elevation row``; row 0 looks down, 1 at the horizon, 2 up. Shape letters: V
viewpoints of all scans, K largest number of neighbours, P ordered viewpoint pairs that share a scan (the
distance tables of all scans, laid end to end), B agents.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property

import torch
from torch import Tensor

from scenemem.errors import UserError

HEADINGS = 12
ROWS = 3
VIEWS = HEADINGS * ROWS
STEP = math.pi / 6  # between neighbouring headings and between rows
ANGLE_WIDTH = 128  # the four sines and cosines are tiled to this width, as in the paper's section 3.4
FULL_TURN = 2 * math.pi


def direction(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Heading and elevation of the way from ``source`` to ``target``.

    source, target: (..., 3) metres  ->  heading (...), elevation (...)
    """
    east, north, up = (target - source).unbind(-1)
    heading = torch.atan2(east, north).remainder(FULL_TURN)
    return heading, torch.atan2(up, torch.hypot(east, north))


def wrap(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi]; angles that need no turn keep their exact value."""
    turned = angle - FULL_TURN * torch.round(angle / FULL_TURN)
    return turned.clamp(-math.pi, math.pi)  # rounding can leave it a hair outside


def view_heading(view: Tensor) -> Tensor:
    """view: (...) index  ->  heading of its centre (...)"""
    return (view % HEADINGS) * STEP


def view_elevation(view: Tensor) -> Tensor:
    """view: (...) index  ->  elevation of its centre (...)"""
    return (view.div(HEADINGS, rounding_mode="floor") - 1) * STEP


def nearest_view(heading: Tensor, elevation: Tensor) -> Tensor:
    """The view whose centre lies closest, by sqrt(dheading^2 + delevation^2).

    The two terms are independent, so the nearest heading step and the nearest row can be taken apart.

    heading, elevation: (...)  ->  view index (...)
    """
    row = torch.round(elevation / STEP).clamp(-1, 1).long() + 1
    return nearest_heading_step(heading) + HEADINGS * row


def nearest_heading_step(heading: Tensor) -> Tensor:
    """heading: (...)  ->  step 0..11 whose direction lies closest (...)"""
    return torch.round(heading / STEP).long() % HEADINGS


def angle_feature(heading: Tensor, elevation: Tensor, width: int = ANGLE_WIDTH) -> Tensor:
    """The orientation feature r = (cos heading, sin heading, cos elevation, sin elevation), tiled.

    heading, elevation: (...)  ->  (..., width)
    """
    if width % 4:
        raise ValueError(f"the width of an angle feature must be a multiple of 4, got {width}")
    feature = torch.stack([heading.cos(), heading.sin(), elevation.cos(), elevation.sin()], dim=-1)
    return feature.repeat(*[1] * heading.dim(), width // 4)


def rotated(orientation: Tensor, heading: Tensor) -> Tensor:
    """Orientation features as seen after turning clockwise by ``heading``.

    (cos(t - h), sin(t - h), cos p, sin p) from (cos t, sin t, cos p, sin p). Reads use it on the query:
    <rotated(r, h), q> = <r, rotated(q, -h)>, so absolute angles are stored once and never copied.

    orientation: (..., 4)  heading: (...) radians, broadcast  ->  (..., 4)
    """
    cosine, sine = heading.cos(), heading.sin()
    ahead, aside, rise, slope = orientation.unbind(-1)
    turned = ahead * cosine + aside * sine, aside * cosine - ahead * sine
    return torch.stack([*turned, rise.expand_as(turned[0]), slope.expand_as(turned[0])], dim=-1)


NONE = -1  # pads neighbour rows; also "no next step"


@dataclass(frozen=True, eq=False)
class World:
    """Where one can stand, where one can go from there, and how far everything is.

    Only included viewpoints have an index; scans are sorted by name, viewpoints keep their file order.
    """

    scans: tuple[str, ...]
    viewpoints: tuple[str, ...]  # V ids
    scan_of: Tensor  # (V,) int64, index into scans
    position: Tensor  # (V, 3) float64, metres
    neighbour: Tensor  # (V, K) int64, padded with -1
    neighbour_view: Tensor  # (V, K) int64, the view that looks at the neighbour; 0 at pads
    neighbour_heading: Tensor  # (V, K) float32, radians, clockwise from +y; 0 at pads
    neighbour_elevation: Tensor  # (V, K) float32, radians, positive upwards; 0 at pads
    neighbour_length: Tensor  # (V, K) float64, metres; inf at pads
    row_start: Tensor  # (V,) int64, where this viewpoint's row begins in the pair tables
    local: Tensor  # (V,) int64, number of this viewpoint within its scan
    pair_distance: Tensor  # (P,) float64, metres along the graph; inf when there is no way
    pair_slot: Tensor  # (P,) int16, first step as an index into the neighbour row; -1 where there is none

    @cached_property
    def device(self) -> torch.device:
        """The device all tensors live on."""
        return self.neighbour.device

    def to(self, device: torch.device | str) -> World:
        """The same world on another device (float64 tables become float32 where the device lacks float64)."""
        device = torch.device(device)
        double = torch.float32 if device.type == "mps" else torch.float64
        moved = {
            item.name: value.to(device, double if value.dtype == torch.float64 else value.dtype)
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        return World(scans=self.scans, viewpoints=self.viewpoints, **moved)

    @cached_property
    def neighbour_mask(self) -> Tensor:
        """(V, K) bool, true at real neighbours."""
        return self.neighbour != NONE

    @cached_property
    def degree(self) -> Tensor:
        """(V,) int64, how many neighbours each viewpoint has; they fill the first slots of its row."""
        return self.neighbour_mask.sum(dim=1)

    def geodesic(self, source: Tensor, target: Tensor) -> Tensor:
        """Metres along the graph; inf between scans and where there is no way.

        source, target: (...) int64, broadcast together  ->  (...) float64
        """
        return self._of_pairs(self.pair_distance, source, target, torch.inf)

    def next_slot(self, source: Tensor, target: Tensor) -> Tensor:
        """First step of the shortest path as an index into ``neighbour[source]``; -1 where there is none.

        source, target: (...) int64, broadcast together  ->  (...) int64
        """
        return self._of_pairs(self.pair_slot, source, target, NONE).long()

    def next_viewpoint(self, source: Tensor, target: Tensor) -> Tensor:
        """The viewpoint after ``source`` on the way to ``target``; ``source`` itself when there is none."""
        slot = self.next_slot(source, target)
        return torch.where(slot == NONE, source, self.neighbour[source, slot.clamp_min(0)])

    def hops(self, source: Tensor, target: Tensor) -> Tensor:
        """Edges of the shortest path (by metres) between connected viewpoints.  (...), (...)  ->  (...)"""
        hops = torch.zeros_like(source + target)
        here, target = source.expand_as(hops), target.expand_as(hops)
        while bool((here != target).any()):
            hops = hops + (here != target)
            following = self.next_viewpoint(here, target)
            if torch.equal(following, here):
                raise ValueError("there is no way between two of the viewpoints")
            here = following
        return hops

    def slot_of(self, source: Tensor, target: Tensor) -> Tensor:
        """The index of ``target`` in the neighbour row of ``source``; -1 where the two are not connected.

        source, target: (...) int64  ->  (...) int64
        """
        match = self.neighbour[source] == target.unsqueeze(-1)
        return torch.where(match.any(-1), match.int().argmax(-1), NONE)

    def index_of(self, scan: str, viewpoint: str) -> int:
        """The global index of a viewpoint.

        Raises:
            UserError: the scan or the viewpoint is not part of this world.
        """
        try:
            return self._index[scan, viewpoint]
        except KeyError:
            if scan not in self.scans:
                raise UserError(f"unknown scan '{scan}'; this world has {len(self.scans)} scans") from None
            raise UserError(f"scan '{scan}' has no included viewpoint '{viewpoint}'") from None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """``<scan>_<viewpoint>`` of every viewpoint in index order, as feature files and messages use it."""
        pairs = zip(self.scan_of.tolist(), self.viewpoints, strict=True)
        return tuple(f"{self.scans[scan]}_{viewpoint}" for scan, viewpoint in pairs)

    @cached_property
    def _index(self) -> dict[tuple[str, str], int]:
        scans = (self.scans[scan] for scan in self.scan_of.tolist())
        return {pair: i for i, pair in enumerate(zip(scans, self.viewpoints, strict=True))}

    def _of_pairs(self, table: Tensor, source: Tensor, target: Tensor, otherwise: float) -> Tensor:
        """table: (P,)  source, target: (...)  ->  entries of the pairs (...), ``otherwise`` across scans"""
        same_scan = self.scan_of[source] == self.scan_of[target]
        entry = (self.row_start[source] + self.local[target]) * same_scan
        return table[entry].masked_fill(~same_scan, otherwise)


def scan_mask(known: Sequence[str], chosen: Collection[str]) -> Tensor:
    """Which of the ``known`` scans are chosen  ->  (known,) bool

    Raises:
        UserError: a chosen scan is not known.
    """
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise UserError(f"unknown scan '{unknown[0]}'; this world has {len(known)} scans")
    return torch.tensor([name in set(chosen) for name in known])


STOP = -1
"""The action that ends an episode; every other action is a slot of the neighbour row."""

STAY = -3
"""The action that goes nowhere, for action spaces in which agents turn on the spot."""


@dataclass(frozen=True)
class Pose:
    """Where a batch of agents stand, which view they face, and which have stopped."""

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


@dataclass(frozen=True, eq=False)
class Simulator:
    """Moves batches of agents over a world, on its device; every method maps a pose to something new.

    ``check`` refuses actions that lead nowhere. It costs one look at the result per step, so a training loop
    whose choices are masked anyway turns it off to keep a GPU busy.
    """

    world: World
    check: bool = field(default=True, kw_only=True)

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
