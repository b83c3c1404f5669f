"""The tiny world, its training episodes and random view features, shared by the tests of agents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from scenemem.features.store import Environment, open_store
from scenemem.formats.folder import DataFolder
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import VIEWS, World


@pytest.fixture(scope="session")
def world(tiny_data: Path) -> World:
    return load_world(tiny_data / "connectivity")


@pytest.fixture(scope="session")
def episodes(tiny_data: Path, world: World) -> EpisodeSet:
    return load_split(DataFolder(tiny_data), world, "r2r", "train")


@pytest.fixture(scope="session")
def secret_episodes(tiny_data: Path, world: World) -> EpisodeSet:
    """Episodes of the test split, whose goals nobody knows."""
    return load_split(DataFolder(tiny_data), world, "r2r", "test")


@pytest.fixture(scope="session")
def random_environment(tiny_trainable: Path, world: World) -> Callable[[World, int], Environment]:
    """Makes an environment of random view features: of a world, with a number of visual columns."""
    tiny = open_store(tiny_trainable / "features" / "tiny.npy", world)

    def make(world: World, visual: int) -> Environment:
        values = torch.randn(len(world.names), VIEWS, visual, generator=torch.Generator().manual_seed(0))
        info = msgspec.structs.replace(tiny.info, keys=world.names, width=visual)
        return Environment(world, replace(tiny, info=info, values=values, row=torch.arange(len(values))))

    return make
