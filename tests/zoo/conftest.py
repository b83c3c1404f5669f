"""The tiny world for the tests of the family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scenemem.features.store import Environment, open_store
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import World
from tests.zoo.helpers import Setting


@pytest.fixture(scope="session")
def setting(tiny_trainable: Path, world: World, episodes: EpisodeSet) -> Setting:
    """The tiny world with random features, and some episodes to learn from."""
    torch.set_num_threads(1)
    environment = Environment(world, open_store(tiny_trainable / "features" / "tiny.npy", world))
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    return Setting(environment, episodes.select(range(0, len(episodes), 5)), vocabulary)
