"""A few houses, laid out and surveyed once per test session."""

from __future__ import annotations

import numpy as np
import pytest

from scenemem.houses.build import cast_panoramas, lay_out
from scenemem.houses.scene import Scene
from scenemem.houses.viewpoints import Layout, Surroundings, survey

NUMBERS = (0, 1, 3, 4)  # two with stairs, two without; with and without a porch

Surveyed = tuple[Layout, Scene, Surroundings]


@pytest.fixture(scope="session")
def surveyed() -> list[Surveyed]:
    laid_out = [lay_out(0, number) for number in NUMBERS]
    return [
        (layout, scene, survey(layout.house, scene, layout.position, cast_panoramas(layout, scene)))
        for layout, scene in laid_out
    ]


@pytest.fixture(scope="session")
def two_floors(surveyed: list[Surveyed]) -> Surveyed:
    """A house with stairs and a porch."""
    return surveyed[0]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
