"""Feature stores of some buildings only: what they lack is said, the episodes they cover are learnt from."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from scenemem.errors import DataError
from scenemem.formats.folder import DataFolder
from scenemem.presets import Overlays, overlaid
from scenemem.runs.experiment import new_experiment
from scenemem.world.build import load_world
from tests.commands.helpers import Shell, write_features

LACKS = r"part\.npy: lacks \d+ of \d+ viewpoints; it has all of 1 of \d buildings \(grid\), and parts of 1 "


@pytest.fixture
def data(copied_data: Path) -> Path:
    """The tiny world with a store of its building 'grid' and of three viewpoints of another."""
    names = load_world(copied_data / "connectivity").names
    first = next(number for number, name in enumerate(names) if name.startswith("spiral_"))
    assert all(name.startswith("grid_") for name in names[:first])
    write_features(copied_data, "part", 4, keys=slice(first + 3))
    return copied_data


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


def test_a_conversion_says_what_is_missing(data: Path, tmp_path: Path, shell: Shell) -> None:
    h5py = pytest.importorskip("h5py")
    keys = load_world(data / "connectivity").names[:3]
    with h5py.File(tmp_path / "few.hdf5", "w") as file:
        for key in keys:
            file.create_dataset(key, data=np.zeros((36, 4), dtype=np.float32))
    told = shell("data", "features", tmp_path / "few.hdf5", "--data", data)
    assert "few lacks " in told
    assert "it has all of 0 of " in told
