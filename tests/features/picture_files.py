"""Pictures of viewpoints written into a folder, as ``scenemem data images`` reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scenemem.features.pictures import Camera, Pictures


def write_views(pictures: Pictures, cameras: Sequence[Camera], target: Path, ending: str = ".jpg") -> None:
    """Write the views of viewpoints as ``<target>/<scan>/<viewpoint>/<0-35><ending>``."""
    for camera in cameras:
        folder = target / camera.scan / camera.viewpoint
        folder.mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(pictures.views(camera)):
            picture.save(folder / f"{number}{ending}")
