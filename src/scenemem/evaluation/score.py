"""Scoring result files: match trajectories to episodes, refuse impossible walks, measure the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scenemem.errors import DataError, UserError
from scenemem.evaluation.metrics import Metrics, measure
from scenemem.formats.atomic import StrPath
from scenemem.formats.results import Point, Trajectory
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World, view_elevation, view_heading

MOST_POINTS = 10_000  # of one trajectory: all are padded to the longest, so an endless one fills the memory


@dataclass(frozen=True, eq=False)
class SplitScores:
    """The metrics of a result file, in the order of its trajectories."""

    instruction_ids: tuple[str, ...]
    metrics: Metrics  # one value per trajectory
    missing: int  # episodes without a trajectory


@dataclass(frozen=True, eq=False)
class CheckedWalks:
    """Trajectories that were checked against a world: B walks of up to T viewpoints."""

    row: Tensor  # (B,) int64, which episode
    viewpoint: Tensor  # (B, T) int64, padded with -1
    missing: int  # episodes without a trajectory


def score_trajectories(
    world: World,
    episodes: EpisodeSet,
    trajectories: Sequence[Trajectory],
    *,
    partial: bool = False,
    allow_jumps: bool = False,
    collapse: bool = True,
    source: StrPath = "trajectories",
) -> SplitScores:
    """Measure trajectories, checked by ``check_walks``, against the reference paths of a split.

    With ``collapse``, repeated viewpoints are merged before nDTW and SDTW.

    Raises:
        UserError: the split has no goals.
    """
    if not episodes.has_goals:
        reason = f"the goals of {episodes.name} are not public, so it cannot be scored here"
        raise UserError(f"{reason}; write a leaderboard file with 'scenemem submit' instead")
    walks = check_walks(
        world,
        episodes,
        trajectories,
        partial=partial,
        allow_jumps=allow_jumps,
        scoring=True,
        source=source,
    )
    metrics = measure(world, walks.viewpoint, episodes.path[walks.row], collapse=collapse)
    return SplitScores(tuple(t.instruction_id for t in trajectories), metrics, walks.missing)


def check_walks(
    world: World,
    episodes: EpisodeSet,
    trajectories: Sequence[Trajectory],
    *,
    partial: bool = False,
    allow_jumps: bool = False,
    scoring: bool = False,
    source: StrPath = "trajectories",
) -> CheckedWalks:
    """Trajectories, one per instruction in any order, as viewpoint indices of walks that are possible.

    ``partial`` allows instructions without a trajectory, ``allow_jumps`` steps without an edge; with
    ``scoring``, errors advise these two. ``source`` is the file named in errors.

    Raises:
        DataError: an instruction is unknown or (unless ``partial``) missing, a viewpoint is unknown, a walk
            does not begin at the start viewpoint, or it goes where there is no edge (with ``allow_jumps``:
            where no way leads at all), or it has more than ``MOST_POINTS`` points.
    """
    row = _matched_rows(episodes, trajectories, partial, scoring, source)
    scans = [episodes.scans[scan] for scan in episodes.scan[row].tolist()]
    walked = [
        torch.tensor(_viewpoints(world, scan, trajectory, source))
        for scan, trajectory in zip(scans, trajectories, strict=True)
    ]
    viewpoint = pad_sequence(walked, batch_first=True, padding_value=NONE).to(world.device)
    wrong = viewpoint[:, 0] != episodes.start[row]
    if wrong.any():
        number = int(wrong.nonzero()[0, 0])
        seen, expected = trajectories[number].points[0].viewpoint, episodes.start[row[number]]
        reason = f"begins at '{seen}', expected the start viewpoint '{world.viewpoints[expected]}'"
        reason += "; is the start left out, or is it the trajectory of another instruction?"
        raise DataError(source, reason, record=_record(trajectories[number].instruction_id, 0))
    _check_steps(world, viewpoint, trajectories, allow_jumps, scoring, source)
    return CheckedWalks(row, viewpoint, missing=len(episodes) - len(trajectories))


def with_angles(
    world: World, episodes: EpisodeSet, trajectories: Sequence[Trajectory], walks: CheckedWalks
) -> list[Trajectory]:
    """The same trajectories with every missing heading and elevation filled in.

    An agent begins with the episode's heading at elevation 0; after a move it looks along the view that
    showed the place it went to, and keeps looking there while it stands.
    """
    here, there = walks.viewpoint[:, :-1].clamp_min(0), walks.viewpoint[:, 1:]
    slot = world.slot_of(here, there)
    view = world.neighbour_view[here, slot.clamp_min(0)]
    begin = episodes.heading[walks.row].unsqueeze(1)
    heading = torch.cat([begin, view_heading(view).to(begin)], dim=1)
    elevation = torch.cat([torch.zeros_like(begin), view_elevation(view).to(begin)], dim=1)
    time = torch.arange(walks.viewpoint.shape[1], device=slot.device)
    moved_last = torch.nn.functional.pad(slot != NONE, (1, 0)).mul(time).cummax(1).values
    angles = (angle.gather(1, moved_last).tolist() for angle in (heading, elevation))
    return [
        Trajectory(trajectory.instruction_id, tuple(map(_filled, trajectory.points, *filling)))
        for trajectory, *filling in zip(trajectories, *angles, strict=True)
    ]


def _filled(point: Point, heading: float, elevation: float) -> Point:
    heading = heading if point.heading is None else point.heading
    return Point(point.viewpoint, heading, elevation if point.elevation is None else point.elevation)


def _matched_rows(
    episodes: EpisodeSet, trajectories: Sequence[Trajectory], partial: bool, scoring: bool, source: StrPath
) -> Tensor:
    """Which episode each trajectory belongs to  ->  (B,)"""
    row_of = {instruction_id: row for row, instruction_id in enumerate(episodes.instruction_ids)}
    rows: dict[int, None] = {}
    for trajectory in trajectories:
        name = trajectory.instruction_id
        if name not in row_of:
            reason = f"{episodes.name} has no such instruction; is the split right?"
            raise DataError(source, reason, record=_record(name))
        if row_of[name] in rows:
            raise DataError(source, "has two trajectories, expected one", record=_record(name))
        rows[row_of[name]] = None
    missing = [name for name, row in row_of.items() if row not in rows]
    if not rows or (missing and not partial):
        seen = f"{len(missing)} of the {len(episodes)} instructions of {episodes.name} have no trajectory"
        advice = "add them, or score what is there with `partial=True`" if scoring and rows else "add them"
        raise DataError(source, f"{seen}, the first is '{missing[0]}'; {advice}")
    return torch.tensor(list(rows), device=episodes.start.device)


def _viewpoints(world: World, scan: str, trajectory: Trajectory, source: StrPath) -> list[int]:
    count = len(trajectory.points)
    if count > MOST_POINTS:
        reason = f"has {count} points, expected at most {MOST_POINTS}; did the agent ever stop?"
        raise DataError(source, reason, record=_record(trajectory.instruction_id))
    indices: list[int] = []
    for step, point in enumerate(trajectory.points):
        try:
            indices.append(world.index_of(scan, point.viewpoint))
        except UserError as error:
            before = f" (coming from '{trajectory.points[step - 1].viewpoint}')" if step else ""
            record = _record(trajectory.instruction_id, step)
            raise DataError(source, f"{error}{before}", record=record) from error
    return indices


def _check_steps(
    world: World,
    viewpoint: Tensor,
    trajectories: Sequence[Trajectory],
    allow_jumps: bool,
    scoring: bool,
    source: StrPath,
) -> None:
    """viewpoint: (B, T), padded with -1"""
    here, there = viewpoint[:, :-1], viewpoint[:, 1:]
    pads = there == NONE
    here, there = here.clamp_min(0), there.clamp_min(0)
    if allow_jumps:
        bad = ~world.geodesic(here, there).isfinite() & ~pads
        reason = "no way leads from '{}' to '{}'"
    else:
        bad = (world.slot_of(here, there) == NONE) & (here != there) & ~pads
        reason = "no edge between '{}' and '{}'; list every viewpoint walked through"
        reason += ", or charge the way with `allow_jumps=True`" if scoring else ""
    if bad.any():
        number, step = (int(value) for value in bad.nonzero()[0])
        pair = [point.viewpoint for point in trajectories[number].points[step : step + 2]]
        record = _record(trajectories[number].instruction_id, step + 1)
        raise DataError(source, reason.format(*pair), record=record)


def _record(instruction_id: str, step: int | None = None) -> str:
    return f"instruction '{instruction_id}'" + ("" if step is None else f", step {step}")
