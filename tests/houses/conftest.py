"""A few houses, laid out and surveyed once per test session."""

from __future__ import annotations

import pytest

from scenemem.houses.build import cast_panoramas, lay_out
from scenemem.houses.scene import RenderScene
from scenemem.houses.viewpoints import Layout, Surroundings, survey

Surveyed = tuple[Layout, RenderScene, Surroundings]

NUMBERS = (0, 1, 3, 4)  # two with stairs, two without; with and without a porch


@pytest.fixture(scope="session")
def surveyed() -> list[Surveyed]:
    laid_out = [lay_out(0, number) for number in NUMBERS]
    return [(one, scene, survey(one, scene, cast_panoramas(one, scene))) for one, scene in laid_out]


@pytest.fixture(scope="session")
def two_floors(surveyed: list[Surveyed]) -> Surveyed:
    """A house with stairs and a porch."""
    return surveyed[0]
