"""Made-up captions for the tiny world, in the published formats."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from scenemem.formats.connectivity import connectivity_files, read_scan

THINGS = ("bed", "lamp", "sink", "couch", "table", "window", "mirror", "stairs")
COLOURS = ("white", "black", "red")
NAVGPT_ROWS = ("down", "middle", "top")


def viewpoint_views(chance: random.Random) -> dict[str, Any]:
    """36 LangNav views with a caption and up to three detections each."""

    def caption() -> str:
        return f"a {chance.choice(COLOURS)} {chance.choice(THINGS)} next to a {chance.choice(THINGS)}"

    def detection() -> dict[str, str]:
        x, y = chance.randrange(500), chance.randrange(400)
        coordinates = f"{x} {y} {x + chance.randrange(1, 140)} {y + chance.randrange(1, 80)}"
        confidence = f"{chance.uniform(0.3, 1):.2f}"
        kind = chance.choice(THINGS)
        return {
            "obj_class": kind,
            "coordinates": coordinates,
            "confidence": confidence,
            "caption": caption(),
        }

    return {
        str(view): {"global_cap": caption(), "dense_cap": [detection() for _ in range(chance.randrange(4))]}
        for view in range(36)
    }


def write_captions(root: Path, seed: int = 0) -> None:
    """Write ``captions/`` for every included viewpoint of a data folder, unpacked, both captioners."""
    chance = random.Random(seed)
    folders = [
        root / "captions" / name for name in ("r2r_blip_DETR_vis2text", "navgpt_r2r/observations_list")
    ]
    for folder in folders:
        folder.mkdir(parents=True)
    for file in connectivity_files(root / "connectivity"):
        scan = read_scan(file)
        names = [viewpoint.image_id for viewpoint in scan.viewpoints if viewpoint.included]
        views = {name: viewpoint_views(chance) for name in names}
        slots = {
            name: [
                "\n".join(f"{row}: a {chance.choice(THINGS)}" for row in NAVGPT_ROWS) for _heading in range(8)
            ]
            for name in names
        }
        for folder, content in zip(folders, (views, slots), strict=True):
            (folder / f"{scan.name}.json").write_text(json.dumps(content))
