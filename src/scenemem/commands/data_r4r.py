"""``scenemem data r4r``: write R4R from R2R."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from scenemem.commands.console import open_data, output, print_json, progress_bar
from scenemem.formats.episodes import read_episodes
from scenemem.tasks.paths import R4RCounts, write_r4r
from scenemem.world.build import Positions, load_world


def data_r4r(
    data: Path | None = None,
    out: Path | None = None,
    positions: Positions = "centre",
    splits: tuple[str, ...] = ("train", "val_seen", "val_unseen"),
    json: bool = False,
) -> None:
    """Write R4R_<split>.json from R2R_<split>.json: two paths of a building become one, 3 x 3 instructions.

    Args:
        data: data folder; without it the embedded houses.
        out: folder for the files; by default r4r/ in the data folder (or in the cache if that is read-only).
        positions: measure distances between panorama centres, which gives the published files, or between
            the pose translations of the connectivity files.
        splits: which splits to write.
        json: print one JSON object with the counts.
    """
    folder = open_data(data)
    target = out or folder.derived / "r4r"
    world = load_world(folder.connectivity, positions=positions)
    counts: dict[str, R4RCounts] = {}
    for split in splits:
        source = folder.episodes("r2r", split)
        episodes = read_episodes(source)
        with progress_bar(f"R4R {split}") as progress:
            counts[split] = write_r4r(
                world, episodes, source, target / f"R4R_{split}.json", progress=progress
            )
    if json:
        print_json({"splits": {split: asdict(count) for split, count in counts.items()}})
    else:
        output.print(_table(counts))
        output.print(f"written to {target}", highlight=False, soft_wrap=True)


def _table(counts: dict[str, R4RCounts]) -> Table:
    table = Table("split", "paths", "instructions", title="R4R")
    for split, count in counts.items():
        table.add_row(split, f"{count.paths:,}", f"{count.instructions:,}")
    return table
