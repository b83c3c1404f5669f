"""Metrics: hand-computed and corner cases in a table, and a slow plain-Python reference on random walks."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.evaluation import metrics as module
from scenemem.evaluation.metrics import collapse_repeats, measure, path_length
from scenemem.formats.connectivity import Scan, Viewpoint
from scenemem.world.build import build_world, load_world
from scenemem.world.graph import NONE, World


def padded(*paths: list[int]) -> Tensor:
    width = max(map(len, paths))
    return torch.tensor([path + [NONE] * (width - len(path)) for path in paths])


@pytest.fixture(scope="module")
def corridor() -> World:
    """Viewpoints 0 .. 6 in a row, 2 m apart."""
    size = 7
    viewpoints = tuple(
        Viewpoint(
            image_id=f"c{i}",
            pose=(1, 0, 0, 2.0 * i, 0, 1, 0, 0, 0, 0, 1, 1.5, 0, 0, 0, 1),
            included=True,
            visible=(True,) * size,
            unobstructed=tuple(abs(i - j) == 1 for j in range(size)),
            height=1.5,
        )
        for i in range(size)
    )
    return build_world([Scan("corridor", viewpoints)])


E1, E2 = math.exp(-2 / 3), math.exp(-4 / 3)  # how near 2 m and 4 m count
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
    def at(i: int) -> Viewpoint:
        pose = (1, 0, 0, 3.0 * i, 0, 1, 0, 0, 0, 0, 1, 1.5, 0, 0, 0, 1)
        return Viewpoint(f"v{i}", pose, True, (True, True), (i == 1, i == 0), 1.5)

    world = build_world([Scan("pair", (at(0), at(1)))])
    found = measure(world, padded([0]), padded([0, 1])).means()
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


class SlowReference:
    """The definitions, one episode and one pair at a time, with networkx distances."""

    def __init__(self, world: World) -> None:
        graph = nx.Graph()
        for here, (row, lengths) in enumerate(
            zip(world.neighbour.tolist(), world.neighbour_length.tolist(), strict=True)
        ):
            graph.add_weighted_edges_from(
                (here, there, far) for there, far in zip(row, lengths, strict=True) if there != NONE
            )
        self.graph = graph
        self.distance = dict(nx.all_pairs_dijkstra_path_length(graph))

    def metrics(self, walked: list[int], reference: list[int]) -> dict[str, float]:
        goal, d = reference[-1], self.distance
        length = sum(d[a][b] for a, b in pairwise(walked))
        reference_length = sum(d[a][b] for a, b in pairwise(reference))
        error, best = d[walked[-1]][goal], d[reference[0]][goal]
        success = float(error < 3)
        coverage = sum(math.exp(-min(d[r][w] for w in walked) / 3) for r in reference) / len(reference)
        expected = coverage * reference_length
        warped = math.exp(-self.warping(self.collapsed(walked), reference) / (3 * len(reference)))
        return {
            "tl": length,
            "ne": error,
            "sr": success,
            "osr": float(any(d[w][goal] < 3 for w in walked)),
            "spl": success * best / max(best, length) if max(best, length) else success,
            "spl_ref": success * reference_length / max(reference_length, length),
            "cls": coverage * expected / (expected + abs(expected - length)),
            "ndtw": warped,
            "sdtw": warped * success,
        }

    @staticmethod
    def collapsed(path: list[int]) -> list[int]:
        return path[:1] + [b for a, b in pairwise(path) if a != b]

    def warping(self, walked: list[int], reference: list[int]) -> float:
        table = {(-1, -1): 0.0}
        for i, w in enumerate(walked):
            for j, r in enumerate(reference):
                before = min(table.get(at, math.inf) for at in ((i - 1, j), (i, j - 1), (i - 1, j - 1)))
                table[i, j] = self.distance[w][r] + before
        return table[len(walked) - 1, len(reference) - 1]

    def random_walk(self, chance: random.Random, start: int, length: int) -> list[int]:
        path = [start]
        for _ in range(length):
            path.append(chance.choice([path[-1], *self.graph[path[-1]]]))
        return path


@pytest.mark.parametrize("chunk", [2_000_000, 100])
def test_random_walks_agree_with_the_slow_reference(
    tiny_data: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ENTRIES", chunk)
    world = load_world(tiny_data / "connectivity")
    slow, chance = SlowReference(world), random.Random(0)
    walked, reference = [], []
    for _ in range(120):
        start = chance.choice(sorted(slow.graph))
        walked.append(slow.random_walk(chance, start, chance.randrange(12)))
        path = slow.collapsed(slow.random_walk(chance, start, chance.randrange(1, 9)))
        reference.append(path if len(path) > 1 else [start, *list(slow.graph[start])[:1]])
    found = measure(world, padded(*walked), padded(*reference))
    for row in range(len(walked)):
        expected = slow.metrics(walked[row], reference[row])
        assert {name: float(getattr(found, name)[row]) for name in expected} == pytest.approx(
            expected, abs=1e-9
        )


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


def test_padding_and_neighbours_in_the_batch_change_nothing(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    slow, chance = SlowReference(world), random.Random(1)
    walked = [slow.random_walk(chance, start, 4) for start in (0, 3, 14)]
    reference = [slow.random_walk(chance, start, 5) for start in (0, 3, 14)]
    together = measure(world, padded(*walked, [0] * 11), padded(*reference, [0] * 9))
    for row in range(3):
        alone = measure(world, padded(walked[row]), padded(reference[row])).means()
        assert {name: float(getattr(together, name)[row]) for name in alone} == alone


def test_lengths_are_double_precision_metres(corridor: World) -> None:
    lengths = path_length(corridor, padded([0, 1, 2], [5], [3, 4]))
    assert lengths.dtype == torch.float64
    assert lengths.tolist() == [4.0, 0.0, 2.0]
