"""The tiny world for the tests of the family."""

from __future__ import annotations

import pytest
import torch

from scenemem.features.store import Environment
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from tests.zoo.helpers import Setting


@pytest.fixture(scope="session")
def setting(environment: Environment, episodes: EpisodeSet) -> Setting:
    """The tiny world with random features, and some episodes to learn from."""
    torch.set_num_threads(1)
    vocabulary = Vocabulary.build(episodes.texts, min_count=1)
    return Setting(environment, episodes.select(range(0, len(episodes), 5)), vocabulary)
