"""Metrics: hand-computed and corner cases in a table, and plain time warping of random walks."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from scenemem.evaluation import metrics as module
from scenemem.evaluation.metrics import collapse_repeats, measure, path_length
from scenemem.formats.connectivity import Scan, Viewpoint
from scenemem.world.build import build_world
from scenemem.world.graph import NONE, World


def padded(*paths: list[int]) -> Tensor:
    width = max(map(len, paths))
    return torch.tensor([path + [NONE] * (width - len(path)) for path in paths])


def _row(size: int, metres: float) -> World:
    """Viewpoints 0, 1, ... in a row."""

    def at(i: int) -> Viewpoint:
        pose = (1, 0, 0, metres * i, 0, 1, 0, 0, 0, 0, 1, 1.5, 0, 0, 0, 1)
        return Viewpoint(
            f"c{i}", pose, True, (True,) * size, tuple(abs(i - j) == 1 for j in range(size)), 1.5
        )

    return build_world([Scan("row", tuple(map(at, range(size))))])


@pytest.fixture(scope="module")
def corridor() -> World:
    return _row(7, 2.0)


E1, E2 = math.exp(-2 / 3), math.exp(-4 / 3)  # how near 2 m and 4 m count
PART = (2 + E1 + E2) / 4  # of four places, two of which were walked
# name: (walked, reference, expected values); SPL denominators and all weights worked out by hand
CASES: dict[str, tuple[list[int], list[int], dict[str, float]]] = {
    "perfect": (
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        {"tl": 6, "ne": 0, "sr": 1, "osr": 1, "spl": 1, "spl_ref": 1, "cls": 1, "ndtw": 1, "sdtw": 1},
    ),
    "one short is still near": (
        [0, 1, 2],
        [0, 1, 2, 3],
        {"tl": 4, "ne": 2, "sr": 1, "osr": 1, "spl": 1, "ndtw": math.exp(-2 / 12), "sdtw": math.exp(-2 / 12)},
    ),
    "two short is too far": (
        [0, 1],
        [0, 1, 2, 3],
        {"tl": 2, "ne": 4, "sr": 0, "osr": 0, "spl": 0, "spl_ref": 0, "ndtw": math.exp(-6 / 12), "sdtw": 0},
    ),
    "covers a part": (
        [0, 1],
        [0, 1, 2, 3],
        {"cls": PART * 6 * PART / (6 * PART + 6 * PART - 2)},
    ),
    "too far, and back": (
        [0, 1, 2, 3, 4, 5, 4, 3],
        [0, 1, 2, 3],
        {"tl": 14, "ne": 0, "spl": 6 / 14, "spl_ref": 6 / 14, "cls": 6 / 14, "ndtw": math.exp(-8 / 12)},
    ),
    "passed the goal": (
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3],
        {"ne": 4, "sr": 0, "osr": 1, "spl": 0, "sdtw": 0},
    ),
    "a detour in the reference": (
        [0, 1, 2],
        [0, 1, 0, 1, 2],
        {"tl": 4, "sr": 1, "spl": 1, "spl_ref": 1, "cls": 8 / 12, "ndtw": math.exp(-2 / 15)},
    ),
    "longer than shortest, shorter than reference": (
        [0, 1, 0, 1, 2],
        [0, 1, 0, 1, 0, 1, 2],
        {"tl": 8, "spl": 4 / 8, "spl_ref": 1},
    ),
    "never moves": (
        [0],
        [0, 1, 2],
        {"tl": 0, "ne": 4, "sr": 0, "osr": 0, "spl": 0, "cls": (1 + E1 + E2) / 6, "ndtw": math.exp(-6 / 9)},
    ),
    "never moves, far from place 0": ([6], [6, 5, 4, 3, 2, 1], {"tl": 0, "ne": 10, "sr": 0}),
    "never moves, goal is near": ([0], [0, 1], {"tl": 0, "ne": 2, "sr": 1, "osr": 1, "spl": 1, "spl_ref": 1}),
    "start is goal, stays": (
        [4],
        [4],
        {"tl": 0, "ne": 0, "sr": 1, "osr": 1, "spl": 1, "spl_ref": 1, "cls": 1, "ndtw": 1, "sdtw": 1},
    ),
    "start is goal, wanders": (
        [4, 5, 4],
        [4],
        {"tl": 4, "ne": 0, "sr": 1, "osr": 1, "spl": 0, "spl_ref": 0, "cls": 0, "ndtw": math.exp(-2 / 3)},
    ),
    "round trip": (
        [2, 3, 2],
        [2, 3, 2],
        {"tl": 4, "ne": 0, "sr": 1, "spl": 0, "spl_ref": 1, "cls": 1, "ndtw": 1},
    ),
    "turns in place": ([0, 0, 1, 1, 1, 2, 2], [0, 1, 2], {"tl": 4, "spl": 1, "cls": 1, "ndtw": 1, "sdtw": 1}),
    "jumps": ([0, 3], [0, 1, 2, 3], {"tl": 6, "ne": 0, "sr": 1, "spl": 1, "ndtw": math.exp(-4 / 12)}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_hand_computed_cases(corridor: World, case: str) -> None:
    walked, reference, expected = CASES[case]
    found = measure(corridor, padded(walked), padded(reference)).means()
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_exactly_three_metres_is_no_success() -> None:
    found = measure(_row(2, 3.0), padded([0]), padded([0, 1])).means()
    assert (found["ne"], found["sr"], found["osr"]) == (3.0, 0.0, 0.0)


def test_repeats_only_matter_for_warping_and_only_when_kept(corridor: World) -> None:
    walked, reference = padded([0, 1, 1, 1, 1, 2]), padded([0, 2])
    merged = measure(corridor, walked, reference).means()
    kept = measure(corridor, walked, reference, collapse=False).means()
    assert merged["ndtw"] == pytest.approx(math.exp(-2 / 6))
    assert kept["ndtw"] == pytest.approx(math.exp(-8 / 6))
    same = merged.keys() - {"ndtw", "sdtw"}
    assert {name: merged[name] for name in same} == {name: kept[name] for name in same}


def test_collapsing_keeps_order_and_returns() -> None:
    path = padded([3, 3, 4, 3, 3, 5], [7], [8, 8, 8, 8])
    assert collapse_repeats(path).tolist() == [
        [3, 4, 3, 5, NONE, NONE],
        [7, NONE, NONE, NONE, NONE, NONE],
        [8, NONE, NONE, NONE, NONE, NONE],
    ]
    assert path.tolist()[0] == [3, 3, 4, 3, 3, 5]


def _warping(world: World, walked: list[int], reference: list[int]) -> float:
    """Dynamic time warping, one pair of places at a time."""
    metres = world.geodesic(torch.tensor(walked).unsqueeze(1), torch.tensor(reference)).tolist()
    table = {(-1, -1): 0.0}
    for i in range(len(walked)):
        for j in range(len(reference)):
            before = min(table.get(at, math.inf) for at in ((i - 1, j), (i, j - 1), (i - 1, j - 1)))
            table[i, j] = metres[i][j] + before
    return table[len(walked) - 1, len(reference) - 1]


def _random_walk(world: World, chance: random.Random, start: int, length: int) -> list[int]:
    path = [start]
    for _ in range(length):
        path.append(chance.choice([place for place in world.neighbour[path[-1]].tolist() if place != NONE]))
    return path


def test_fidelity_is_that_of_plain_warping(world: World) -> None:
    chance = random.Random(0)
    starts = [chance.choice(world.degree.nonzero().flatten().tolist()) for _ in range(120)]
    walked = [_random_walk(world, chance, start, chance.randrange(12)) for start in starts]
    reference = [_random_walk(world, chance, start, chance.randrange(1, 9)) for start in starts]
    found = measure(world, padded(*walked), padded(*reference))
    for row, (walk, path) in enumerate(zip(walked, reference, strict=True)):
        expected = math.exp(-_warping(world, walk, path) / (3 * len(path)))
        assert float(found.ndtw[row]) == pytest.approx(expected, abs=1e-9)
        success = float(world.geodesic(torch.tensor(walk[-1]), torch.tensor(path[-1]))) < 3
        assert float(found.sdtw[row]) == pytest.approx(expected * success, abs=1e-9)


@pytest.mark.parametrize("chunk", [2_000_000, 100])
def test_neighbours_in_the_batch_change_nothing(
    corridor: World, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ENTRIES", chunk)
    walks, paths, _ = zip(*CASES.values(), strict=True)
    found = measure(corridor, padded(*walks), padded(*paths))
    for row, (walk, path) in enumerate(zip(walks, paths, strict=True)):
        alone = measure(corridor, padded(walk), padded(path)).means()
        assert {name: float(getattr(found, name)[row]) for name in alone} == alone


@pytest.mark.parametrize(("entries", "rows"), [(24, [2, 2, 1]), (35, [2, 2, 1]), (36, [3, 2]), (1, [1] * 5)])
def test_a_table_at_a_time_has_so_many_entries(
    entries: int, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ENTRIES", entries)
    seen = list[int]()

    def score(walked: Tensor, reference: Tensor) -> Tensor:
        seen.append(len(walked))
        assert len(reference) == len(walked)
        return walked

    walked = torch.arange(15).view(5, 3)
    assert torch.equal(module._in_chunks(score, walked, torch.zeros(5, 4)), walked)
    assert seen == rows


def test_lengths_are_double_precision_metres(corridor: World) -> None:
    lengths = path_length(corridor, padded([0, 1, 2], [5], [3, 4]))
    assert lengths.dtype == torch.float64
    assert lengths.tolist() == [4.0, 0.0, 2.0]
