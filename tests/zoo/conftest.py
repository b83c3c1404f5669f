"""The tiny world for the tests of the family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scenemem.features.store import Environment, open_store
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import load_split
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import load_world
from tests.zoo.helpers import Setting


@pytest.fixture(scope="session")
def setting(tiny_trainable: Path) -> Setting:
    """The tiny world with random features, and some episodes to learn from."""
    torch.set_num_threads(1)
    world = load_world(tiny_trainable / "connectivity")
    environment = Environment(world, open_store(tiny_trainable / "features" / "tiny.npy", world))
    episodes = load_split(DataFolder(tiny_trainable), world, "r2r", "train")
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    return Setting(environment, episodes.select(range(0, len(episodes), 5)), vocabulary)
