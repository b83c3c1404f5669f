"""Gymnasium ids: importing this module makes them known.

``gymnasium.make("scenemem.simulator.registration:SceneMem/R2R-v0")`` imports it by itself.
"""

from __future__ import annotations

import gymnasium

_IDS = {"SceneMem/R2R-v0": "r2r", "SceneMem/R4R-v0": "r4r"}  # id -> task


def register_environments() -> None:
    """Register the ids of this package; doing so again changes nothing."""
    for name, task in _IDS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name,
                entry_point="scenemem.simulator.gymnasium_env:NavigationEnv",
                vector_entry_point="scenemem.simulator.gymnasium_vector:NavigationVectorEnv",
                kwargs={"task": task},
            )


register_environments()
