"""Speeds of other implementations that ours are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from scenemem.agents.build import Kind

REFERENCE_GIGAFLOPS = 68.0
"""GFLOP/s of a large matrix product on the one core all reference speeds were measured on."""


@dataclass(frozen=True)
class Reference:
    """A measured speed: one core, batch 16, 2048 feature columns, the width of the paper."""

    agent: Kind
    mode: str
    episodes_per_second: float
    source: str


COLUMNS = 2048  # of the features all references were measured with
_RELEASED = "released code of the SSM paper"

REFERENCES = (
    Reference("frontier", "teacher", 0.51, _RELEASED),
    Reference("frontier", "sampled", 0.07, _RELEASED),
    Reference("frontier", "greedy", 0.34, _RELEASED),
    Reference("basic", "mixed", 19.8, "a public implementation of the base agent (E-Dropout)"),
)


def reference_speed(agent: Kind, columns: int, mode: str) -> float | None:
    """Episodes/s of the other implementation; None where nobody measured it."""
    if columns != COLUMNS:
        return None
    found = (row for row in REFERENCES if (row.agent, row.mode) == (agent, mode))
    return next((row.episodes_per_second for row in found), None)
