"""The family: the systems that the paper compares itself with, and DUET, one file each, on one contract.

Nothing here is imported until a name is looked up that is not registered yet; then ``register`` adds all.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scenemem.extend import Preset

SYSTEMS = (
    "self-monitoring",
    "regretful",
    "e-dropout",
    "oaam",
    "duet",
    "egp",
    "auxrn",
    "active-perception",
    "rcm",
    "speaker-follower",
    "fast",
    "student-forcing",
    "rpa",
    "pta",
)


def systems() -> dict[str, ModuleType]:
    """The module of every system, by the name of its row."""
    return {name: import_module(f"{__name__}.{name.replace('-', '_')}") for name in SYSTEMS}


def rows() -> dict[str, Preset[Any]]:
    """The rows of all systems."""
    return {name: preset for system in systems().values() for name, preset in system.ROWS.items()}


def register() -> None:
    """Add the tables of all systems and of the objectives they share; again is the same as once."""
    from scenemem import extend
    from scenemem.zoo import objectives

    for module in (objectives, *systems().values()):
        for table, registry in (
            ("AGENTS", extend.AGENTS),
            ("LOSSES", extend.LOSSES),
            ("LABEL_RULES", extend.LABEL_RULES),
            ("REWARDS", extend.REWARDS),
            ("ROWS", extend.PRESETS),
            ("AS_PUBLISHED", extend.PUBLISHED),
            ("R4R_LABELS", extend.R4R_LABELS),
        ):
            for name, entry in getattr(module, table, {}).items():
                registry.register(name, entry)
