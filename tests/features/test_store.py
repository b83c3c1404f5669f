from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scenemem.errors import DataError, UserError
from scenemem.features.store import (
    TRACKS,
    FeatureStore,
    check_identity,
    convert_features,
    identity,
    open_store,
    store_name,
)
from scenemem.formats.features import VIEWS, Column, StoreInfo, read_store, write_store
from scenemem.world.graph import World

WIDTH = 3


def _values(world: World) -> NDArray[np.float16]:
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


def test_panoramas_and_single_views_are_gathered_by_global_index(world: World, store_file: Path) -> None:
    store, values = open_store(store_file, world), _values(world)
    index = torch.tensor([[3, 0], [len(world.viewpoints) - 1, 3]])
    gathered = store.gather(index)
    assert gathered.dtype == torch.float32
    np.testing.assert_array_equal(gathered.numpy(), values[index.numpy()].astype(np.float32))
    assert store.width == WIDTH == store.info.width
    assert store.gather(torch.tensor(4)).shape == (VIEWS, WIDTH)
    assert store.gather(torch.zeros(0, dtype=torch.long)).shape == (0, VIEWS, WIDTH)
    viewpoints, views = torch.tensor([[5], [2], [9]]), torch.tensor([[0, 35, 12, 7]])
    single = open_store(store_file, world, half=True).gather_views(viewpoints, views)
    assert single.dtype == torch.float16
    np.testing.assert_array_equal(single.numpy(), values[viewpoints.numpy(), views.numpy()])


def test_a_store_loaded_whole_gives_the_same(world: World, store_file: Path) -> None:
    mapped = open_store(store_file, world)
    loaded = mapped.to("cpu")
    everything = torch.arange(len(world.viewpoints))
    assert torch.equal(loaded.gather(everything), mapped.gather(everything))
    assert len(loaded.values) == len(world.viewpoints), "rows of other worlds are not loaded"
    assert identity(loaded) == identity(mapped)


@pytest.fixture(scope="module")
def trained() -> tuple[NDArray[np.float16], dict[str, Any]]:
    """Features, and what weights that were trained on them keep about them."""
    values = np.random.default_rng(5).normal(size=(300, VIEWS, 24)).astype(np.float16)
    return values, json.loads(json.dumps(identity(_stored(values))))


def _stored(values: NDArray[np.float16], sha256: str = "one") -> FeatureStore:
    keys = tuple(f"s_{number}" for number in range(len(values)))
    info = StoreInfo(keys, values.shape[-1], "test", "random", sha256, track="images")
    return FeatureStore(info, torch.from_numpy(values), torch.arange(len(values)), stored=values)


def _permute_most(values: NDArray[np.float16]) -> None:
    views = values.reshape(-1, values.shape[-1])
    views[70:] = views[70:][::-1].copy()


