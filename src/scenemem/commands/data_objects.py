"""``scenemem data objects``: view features from object and room annotations, no picture needed."""

from __future__ import annotations

from pathlib import Path

from scenemem.commands.console import console, progress_bar
from scenemem.commands.data_features import show_stores
from scenemem.features.objects import build_object_features
from scenemem.formats.folder import DataFolder


def data_objects(
    data: Path, name: str = "objects", rooms: bool = True, out: Path | None = None, json: bool = False
) -> None:
    """Build view features from public annotations: the store NAME, and NAME+rooms with the room labels.

    Args:
        data: data folder with connectivity/ and objects/, optionally rooms/ and glove/.
        name: of the store without room labels.
        rooms: also build the store with room labels, when the data folder has them.
        out: folder for the stores; features/ of the data folder (or of its cache) when not given.
        json: print one JSON object instead of text.
    """
    opened = DataFolder(data)
    folder = out or opened.derived / "features"
    with progress_bar("building features") as progress:
        stores = build_object_features(opened, folder, name=name, rooms=rooms, progress=progress)
    if rooms and len(stores) == 1:
        console.print(f"no room labels in {opened.rooms}: only the store '{name}' was built", soft_wrap=True)
    show_stores(stores, folder, json)
