"""Feature stores of some buildings only: what they lack is said, the episodes they cover are learnt from."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from scenemem.errors import DataError
from scenemem.features.store import convert_features
from scenemem.formats.features import write_store
from scenemem.formats.folder import DataFolder
from scenemem.presets import Overlays, overlaid
from scenemem.runs.experiment import new_experiment
from scenemem.world.build import load_world
from tests.commands.helpers import typed

LACKS = r"part\.npy: lacks \d+ of \d+ viewpoints; it has all of 1 of \d buildings \(grid\), and parts of 1 "


@pytest.fixture
def data(tiny_trainable: Path, tmp_path: Path) -> Path:
    """The tiny world with a store of its building 'grid' and of three viewpoints of another."""
    data = Path(shutil.copytree(tiny_trainable, tmp_path / "data"))
    names = load_world(data / "connectivity").names
    keys = [name for name in names if name.startswith("grid_")]
    keys += [name for name in names if name.startswith("spiral_")][:3]
    rows = np.zeros((len(keys), 36, 4), dtype=np.float16)
    write_store(data / "features" / "part.npy", keys, rows, width=4, source="", encoder="zeros")
    return data


def test_the_episodes_in_whole_buildings_are_learnt_from_and_that_is_said(data: Path) -> None:
    preset = overlaid("basic", Overlays("part"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        experiment = new_experiment(preset, DataFolder(data), seed=0)
        episodes = experiment.episodes("train")
        assert experiment.training_scans == ["grid"]
    assert re.search(LACKS, str(told[0].message))
    assert "18 of 30 paths are used; the others lie in buildings without features" in str(told[-1].message)
    train = json.loads((data / "r2r" / "R2R_train.json").read_text(encoding="utf-8"))
    assert len(episodes) == sum(len(item["instructions"]) for item in train if item["scan"] == "grid")
    with pytest.raises(
        DataError, match=r"R2R_val_unseen\.json: all of its \d+ paths lie in buildings without feat"
    ):
        experiment.episodes("val_unseen")


def test_a_scan_that_is_unknown_altogether_is_still_an_error(data: Path) -> None:
    file = data / "r2r" / "R2R_train.json"
    items = json.loads(file.read_text(encoding="utf-8"))
    items[0]["scan"] = "nowhere"
    file.write_text(json.dumps(items), encoding="utf-8")
    with warnings.catch_warnings(), pytest.raises(DataError, match="nowhere"):
        warnings.simplefilter("ignore")
        new_experiment(overlaid("basic", Overlays("part")), DataFolder(data), seed=0)


def test_a_conversion_says_what_is_missing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    h5py = pytest.importorskip("h5py")
    keys = load_world(data / "connectivity").names[:3]
    with h5py.File(tmp_path / "few.hdf5", "w") as file:
        for key in keys:
            file.create_dataset(key, data=np.zeros((36, 4), dtype=np.float32))
    assert typed("data", "features", tmp_path / "few.hdf5", "--data", data) == 0
    assert "few lacks " in (told := capsys.readouterr().err)
    assert "it has all of 0 of " in told
    info = convert_features(tmp_path / "few.hdf5", tmp_path / "again.npy")
    assert len(info.keys) == 3
