"""The family: the systems that the paper compares itself with, and DUET, one file each, on one contract.

Nothing here is imported until a name is looked up that nobody knows; then ``register`` adds all of them.
"""

from __future__ import annotations

from types import ModuleType


def systems() -> dict[str, ModuleType]:
    """The module of every system, by the name of its preset."""
    from scenemem.zoo import (
        active_perception,
        auxrn,
        duet,
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


def register() -> None:
    """Add the agents, losses, label rules, rewards and presets of all systems; again is the same as once."""
    from scenemem.extend import PRESETS

    for system in systems().values():
        system.register()
        for name, preset in system.ROWS.items():
            PRESETS.register(name, preset)
