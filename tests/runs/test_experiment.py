"""An experiment opens what a preset needs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from scenemem.formats.folder import DataFolder
from scenemem.presets import PRESETS
from scenemem.runs.experiment import new_experiment
from scenemem.tasks.vocabulary import PAD


def test_words_begin_with_the_word_vectors_of_the_data_folder(tiny_trainable: Path, tmp_path: Path) -> None:
    folder = DataFolder(Path(shutil.copytree(tiny_trainable, tmp_path / "data")))
    preset = replace(PRESETS["basic"], data=replace(PRESETS["basic"].data, min_count=1))
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

    as_before = new_experiment(
        replace(preset, data=replace(preset.data, word_vectors=False)), folder, seed=0
    ).agent.network.encoder.embedding.weight
    assert torch.equal(as_before, before)
