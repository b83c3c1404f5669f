"""A few houses, laid out and looked at once per test session."""

from __future__ import annotations

import numpy as np
import pytest

from scenemem.houses.house import lay_out, look_around
from scenemem.houses.scene import Scene
from scenemem.houses.surroundings import Surroundings, gather
from scenemem.houses.viewpoints import Layout

NUMBERS = (0, 1, 3, 4)  # two with stairs, two without; with and without a porch

Surveyed = tuple[Layout, Scene, Surroundings]


@pytest.fixture(scope="session")
def surveyed() -> list[Surveyed]:
    laid_out = [lay_out(0, number) for number in NUMBERS]
    return [
        (layout, scene, gather(layout.house, scene, layout.position, look_around(layout, scene)))
        for layout, scene in laid_out
    ]


@pytest.fixture(scope="session")
def two_floors(surveyed: list[Surveyed]) -> Surveyed:
    """A house with stairs and a porch."""
    return surveyed[0]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