CHANGES: dict[str, Callable[[NDArray[np.float16]], object]] = {
    "two views": lambda values: values.__setitem__((7, [3, 4]), values[7, [4, 3]]),
    "two panoramas": lambda values: values.__setitem__([8, 299], values[[299, 8]]),
    "most views": _permute_most,
    "one view": lambda values: values.__setitem__((150, 20), 0),
    "columns": lambda values: values.__setitem__(slice(None), values[:, :, ::-1].copy()),
    "not finite": lambda values: values.__setitem__((299, 35, 23), np.nan),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_features_of_the_same_layout_are_refused(
    trained: tuple[NDArray[np.float16], dict[str, Any]], change: str
) -> None:
    values, known = trained
    other = values.copy()
    CHANGES[change](other)
    message = r"sha256 one, this store has two; [0-9]+ of 300 panoramas differ more than rounding can explain"
    with pytest.raises(DataError, match=message):
        check_identity(known, _stored(other, "two"), "weights")


def test_the_same_features_built_elsewhere_are_taken_with_a_warning(
    trained: tuple[NDArray[np.float16], dict[str, Any]],
) -> None:
    values, known = trained
    check_identity(known, _stored(values), "weights")
    other = values.copy()
    other[::3] = np.nextafter(other[::3], np.float16(9))
    with pytest.warns(UserWarning, match="all 300 panoramas agree but for rounding"):
        check_identity(known, _stored(other, "two"), "weights")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 25}, "was trained on features with width 25, this store has 24"),
        ({"track": "captions"}, "was trained on features with track captions, this store has images"),
        ({"layout": "other"}, "was trained on features with sha256 one, this store has two; build the store"),
        ({"projections": "AAAA"}, "does not hold the projections of 300 panoramas"),
        ({"projections": 7}, "does not hold the projections of 300 panoramas"),
        ({"projections": base64.b64encode(b"\xff" * 2400).decode()}, "300 of 300 panoramas differ"),
    ],
)
def test_weights_of_other_features_are_refused(
    trained: tuple[NDArray[np.float16], dict[str, Any]], changed: dict[str, Any], message: str
) -> None:
    values, known = trained
    with pytest.raises(DataError, match=message):
        check_identity({**known, **changed}, _stored(values, "two"), "weights")


def test_a_missing_viewpoint_is_named(world: World, tmp_path: Path) -> None:
    values = _values(world)
    write_store(tmp_path / "few.npy", world.names[2:], values[2:], width=WIDTH, source="", encoder="")
    with pytest.raises(DataError) as caught:
        open_store(tmp_path / "few.npy", world)
    total = len(world.viewpoints)
    expected = f"few.npy: lacks 2 of the {total} viewpoints of the world, first '{world.names[0]}'; build"
    assert expected in str(caught.value)


Rows = NDArray[np.float32]


def _rows(count: int, width: int) -> Rows:
    return np.random.default_rng(3).normal(size=(count, VIEWS, width)).astype(np.float32)


def _write_tsv(file: Path, rows: Rows) -> Path:
    with file.open("w") as stream:
        for number, row in enumerate(rows):
            stream.write(f"scan\tv{number}\t640\t480\t60\t{base64.b64encode(row.tobytes()).decode()}\n")
    return file


def _write_hdf5(file: Path, rows: Rows) -> Path:
    with h5py.File(file, "w") as target:
        for number, row in enumerate(rows):
            target.create_dataset(f"scan_v{number}", data=row)
    return file


@pytest.mark.parametrize("write", [_write_tsv, _write_hdf5])
def test_200_rows_round_trip_bit_exactly_in_float16(write: Any, tmp_path: Path) -> None:
    rows, tsv = _rows(200, 24), write is _write_tsv
    file = write(tmp_path / ("f.tsv" if tsv else "f.hdf5"), rows)
    info = convert_features(file, tmp_path / "out" / "f.npy", columns=16, encoder="net")
    assert (info.source, info.encoder, info.width) == (f"{file.name}, first 16 columns", "net", 16)
    numbers = [int(key.removeprefix("scan_v")) for key in info.keys]
    assert numbers == sorted(range(200), key=None if tsv else str), "in the order of the file or of the names"
    _, values = read_store(tmp_path / "out" / "f.npy")
    assert values.tobytes() == rows[numbers, :, :16].astype(np.float16).tobytes()


