"""The family: the systems that the paper compares itself with, and DUET, one file each, on one contract.

Nothing here is imported until a name is looked up that nobody knows; then ``register`` adds all of them.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenemem.extend import Preset


def systems() -> dict[str, ModuleType]:
    """The module of every system, by the name of its row."""
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


def rows() -> dict[str, Preset[Any]]:
    """The rows of all systems."""
    return {name: preset for system in systems().values() for name, preset in system.ROWS.items()}


def register() -> None:
    """Add the agents, losses, label rules, rewards and rows of all systems; again is the same as once."""
    from scenemem.extend import PRESETS, PUBLISHED, R4R_LABELS

    for system in systems().values():
        system.register()
        for registry, entries in (
            (PRESETS, system.ROWS),
            (PUBLISHED, system.AS_PUBLISHED),
            (R4R_LABELS, getattr(system, "R4R_LABELS", {})),
        ):
            for name, entry in entries.items():
                registry.register(name, entry)
