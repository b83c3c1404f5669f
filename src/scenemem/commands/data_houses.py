"""``scenemem data houses``: build the embedded houses into a data folder."""

from __future__ import annotations

from pathlib import Path

from scenemem.commands.console import console, print_json, progress_bar
from scenemem.houses.build import HousesConfig, build_houses


def data_houses(
    out: Path | None = None, houses: int = 72, seed: int = 0, jobs: int | None = None, json: bool = False
) -> None:
    """Build the embedded houses: graphs, instructions, view features and plans in the public formats.

    Args:
        out: folder to write; an older one built by this command is replaced; ./houses when not given.
        houses: how many houses; a sixth of them, at most twelve, are kept for val_unseen.
        seed: everything follows from this number.
        jobs: processes that work side by side; all processors when not given.
        json: print one JSON object on standard output.
    """
    config = HousesConfig(houses=houses, seed=seed)
    with progress_bar("building houses") as progress:
        summary = build_houses(out or Path("houses"), config, jobs=jobs, progress=progress)
    if json:
        print_json(summary)
        return
    splits = ", ".join(f"{count} {split}" for split, count in summary.instructions.items())
    console.print(
        f"{summary.houses} houses, {summary.viewpoints} viewpoints, {summary.edges} edges; "
        f"instructions: {splits}; written to {summary.folder}",
        markup=False,
    )
