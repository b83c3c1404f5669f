"""Fixtures shared by all tests: a tiny world in the public formats, the real data and a browser if there."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import networkx as nx
import numpy as np
import pytest
import torch

from scenemem.features.captions import build_caption_features
from scenemem.features.objects import build_object_features
from scenemem.features.store import Environment, open_store
from scenemem.formats.connectivity import Scan, Viewpoint, write_scan
from scenemem.formats.features import write_store
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import VIEWS, World
from tests.commands.helpers import SMALL, Shell, typed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REPOSITORY = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The real R2R data folder; tests that need it are skipped without it."""
    chosen = os.environ.get("SCENEMEM_DATA")
    folder = Path(chosen) if chosen else REPOSITORY.parent / "shared" / "data"
    if (folder / "connectivity").is_dir():
        return folder
    if os.environ.get("SCENEMEM_REQUIRE_DATA"):
        pytest.fail(f"SCENEMEM_REQUIRE_DATA is set but {folder} holds no real data; set SCENEMEM_DATA")
    pytest.skip(f"needs the real R2R data, not found at {folder}; set SCENEMEM_DATA to its folder")


@pytest.fixture(scope="session")
def with_features(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real data and features of all tracks; nothing is written into the real folder."""
    folder = tmp_path_factory.mktemp("r2r")
    for part in real_data.iterdir():
        if part.name != "features":
            (folder / part.name).symlink_to(part.resolve())
    build_object_features(DataFolder(real_data), folder / "features")
    build_caption_features(DataFolder(real_data), folder / "features" / "captions.npy")
    return folder


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests never read or fill the user's own cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCENEMEM_CACHE", str(folder))
        yield folder


def scan_from_graph(name: str, graph: nx.Graph) -> Scan:
    """A scan from a graph whose nodes carry ``position`` (metres) and optionally ``included``."""
    nodes = list(graph.nodes)
    return Scan(
        name=name,
        viewpoints=tuple(
            Viewpoint(
                image_id=str(node),
                pose=_pose(graph.nodes[node]["position"]),
                included=graph.nodes[node].get("included", True),
                visible=tuple(other != node for other in nodes),
                unobstructed=tuple(graph.has_edge(node, other) for other in nodes),
                height=1.5,
            )
            for node in nodes
        ),
    )


def _pose(position: tuple[float, float, float]) -> tuple[float, ...]:
    x, y, z = position
    return (1.0, 0.0, 0.0, x, 0.0, 1.0, 0.0, y, 0.0, 0.0, 1.0, z, 0.0, 0.0, 0.0, 1.0)


def _grid(columns: int, rows: int) -> nx.Graph:
    graph = nx.Graph()
    for x in range(columns):
        for y in range(rows):
            # uneven spacing, so that shortest paths are unique
            graph.add_node(
                f"g{x}{y}", position=(2.0 * x + 0.11 * y + 0.013 * x * y, 1.9 * y - 0.07 * x * x, 1.5)
            )
    graph.add_edges_from((f"g{x}{y}", f"g{x + 1}{y}") for x in range(columns - 1) for y in range(rows))
    graph.add_edges_from((f"g{x}{y}", f"g{x}{y + 1}") for x in range(columns) for y in range(rows - 1))
    graph.add_node("g-alone", position=(50.0, 50.0, 1.5))
    graph.add_node("g-excluded", position=(-5.0, 0.0, 1.5), included=False)
    graph.add_edge("g-excluded", "g00")
    return graph


def _spiral(size: int) -> nx.Graph:
    """A spiral staircase: headings all the way round and real elevations."""
    graph = nx.Graph()
    for i in range(size):
        angle = 0.7 * i
        graph.add_node(f"s{i}", position=(2.5 * math.cos(angle), 2.5 * math.sin(angle), 1.5 + 0.6 * i))
    graph.add_edges_from((f"s{i}", f"s{i + 1}") for i in range(size - 1))
    graph.add_edge("s0", "s4")
    return graph


TINY_SCANS = {"grid": _grid(4, 3), "spiral": _spiral(9), "yard": _grid(3, 3)}
TINY_SPLITS = {
    "train": ("grid", "spiral"),
    "val_seen": ("grid",),
    "val_unseen": ("yard",),
    "test": ("yard",),
}


def _tiny_episodes(split: str) -> list[dict[str, object]]:
    """Every third ordered pair 4 to 6 edges apart, three made-up instructions each."""
    items: list[dict[str, object]] = []
    for scan in TINY_SPLITS[split]:
        included = [n for n, d in TINY_SCANS[scan].nodes(data=True) if d.get("included", True)]
        graph = TINY_SCANS[scan].subgraph(included).copy()
        for a, b in graph.edges:
            graph.edges[a, b]["metres"] = math.dist(graph.nodes[a]["position"], graph.nodes[b]["position"])
        routes = [
            route
            for source in graph
            for target, route in nx.single_source_dijkstra_path(graph, source, weight="metres").items()
            if 3 <= len(route) - 1 <= 6
        ]
        for number, route in enumerate(routes[:: 3 if split == "train" else 7]):
            item: dict[str, object] = {
                "distance": round(nx.path_weight(graph, route, "metres"), 2),
                "scan": scan,
                "path_id": 1000 * sorted(TINY_SCANS).index(scan) + number,
                "path": route,
                "heading": round(0.37 * number % (2 * math.pi), 3),
                "instructions": [
                    f"Walk from {route[0]} to {route[-1]}.",
                    f"Go past {route[1]}, then stop at {route[-1]}!",
                    f"Leave {route[0]} and wait beside {route[-1]}.",
                ],
            }
            if split == "test":
                del item["distance"]
                item["path"] = route[:1]
            items.append(item)
    return items


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data folder in the public formats: three scans, all splits, one isolated viewpoint per grid."""
    root = tmp_path_factory.mktemp("tiny")
    for name, graph in TINY_SCANS.items():
        write_scan(root / "connectivity", scan_from_graph(name, graph))
    (root / "r2r").mkdir()
    for split in TINY_SPLITS:
        (root / "r2r" / f"R2R_{split}.json").write_text(json.dumps(_tiny_episodes(split)), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def tiny_trainable(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data folder with a feature store of random numbers, 8 columns wide."""
    root = Path(shutil.copytree(tiny_data, tmp_path_factory.mktemp("trainable") / "data"))
    keys = [f"{name}_{node}" for name, graph in TINY_SCANS.items() for node in graph.nodes]
    rows = np.random.default_rng(0).normal(size=(len(keys), 36, 8)).astype(np.float16)
    write_store(root / "features" / "tiny.npy", keys, rows, width=8, source="test", encoder="random numbers")
    return root


@pytest.fixture
def copied_data(tiny_trainable: Path, tmp_path: Path) -> Path:
    """A copy of the tiny data folder with features, which a test may change."""
    return Path(shutil.copytree(tiny_trainable, tmp_path / "data"))


@pytest.fixture
def shell(tiny_trainable: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Types commands on the tiny world with features."""
    return Shell(tiny_trainable, capsys)


@pytest.fixture(scope="session")
def hardly_trained(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents and a speaker after four steps: the folders ssm-0, basic-0 and speaker-0."""
    root = tmp_path_factory.mktemp("trained")
    for name, words in (
        ("ssm-0", ("train", "ssm")),
        ("basic-0", ("train", "basic")),
        ("speaker-0", ("speak", "train", "--words", 20)),
    ):
        flags = ("--data", tiny_trainable, "--out", root / name, "--iterations", 4)
        assert typed(*words, *flags, *SMALL) == 0
    return root


@pytest.fixture(scope="session")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity")


@pytest.fixture(scope="session")
def episodes(tiny_data: Path, world: World) -> EpisodeSet:
    return load_split(DataFolder(tiny_data), world, "r2r", "train")


@pytest.fixture(scope="session")
def secret_episodes(tiny_data: Path, world: World) -> EpisodeSet:
    """Episodes of the test split, without goals."""
    return load_split(DataFolder(tiny_data), world, "r2r", "test")


@pytest.fixture(scope="session")
def environment(tiny_trainable: Path, world: World) -> Environment:
    """The tiny world as an agent sees it, by 8 columns of random numbers."""
    return Environment(world, open_store(tiny_trainable / "features" / "tiny.npy", world))


@pytest.fixture(scope="session")
def random_environment(tiny_trainable: Path, world: World) -> Callable[[World, int], Environment]:
    """Makes an environment of random view features: of a world, with a number of visual columns."""
    tiny = open_store(tiny_trainable / "features" / "tiny.npy", world)

    def make(world: World, visual: int) -> Environment:
        values = torch.randn(len(world.names), VIEWS, visual, generator=torch.Generator().manual_seed(0))
        info = msgspec.structs.replace(tiny.info, keys=world.names, width=visual)
        return Environment(world, replace(tiny, info=info, values=values, row=torch.arange(len(values))))

    return make


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser; of a module, because its event loop would be in the way of other modules."""
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright (pip install playwright)")
    if CHROMIUM is None and os.environ.get("SCENEMEM_REQUIRE_BROWSER"):
        pytest.fail("SCENEMEM_REQUIRE_BROWSER is set but there is no chromium; install it", pytrace=False)
    if CHROMIUM is None:
        pytest.skip("needs chromium on the PATH (apt-get install chromium)")
    with driver.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Page:
    """One tab for all tests of a module, because opening one takes a second."""
    return browser.new_page()
