"""``scenemem data images``: view features from pictures."""

from __future__ import annotations

from pathlib import Path

from scenemem.commands.console import progress_bar
from scenemem.formats.features import VIEWS
from scenemem.formats.folder import DataFolder


def data_images(
    data: Path,
    encoder: str,
    images: Path | None = None,
    name: str = "images",
    batch: int = VIEWS,
    device: str = "cpu",
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Build view features from pictures with an image encoder; the same command goes on after a kill.

    Args:
        data: data folder whose viewpoints are encoded.
        encoder: houses-small, which is built in, or a transformers model: its name on the hub or its folder.
        images: folder of pictures, SCAN/VIEWPOINT/0.jpg to 35.jpg or SCAN/VIEWPOINT_skybox0_sami.jpg to 5;
            without it the embedded houses are drawn.
        name: of the store.
        batch: most pictures encoded at once.
        device: where the encoder runs: cpu, cuda, cuda:1, mps.
        out: folder for the store; features/ of the data folder (or of its cache) when not given.
        json: print one JSON object instead of text.
    """
    from scenemem.commands.data import show_stores  # here, because --help needs none of it
    from scenemem.features.images import build_image_features, open_encoder
    from scenemem.features.pictures import DrawnHouses, PictureFiles

    opened = DataFolder(data)
    folder = out or opened.derived / "features"
    pictures = DrawnHouses(opened) if images is None else PictureFiles(images)
    chosen = open_encoder(encoder, device)
    with progress_bar("encoding viewpoints") as progress:
        info = build_image_features(
            opened, folder / f"{name}.npy", pictures, chosen, batch=batch, progress=progress
        )
    show_stores({name: info}, folder, json)
