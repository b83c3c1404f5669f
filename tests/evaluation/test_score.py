"""Scoring: trajectories are matched to episodes, impossible walks are refused, angles are filled in."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from scenemem.errors import DataError, UserError
from scenemem.evaluation.score import MOST_POINTS, check_walks, score_trajectories, with_angles
from scenemem.formats.episodes import EpisodeRecord
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import Point, Trajectory, read_trajectories
from scenemem.tasks.episode_set import EpisodeSet, bind_episodes, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import World


@pytest.fixture(scope="module")
def episodes(world: World) -> EpisodeSet:
    """Two instructions along the first row of the grid, one down the spiral."""
    row = EpisodeRecord("grid", 1, ("g00", "g10", "g20", "g30"), 0.25, ("x", "y"), ("1_0", "1_1"))
    spiral = EpisodeRecord("spiral", 2, ("s4", "s3", "s2", "s1"), 1.0, ("z",), ("2_0",))
    return bind_episodes(world, [row, spiral], "R2R.json", name="r2r val")


def walk(instruction_id: str, *viewpoints: str) -> Trajectory:
    return Trajectory(instruction_id, tuple(map(Point, viewpoints)))


GOOD = (
    walk("2_0", "s4", "s3", "s2", "s1"),
    walk("1_1", "g00", "g00", "g10"),
    walk("1_0", "g00", "g10", "g20", "g30"),
)


REST = GOOD[:2]


def test_scores_follow_the_order_of_the_file(world: World, episodes: EpisodeSet) -> None:
    scores = score_trajectories(world, episodes, GOOD)
    assert scores.instruction_ids == ("2_0", "1_1", "1_0")
    assert scores.metrics.sr.tolist() == [1.0, 0.0, 1.0]
    assert scores.metrics.ndtw.tolist()[::2] == [1.0, 1.0]
    assert scores.missing == 0
    assert scores.metrics.means()["sr"] == pytest.approx(2 / 3)


def test_parts_jumps_and_repeats_are_allowed_on_request(world: World, episodes: EpisodeSet) -> None:
    part = score_trajectories(world, episodes, GOOD[:1], partial=True)
    assert (len(part.instruction_ids), part.missing) == (1, 2)
    jumping = (*REST, walk("1_0", "g00", "g30"))
    jumped, honest = (
        score_trajectories(world, episodes, walks, allow_jumps=True).metrics.tl for walks in (jumping, GOOD)
    )
    assert float(jumped[2]) == pytest.approx(float(honest[2])), "they cost the way around"
    turning = (*REST, walk("1_0", "g00", "g10", "g11", "g11", "g11", "g21", "g20", "g30"))
    merged, kept = (
        score_trajectories(world, episodes, turning, collapse=collapse).metrics.ndtw[2]
        for collapse in (True, False)
    )
    assert kept < merged


MISSING = "{} of the 3 instructions of r2r val have no trajectory, the first is '1_0'; add them"
NO_EDGE = "list every viewpoint walked through, or charge the way with `allow_jumps=True`"
OPTIONS = {"nothing at all": {"partial": True}, "no way": {"allow_jumps": True}}
BAD: dict[str, tuple[tuple[Trajectory, ...], str]] = {
    "unknown instruction": (
        (*GOOD, walk("9_9", "g00")),
        "instruction '9_9': r2r val has no such instruction; is the split right?",
    ),
    "twice": ((*GOOD, GOOD[0]), "instruction '2_0': has two trajectories, expected one"),
    "missing": (REST, MISSING.format(1) + ", or score what is there with `partial=True`"),
    "nothing at all": ((), MISSING.format(3)),
}
BAD_WALKS = {
    "wrong start": (
        ["g10", "g20"],
        ", step 0: begins at 'g10', expected the start viewpoint 'g00'; is the start left out, "
        "or is it the trajectory of another instruction?",
    ),
    "unknown start": (["nowhere"], ", step 0: scan 'grid' has no included viewpoint 'nowhere'"),
    "unknown viewpoint": (
        ["g00", "g10", "s4"],
        ", step 2: scan 'grid' has no included viewpoint 's4' (coming from 'g10')",
    ),
    "no edge": (
        ["g00", "g10", "g10", "g30"],
        f", step 3: no edge between 'g10' and 'g30'; {NO_EDGE}",
    ),
    "no end": (
        ["g00"] * (MOST_POINTS + 1),
        ": has 10001 points, expected at most 10000; did the agent ever stop?",
    ),
    "no way": (["g00", "g30", "g-alone"], ", step 2: no way leads from 'g30' to 'g-alone'"),
}
BAD |= {
    case: ((*REST, walk("1_0", *places)), f"instruction '1_0'{reason}")
    for case, (places, reason) in BAD_WALKS.items()
}


@pytest.mark.parametrize("case", BAD)
def test_impossible_results_are_refused(world: World, episodes: EpisodeSet, case: str) -> None:
    trajectories, message = BAD[case]
    with pytest.raises(DataError) as caught:
        score_trajectories(world, episodes, trajectories, source="r.json", **OPTIONS.get(case, {}))
    assert str(caught.value) == f"r.json: {message}"


def test_long_trajectories_are_scored(world: World, episodes: EpisodeSet) -> None:
    longest = walk("1_0", *["g00"] * MOST_POINTS)
    assert check_walks(world, episodes, [longest], partial=True).viewpoint.shape == (1, MOST_POINTS)


def test_a_split_without_goals_cannot_be_scored(tiny_data: Path, world: World) -> None:
    test = load_split(DataFolder(tiny_data), world, "r2r", "test")
    with pytest.raises(UserError, match=r"the goals of r2r test are not public, .* 'scenemem submit'"):
        score_trajectories(world, test, [])


def test_missing_angles_follow_the_walk_and_given_ones_stay(world: World, episodes: EpisodeSet) -> None:
    trajectories = (GOOD[0], walk("1_1", "g00"), walk("1_0", "g00", "g00", "g10", "g10", "g11"))
    walks = check_walks(world, episodes, trajectories)
    spiral, still, grid = with_angles(world, episodes, trajectories, walks)
    assert still.points == (Point("g00", 0.25, 0.0),)
    step = math.pi / 6
    east, north = 3 * step, 0.0
    assert [point.viewpoint for point in grid.points] == ["g00", "g00", "g10", "g10", "g11"]
    assert [point.heading for point in grid.points] == pytest.approx([0.25, 0.25, east, east, north])
    assert {point.elevation for point in grid.points} == {0.0}
    here, there = (torch.tensor(world.index_of("spiral", name)) for name in ("s4", "s3"))
    view = int(world.neighbour_view[here, world.slot_of(here, there)])
    assert spiral.points[1].heading == pytest.approx(view % 12 * step)
    assert spiral.points[1].elevation == pytest.approx((view // 12 - 1) * step)
    mixed = Trajectory("1_0", (Point("g00", 5.0, 0.5), Point("g10", None, -0.25)))
    walks = check_walks(world, episodes, [mixed], partial=True)
    (filled,) = with_angles(world, episodes, [mixed], walks)
    assert filled.points[0] == Point("g00", 5.0, 0.5)
    assert (filled.points[1].heading, filled.points[1].elevation) == pytest.approx((east, -0.25))


@pytest.fixture(scope="module")
def real_world(real_data: Path) -> World:
    return load_world(real_data / "connectivity")


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("agent", "split", "expected"),
    [
        ("shortest", "val_seen", {"sr": 1.0, "osr": 1.0, "spl": 1.0, "ne": 0.0}),
        ("shortest", "val_unseen", {"sr": 1.0, "osr": 1.0, "spl": 1.0, "ne": 0.0}),
        ("random", "val_seen", {"sr": 0.163, "ne": 9.50, "tl": 9.61}),
        ("random", "val_unseen", {"sr": 0.160, "ne": 9.22, "tl": 9.74}),
        ("seq2seq", "val_seen", {"sr": 0.381, "osr": 0.512, "ne": 6.09}),
        ("seq2seq", "val_unseen", {"sr": 0.210, "osr": 0.282, "ne": 8.00}),
        ("prevalent", "val_seen", {"sr": 0.661, "spl": 0.631}),
        ("prevalent", "val_unseen", {"sr": 0.602, "spl": 0.560}),
    ],
)
def test_real_agents(
    real_data: Path, real_world: World, agent: str, split: str, expected: dict[str, float]
) -> None:
    episodes = load_split(DataFolder(real_data), real_world, "r2r", split)
    file = real_data / "trajectories" / f"{agent}_{split}.json.gz"
    scores = score_trajectories(real_world, episodes, read_trajectories(file))
    means = scores.metrics.means()
    assert scores.missing == 0
    for name, value in expected.items():
        assert means[name] == pytest.approx(value, abs=0.0051 if name in ("ne", "tl") else 0.00051)
