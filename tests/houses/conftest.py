"""A few houses, laid out and looked at once per test session."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from scenemem.houses.house import lay_out, look_around
from scenemem.houses.raycast import Panorama
from scenemem.houses.records import House
from scenemem.houses.scene import Scene
from scenemem.houses.surroundings import Surroundings, gather
from scenemem.houses.viewpoints import Layout

NUMBERS = (0, 1, 2, 4)  # two with stairs, two without; all with some openings and porches


@dataclass(frozen=True)
class Sample:
    """One house with everything derived from its geometry."""

    layout: Layout
    scene: Scene
    panoramas: list[Panorama]
    around: Surroundings

    @property
    def house(self) -> House:
        return self.layout.house


@pytest.fixture(scope="session")
def samples() -> list[Sample]:
    return [_sample(number) for number in NUMBERS]


@pytest.fixture(scope="session")
def sample(samples: list[Sample]) -> Sample:
    return samples[0]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _sample(number: int) -> Sample:
    layout, scene = lay_out(0, number)
    panoramas = look_around(layout, scene)
    return Sample(layout, scene, panoramas, gather(layout.house, scene, layout.position, panoramas))