@pytest.mark.parametrize("write", [_write_tsv, _write_hdf5])
def test_progress_ends_with_everything_done_and_a_bad_number_is_located(write: Any, tmp_path: Path) -> None:
    rows, target, seen = _rows(4, 3), tmp_path / "f.npy", list[tuple[int, int]]()
    file = write(tmp_path / ("f.tsv" if write is _write_tsv else "f.h5"), rows)
    convert_features(file, target, progress=lambda *done: seen.append(done))
    assert [done for done, _ in seen] == [1, 2, 3, 4]
    assert seen[-1] == (4, 4)
    target.unlink()
    target.with_suffix(".json").unlink()
    rows[2, 7, 1] = np.nan
    write(file, rows)
    place = "line 3" if write is _write_tsv else "data set 'scan_v2'"
    with pytest.raises(DataError, match=rf"{file.name}: {place}: 'scan_v2', view 7, column 1 is "):
        convert_features(file, target)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("f.tsv", 9, r"holds features of shape \(36, 2\), expected \(36, 9\)"),
        ("f.tsv", 0, "columns must be 1 or more, got 0; leave it out to keep all"),
        ("f.pth", None, r"f\.pth: unknown kind of feature file; expected a name ending in \.tsv, \.tsv\.gz"),
    ],
)
def test_other_files_and_columns_are_refused(
    name: str, columns: int | None, message: str, tmp_path: Path
) -> None:
    _write_tsv(tmp_path / "f.tsv", _rows(1, 2))
    with pytest.raises((DataError, UserError), match=message):
        convert_features(tmp_path / name, tmp_path / "f.npy", columns=columns)


@pytest.mark.parametrize(
    ("file", "name"),
    [("a/b.c.tsv", "b.c"), ("x.tsv.gz", "x"), ("y.hdf5", "y"), ("z.h5", "z"), ("o", "o")],
)
def test_a_store_is_named_after_its_file(file: str, name: str) -> None:
    assert store_name(file) == name


_PEAK = """
import resource, sys
from scenemem.features.store import convert_features
convert_features(sys.argv[1], sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _peak_kilobytes(file: Path, target: Path) -> int:
    shown = subprocess.run(
        [sys.executable, "-c", _PEAK, str(file), str(target)], capture_output=True, text=True, check=True
    )
    return int(shown.stdout)


@pytest.mark.parametrize("write", [_write_tsv, _write_hdf5])
def test_memory_does_not_grow_with_the_file(write: Any, tmp_path: Path) -> None:
    end = ".tsv" if write is _write_tsv else ".hdf5"
    small = write(tmp_path / f"small{end}", _rows(8, 512))
    large = write(tmp_path / f"large{end}", _rows(800, 512))  # 59 MB of float32, 79 MB of text
    growth = _peak_kilobytes(large, tmp_path / "l.npy") - _peak_kilobytes(small, tmp_path / "s.npy")
    assert growth < 15_000, f"converting a file 100 times as large took {growth} kB more"


@pytest.mark.real_data
def test_the_real_efficientnet_sample_converts(real_data: Path, tmp_path: Path) -> None:
    (file,) = (real_data / "features").glob("*.tsv")
    info = convert_features(file, tmp_path / "e.npy", encoder="EfficientNet")
    assert (len(info.keys), info.width) == (8, 1792)
    _, values = read_store(tmp_path / "e.npy")
    first = np.frombuffer(base64.b64decode(file.read_text().split("\n")[0].split("\t")[5]), np.float32)
    np.testing.assert_array_equal(values[0].ravel(), first.astype(np.float16))


# Tracks


def test_every_track_says_what_it_stands_for() -> None:
    assert list(TRACKS) == ["captions", "objects", "images", "oracle", "houses"], "from strict to privileged"
    assert [name for name, track in TRACKS.items() if track.privileged] == ["oracle"]
    for track in TRACKS.values():
        assert track.sensor
        assert track.command.startswith("scenemem data ")


def test_the_layout_tells_stores_of_another_meaning_apart() -> None:
    info = StoreInfo(("s_a",), 2, "files", "words", "0", (Column("own", 0, 2, "x"),), "captions", "a camera")
    for same in ({"source": "others"}, {"sha256": "1"}, {"sensor": ""}):
        assert msgspec.structs.replace(info, **same).layout == info.layout
    others: dict[str, Any] = {"track": "objects", "encoder": "hashed words", "width": 3, "keys": ("s_b",)}
    for name, value in {**others, "columns": ()}.items():
        assert msgspec.structs.replace(info, **{name: value}).layout != info.layout
