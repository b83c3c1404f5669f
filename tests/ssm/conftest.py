"""Fixtures of the tests of the paper's room."""

from __future__ import annotations

import pytest
import torch

from scenemem.features.store import Environment
from scenemem.ssm.reading import Grounded
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World
from tests.ssm.helpers import VISUAL, WALKS, WIDTH, MakeEnvironment, Moment, Setting, exact, randn


@pytest.fixture(scope="session")
def environment(random_environment: MakeEnvironment, world: World) -> Environment:
    return exact(random_environment(world, VISUAL))


@pytest.fixture
def moment(environment: Environment) -> Moment:
    torch.manual_seed(0)
    walks = [[environment.world.index_of(scan, name) for name in names] for scan, names in WALKS.items()]
    heading = torch.tensor([0.3, 4.0, 2.2], dtype=torch.float64)
    return Moment(environment, walks, Grounded(randn(3, WIDTH), randn(3, WIDTH)), heading)


@pytest.fixture(scope="session")
def setting(random_environment: MakeEnvironment, world: World, episodes: EpisodeSet) -> Setting:
    return Setting.of(random_environment, world, episodes.select(range(0, len(episodes), 7)))
