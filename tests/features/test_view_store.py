from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scenemem.errors import DataError
from scenemem.features.store import FeatureStore, open_store
from scenemem.formats.features import VIEWS, write_store
from scenemem.world.build import load_world
from scenemem.world.graph import World

WIDTH = 3


@pytest.fixture(scope="module")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity", cache=False)


def _values(world: World) -> np.ndarray[tuple[int, ...], np.dtype[np.float16]]:
    """A number that tells viewpoint, view and column apart, exact in float16."""
    v, view, column = np.ogrid[: len(world.viewpoints), :VIEWS, :WIDTH]
    return (v + view / 64 + column / 4096 * 16).astype(np.float16)


@pytest.fixture(scope="module")
def store_file(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose rows are in another order than the world, with one row too many."""
    target = tmp_path_factory.mktemp("features") / "made.npy"
    values = _values(world)
    keys = ["other_viewpoint", *reversed(world.names)]
    rows = [values[0] * 0, *values[::-1]]
    write_store(target, keys, rows, width=WIDTH, source="", encoder="")
    return target


def test_panoramas_are_gathered_by_global_index(world: World, store_file: Path) -> None:
    store = open_store(store_file, world)
    index = torch.tensor([[3, 0], [len(world.viewpoints) - 1, 3]])
    gathered = store.gather(index)
    assert gathered.dtype == torch.float32
    assert gathered.shape == (2, 2, VIEWS, WIDTH)
    np.testing.assert_array_equal(gathered.numpy(), _values(world)[index.numpy()].astype(np.float32))
    assert store.width == WIDTH == store.info.width
    assert store.gather(torch.tensor(4)).shape == (VIEWS, WIDTH)
    assert store.gather(torch.zeros(0, dtype=torch.long)).shape == (0, VIEWS, WIDTH)


def test_single_views_are_gathered(world: World, store_file: Path) -> None:
    store = open_store(store_file, world, half=True)
    viewpoints, views = torch.tensor([5, 2, 9]), torch.tensor([[0, 35, 12, 7]])
    gathered = store.gather_views(viewpoints[:, None], views)
    assert gathered.dtype == torch.float16
    expected = _values(world)[viewpoints.numpy()[:, None], views.numpy()]
    np.testing.assert_array_equal(gathered.numpy(), expected)


def test_a_store_loaded_whole_gives_the_same(world: World, store_file: Path) -> None:
    mapped = open_store(store_file, world)
    loaded = mapped.to("cpu")
    everything = torch.arange(len(world.viewpoints))
    assert isinstance(loaded, FeatureStore)
    assert torch.equal(loaded.gather(everything), mapped.gather(everything))
    assert len(loaded.values) == len(world.viewpoints), "rows of other worlds are not loaded"


def test_a_missing_viewpoint_is_named(world: World, tmp_path: Path) -> None:
    values = _values(world)
    write_store(tmp_path / "few.npy", world.names[2:], values[2:], width=WIDTH, source="", encoder="")
    with pytest.raises(DataError) as caught:
        open_store(tmp_path / "few.npy", world)
    total = len(world.viewpoints)
    expected = f"few.npy: lacks 2 of the {total} viewpoints of the world, first '{world.names[0]}'; build"
    assert expected in str(caught.value)
