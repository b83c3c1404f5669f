"""The family: the systems that the paper compares itself with, and DUET, one file each, on one contract.

Nothing here is imported until a name is looked up that nobody knows; then ``register`` adds all of them.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenemem.extend import Preset


def systems() -> dict[str, ModuleType]:
    """The module of every system, by the name of its preset."""
    from scenemem.zoo import (
        active_perception,
        auxrn,
        duet,
        e_dropout,
        egp,
        fast,
        oaam,
        pta,
        rcm,
        regretful,
        rpa,
        self_monitoring,
        speaker_follower,
        student_forcing,
    )

    return {
        "self-monitoring": self_monitoring,
        "regretful": regretful,
        "e-dropout": e_dropout,
        "oaam": oaam,
        "duet": duet,
        "egp": egp,
        "auxrn": auxrn,
        "active-perception": active_perception,
        "rcm": rcm,
        "speaker-follower": speaker_follower,
        "fast": fast,
        "student-forcing": student_forcing,
        "rpa": rpa,
        "pta": pta,
    }


@cache
def rows() -> dict[str, Preset[Any]]:
    """All presets: those of every system, and its shared ones on the tracks of R2R and R4R."""
    from scenemem.zoo.recipes import on_r4r, on_tracks

    found: dict[str, Preset[Any]] = {}
    for system in systems().values():
        found |= system.ROWS
        for name, preset in system.ROWS.items():
            if not name.endswith("-as-published"):
                found |= on_tracks(name, preset)
        for name, labels in getattr(system, "R4R", {}).items():
            found |= on_r4r(name, system.ROWS[name], labels)
    return found


def register() -> None:
    """Add the agents, losses, label rules, rewards and presets of all systems; again is the same as once."""
    from scenemem.extend import PRESETS

    for system in systems().values():
        system.register()
    for name, preset in rows().items():
        PRESETS.register(name, preset)
