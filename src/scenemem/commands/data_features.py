"""``scenemem data features``: convert a public feature file to a memory-mapped store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from scenemem.commands.console import output, print_json, progress_bar
from scenemem.features.store import convert_features, store_name
from scenemem.formats.features import StoreInfo
from scenemem.formats.folder import DataFolder


def data_features(
    file: Annotated[Path, tyro.conf.Positional],
    data: Path,
    name: str | None = None,
    columns: int | None = None,
    out: Path | None = None,
    encoder: str = "",
    json: bool = False,
) -> None:
    """Convert a TSV or HDF5 file of view features to a memory-mapped store.

    Args:
        file: the feature file: .tsv, .tsv.gz, .hdf5 or .h5.
        data: data folder the features belong to.
        name: of the store; the name of the file when not given.
        columns: keep only the first columns of every view, e.g. 768 where class scores follow.
        out: folder for the store; features/ of the data folder (or of its cache) when not given.
        encoder: the network that made the features, kept with the store.
        json: print one JSON object instead of text.
    """
    folder = out or DataFolder(data).derived / "features"
    name = name or store_name(file)
    target = folder / f"{name}.npy"
    with progress_bar("converting viewpoints") as progress:
        info = convert_features(file, target, columns=columns, encoder=encoder, progress=progress)
    show_stores({name: info}, folder, json)


def show_stores(stores: dict[str, StoreInfo], folder: Path, json: bool) -> None:
    """Print what was written, for people or as JSON."""
    rows = [
        {
            "name": name,
            "file": str(folder / f"{name}.npy"),
            "width": info.width,
            "viewpoints": len(info.keys),
            "sha256": info.sha256,
        }
        for name, info in stores.items()
    ]
    if json:
        print_json({"stores": rows})
        return
    for row in rows:
        text = "{name}: {viewpoints} viewpoints x 36 views x {width} columns\n  sha256 {sha256}\n  {file}"
        output.print(text.format(**row), highlight=False, markup=False, soft_wrap=True)
