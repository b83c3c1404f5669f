"""Made-up captions for the tiny world, in the published formats."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from scenemem.formats.connectivity import connectivity_files, read_scan

THINGS = ("bed", "lamp", "sink", "couch", "table", "window", "mirror", "stairs")
COLOURS = ("white", "black", "red")
FOLDERS = ("r2r_blip_DETR_vis2text", "navgpt_r2r/observations_list")
ROWS = ("down", "middle", "top")


def viewpoint_views(chance: random.Random) -> dict[str, Any]:
    """36 LangNav views with a caption and up to three detections each."""

    def caption() -> str:
        return f"a {chance.choice(COLOURS)} {chance.choice(THINGS)} next to a {chance.choice(THINGS)}"

    def detection() -> dict[str, str]:
        x, y = chance.randrange(500), chance.randrange(400)
        return {
            "coordinates": f"{x} {y} {x + chance.randrange(1, 140)} {y + chance.randrange(1, 80)}",
            "confidence": f"{chance.uniform(0.3, 1):.2f}",
            "obj_class": chance.choice(THINGS),
            "caption": caption(),
        }

    views = ((caption(), [detection() for _ in range(chance.randrange(4))]) for _ in range(36))
    names = ("global_cap", "dense_cap")
    return {str(view): dict(zip(names, one, strict=True)) for view, one in enumerate(views)}


def write_captions(root: Path, seed: int = 0) -> None:
    """Write ``captions/`` for every included viewpoint of a data folder, unpacked, both captioners."""
    chance = random.Random(seed)
    for folder in FOLDERS:
        (root / "captions" / folder).mkdir(parents=True)
    for file in connectivity_files(root / "connectivity"):
        scan = read_scan(file)
        views, slots = dict[str, Any](), dict[str, Any]()
        for name in [viewpoint.image_id for viewpoint in scan.viewpoints if viewpoint.included]:
            views[name] = viewpoint_views(chance)
            slots[name] = ["\n".join(f"{row}: a {chance.choice(THINGS)}" for row in ROWS) for _ in range(8)]
        for folder, content in zip(FOLDERS, (views, slots), strict=True):
            (root / "captions" / folder / f"{scan.name}.json").write_text(json.dumps(content))
