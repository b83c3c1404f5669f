"""An experiment opens what a preset needs; feature stores may cover some buildings only."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scenemem.errors import DataError, with_flags
from scenemem.formats.features import Column
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import write_checkpoint
from scenemem.presets import PRESETS, Overlays, overlaid
from scenemem.runs.experiment import new_experiment, stored_experiment
from scenemem.tasks.vocabulary import PAD
from scenemem.world.build import load_world
from tests.commands.helpers import SMALL as SMALL_FLAGS
from tests.commands.helpers import Shell, write_features

COLUMNS = (Column("captions", 0, 8, "of the views"),)
BASIC = PRESETS["basic"]
SMALL = replace(
    BASIC, model=replace(BASIC.model, width=16, word_width=8), data=replace(BASIC.data, min_count=1)
)


def test_words_begin_with_the_word_vectors_of_the_data_folder(copied_data: Path) -> None:
    folder, preset = DataFolder(copied_data), SMALL
    plain = new_experiment(preset, folder, seed=0)
    words = plain.vocabulary.words[4:10]
    folder.word_vectors.parent.mkdir()
    vectors = np.random.default_rng(0).normal(size=(7, 30)).astype(np.float32)
    np.savez(folder.word_vectors, words=np.array(["<PAD>", *words]), vectors=vectors)

    begun = new_experiment(preset, folder, seed=0)
    before, after = (made.agent.network.encoder.embedding.weight for made in (plain, begun))
    changed = (before != after).any(dim=1).nonzero().squeeze(1)
    assert changed.tolist() == list(range(4, 10))
    assert not after[PAD].any()

    without = replace(preset, data=replace(preset.data, word_vectors=False))
    as_before = new_experiment(without, folder, seed=0).agent.network.encoder.embedding.weight
    assert torch.equal(as_before, before)


def _store(data: Path, value: float, **changed: Any) -> None:
    """Replace the feature store of a data folder by one full of the same number."""
    given = {"track": "captions", "encoder": "words", "columns": COLUMNS, **changed}
    write_features(data, "tiny", 8, value=value, **given)


def test_weights_know_the_track_and_the_layout_of_their_features(copied_data: Path, tmp_path: Path) -> None:
    data, file = copied_data, tmp_path / "agent.safetensors"
    _store(data, 0.5)
    experiment = new_experiment(SMALL, DataFolder(data), seed=0)
    write_checkpoint(file, experiment.network, json.loads(json.dumps(experiment.metadata)))
    stored_experiment(file, DataFolder(data))

    _store(data, 0.5 + 1 / 2048)
    with pytest.warns(UserWarning, match="panoramas agree but for rounding, .* scores may differ a little"):
        stored_experiment(file, DataFolder(data))
    _store(data, 0.25)
    with pytest.raises(DataError, match="panoramas differ more than rounding can explain"):
        stored_experiment(file, DataFolder(data))

    for changed, message in (
        ({"track": "objects"}, "was trained on features with track captions, this store has objects"),
        ({"track": ""}, "was trained on features with track captions, this store has none"),
        ({"encoder": "hashed words"}, "was trained on features with sha256"),
        ({"columns": (Column("captions", 0, 8, "of others"),)}, "was trained on features with sha256"),
    ):
        _store(data, 0.25, **changed)
        with pytest.raises(DataError, match=f"{message}.*; build the store it was trained on again"):
            stored_experiment(file, DataFolder(data))


LACKS = (
    r"part\.npy: lacks \d+ of \d+ viewpoints; it has all of 1 of \d buildings \(grid\), and parts of spiral "
)


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
    ) as refused:
        experiment.episodes("val_unseen")
    advice = "choose another --split (in training --selection.split dev_unseen), or convert features of these"
    assert advice in with_flags(str(refused.value)), "evaluation has another flag than training"


def test_a_scan_that_is_unknown_altogether_is_still_an_error(data: Path) -> None:
    file = data / "r2r" / "R2R_train.json"
    items = json.loads(file.read_text(encoding="utf-8"))
    items[0]["scan"] = "nowhere"
    file.write_text(json.dumps(items), encoding="utf-8")
    with warnings.catch_warnings(), pytest.raises(DataError, match="nowhere"):
        warnings.simplefilter("ignore")
        new_experiment(overlaid("basic", Overlays("part")), DataFolder(data), seed=0)


def test_the_commands_named_after_a_training_are_on_a_split_that_has_features(
    data: Path, tmp_path: Path, shell: Shell
) -> None:
    chosen = ("--features", "part", "--selection.split", "val_seen", "--iterations", 2, "--no-replays")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = shell("train", "basic", "--data", data, "--out", tmp_path / "run", *chosen, *SMALL_FLAGS)
        following = shown.split(" next: scenemem ")[1:]
        assert [words.split()[0] for words in following] == ["eval", "view", "compare"]
        assert all(words.endswith(f"--data {data} --split val_seen") for words in following)
        shell(*following[0].split())


def test_a_conversion_says_what_is_missing(data: Path, tmp_path: Path, shell: Shell) -> None:
    h5py = pytest.importorskip("h5py")
    keys = load_world(data / "connectivity").names[:3]
    with h5py.File(tmp_path / "few.hdf5", "w") as file:
        for key in keys:
            file.create_dataset(key, data=np.zeros((36, 4), dtype=np.float32))
    told = shell("data", "features", tmp_path / "few.hdf5", "--data", data)
    assert "few lacks " in told
    assert "it has no building whole, and parts of grid (3 of 13)" in told
    with pytest.raises(
        DataError, match=r"few\.npy: lacks .*; convert features of all viewpoints of a building"
    ):
        new_experiment(overlaid("basic", Overlays("few")), DataFolder(data), seed=0)
