"""Metric tables for people: one agent in full, or many side by side."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

# metric -> what it is called in tables, how it is shown, what it means
METRICS = {
    "tl": ("TL", "{:.2f} m", "length of the trajectory"),
    "ne": ("NE", "{:.2f} m", "distance from the last viewpoint to the goal"),
    "sr": ("SR", "{:.2%}", "stopped nearer than 3 m to the goal"),
    "osr": ("OSR", "{:.2%}", "came nearer than 3 m to the goal"),
    "spl": ("SPL", "{:.2%}", "success, weighted by shortest distance / length walked"),
    "spl_ref": ("SPL (reference)", "{:.2%}", "the same with the length of the reference path"),
    "cls": ("CLS", "{:.2%}", "coverage of the reference path, weighted by length"),
    "ndtw": ("nDTW", "{:.2%}", "fidelity to the reference path"),
    "sdtw": ("SDTW", "{:.2%}", "fidelity where successful, else 0"),
}

SIDE_BY_SIDE = ("sr", "spl", "osr", "ne", "tl", "cls", "ndtw", "sdtw")


def metric_table(title: str, means: Mapping[str, float]) -> Table:
    """All metrics of one agent, each explained."""
    table = Table("metric", "mean", "", title=title)
    for name, (label, form, meaning) in METRICS.items():
        table.add_row(label, form.format(means[name]), meaning)
    return table


def comparison_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> Table:
    """The metrics of several agents, one row each: shares as fractions, lengths in metres."""
    table = Table("agent", *(METRICS[name][0] for name in SIDE_BY_SIDE), title=title)
    for agent, means in rows.items():
        table.add_row(agent, *(f"{means[name]:.3f}" for name in SIDE_BY_SIDE))
    return table
