"""What the tests of the houses share."""

from __future__ import annotations

from scenemem.houses.scene import Scene
from scenemem.houses.viewpoints import Layout, Surroundings

Surveyed = tuple[Layout, Scene, Surroundings]
