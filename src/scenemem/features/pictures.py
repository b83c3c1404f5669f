"""Pictures of viewpoints: files of views, skyboxes resampled to views, and drawn houses.

Shape letters: H and W the height and width of a picture, S the side of a skybox face.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath
from scenemem.formats.connectivity import connectivity_files, read_scan
from scenemem.formats.decoding import library_errors
from scenemem.formats.features import VIEWS
from scenemem.formats.folder import DataFolder
from scenemem.houses.house import House, read_plan
from scenemem.houses.pictures import draw_rays
from scenemem.world.graph import HEADINGS, STEP, scan_mask

FloatArray = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

VIEW_SIZE = (640, 480)  # width and height of a view resampled from a skybox, pixels
MOST_PIXELS = 1 << 25  # of a picture; the six faces of a full skybox side by side have 25 million
FIELD_OF_VIEW = math.pi / 3  # of a view, vertically, radians

FACES = np.array(
    [
        [[-1, 0, 0], [0, 0, -1], [0, -1, 0]],  # 0: above
        [[-1, 0, 0], [0, 1, 0], [0, 0, -1]],  # 1: behind
        [[0, 0, 1], [0, 1, 0], [-1, 0, 0]],  # 2: on the left
        [[1, 0, 0], [0, 1, 0], [0, 0, 1]],  # 3: ahead
        [[0, 0, -1], [0, 1, 0], [1, 0, 0]],  # 4: on the right
        [[-1, 0, 0], [0, 0, 1], [0, 1, 0]],  # 5: below
    ],
    dtype=np.float64,
)
"""(6, 3, 3) per skybox face: which way its picture runs to the right, downwards and away from the camera.

In the frame of the pose of the connectivity file, which faces image 3: x to the right, y down, z ahead. The
Matterport3D simulator renders the same files in this frame.
"""

_ENDINGS = (".jpg", ".jpeg", ".png")
_SKYBOX_KINDS = ("sami", "small")
_SKYBOX_FOLDER = "matterport_skybox_images"  # inside the folder of a scan, as Matterport3D ships it
_HOUSE_FACE = 64  # side of the faces drawn of a house, pixels
_HOUSE_VIEW = (64, 48)
# the frame of a pose that faces north, as columns: x is east, y is down, z is north
_FACING_NORTH = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])


@dataclass(frozen=True, eq=False)
class Camera:
    """A viewpoint pictures are taken from."""

    scan: str
    viewpoint: str
    rotation: FloatArray  # (3, 3) from the frame of its skybox to the world's: east, north, up

    @property
    def key(self) -> str:
        """Its name in a store."""
        return f"{self.scan}_{self.viewpoint}"

    @property
    def place(self) -> str:
        """As messages name it."""
        return f"scan {self.scan}, viewpoint {self.viewpoint}"


class Pictures(Protocol):
    """Where the pictures of viewpoints come from; both methods name what is missing in a ``DataError``."""

    description: str  # what is written into a store as its source

    def check(self, camera: Camera) -> None:
        """Refuse a viewpoint that lacks a picture, without reading any."""

    def views(self, camera: Camera) -> list[Image.Image]:
        """The 36 pictures of a viewpoint: number ``heading_step + 12 * elevation_row``, row 0 looks down."""


def read_cameras(data: DataFolder, scans: Collection[str] = ()) -> list[Camera]:
    """The viewpoints of the world of a data folder, in its order; of some scans only where any are named."""
    found = [read_scan(file) for file in connectivity_files(data.connectivity)]
    names = [scan.name for scan in found]
    return [
        Camera(scan.name, entry.image_id, np.array(entry.pose).reshape(4, 4)[:3, :3])
        for scan, wanted in zip(found, scan_mask(names, scans or names).tolist(), strict=True)
        for entry in scan.viewpoints
        if wanted and entry.included
    ]


class PictureFiles:
    """Pictures in a folder: 36 views or a skybox per viewpoint.

    Looked for, with the ending .jpg, .jpeg or .png:
    ``<scan>/<viewpoint>/<0-35>.jpg``; ``<scan>/<viewpoint>_skybox<0-5>_sami.jpg`` or ``..._small.jpg``;
    ``<scan>/<viewpoint>_skybox_small.jpg``, six faces side by side. Skyboxes may also lie in
    ``<scan>/matterport_skybox_images/``.

    ``size`` is width and height of the views resampled from skyboxes, pixels.
    """

    def __init__(self, root: StrPath, size: tuple[int, int] = VIEW_SIZE) -> None:
        self.root = Path(root)
        self._size = size
        if not self.root.is_dir():
            raise DataError(self.root, "no such folder; `images` expects one with a folder per scan")
        self.description = f"pictures in {self.root.resolve().name}"

    def check(self, camera: Camera) -> None:
        """Refuse a viewpoint that lacks a picture."""
        self._files(camera)

    def views(self, camera: Camera) -> list[Image.Image]:
        """The 36 pictures of a viewpoint."""
        files, place = self._files(camera), camera.place
        if len(files) == VIEWS:
            return [read_picture(file, f"{place}, view {number}") for number, file in enumerate(files)]
        faces = [np.asarray(read_picture(file, place)) for file in files]
        if len(faces) == 1:
            side, width = faces[0].shape[:2]
            faces = np.split(faces[0], range(side, width, side), axis=1)
        shapes = {face.shape for face in faces}
        if len(faces) != len(FACES) or len(shapes) > 1 or faces[0].shape[0] != faces[0].shape[1]:
            seen = f"{len(faces)} faces of {' and '.join(f'{w} x {h}' for h, w, _ in sorted(shapes))} pixels"
            raise DataError(files[0], f"a skybox of {seen}, expected 6 equal squares", record=place)
        return resample_views(np.stack(faces), camera.rotation, self._size)

    def _files(self, camera: Camera) -> list[Path]:
        """36 views, 6 faces, or one file with 6 faces."""
        folder = self.root / camera.scan / camera.viewpoint
        if folder.is_dir():
            return _view_files(folder, camera)
        for place in (folder.parent, folder.parent / _SKYBOX_FOLDER):
            strip = _picture_named(place / f"{camera.viewpoint}_skybox_small")
            for kind in _SKYBOX_KINDS:
                stems = [place / f"{camera.viewpoint}_skybox{number}_{kind}" for number in range(len(FACES))]
                found = {stem: file for stem in stems if (file := _picture_named(stem)) is not None}
                if len(found) == len(FACES):
                    return list(found.values())
                if found and strip is None:
                    lost = next(number for number, stem in enumerate(stems) if stem not in found)
                    reason = f"no '{stems[lost].name}.jpg' beside the other faces"
                    raise DataError(place, reason, record=f"{camera.place}, skybox face {lost}")
            if strip is not None:
                return [strip]
        views = f"{camera.scan}/{camera.viewpoint}/<0-35>.jpg"
        faces = f"{camera.scan}/{camera.viewpoint}_skybox<0-5>_sami.jpg"
        reason = f"no pictures of this viewpoint of the world; expected {views} or {faces}"
        advice = "add them, or leave the scan out of the connectivity files"
        raise DataError(self.root, f"{reason}; {advice}", record=camera.place)


class DrawnHouses:
    """Pictures of the embedded houses, 64 x 48, drawn from the plans that ``scenemem data houses`` made."""

    description = "drawings of the embedded houses"

    def __init__(self, data: DataFolder) -> None:
        self._plans = data.root / "plans"
        if not self._plans.is_dir():
            advice = "name a folder of pictures with `images`"
            raise UserError(f"{data.root}: has no plans of houses to draw; {advice}")
        # two plans, because the viewpoints of a house follow each other
        self._plan = lru_cache(maxsize=2)(partial(read_plan, data.root))

    def check(self, camera: Camera) -> None:
        """Refuse a viewpoint that is not on a plan."""
        self._stand(camera)

    def views(self, camera: Camera) -> list[Image.Image]:
        """The 36 pictures of a viewpoint."""
        house, stand = self._stand(camera)
        edge = (np.arange(2 * _HOUSE_FACE) + 0.5) / _HOUSE_FACE - 1  # two rays per pixel and direction
        drawn = []
        for right, down, away in FACES:
            rays = edge[None, :, None] * right + edge[:, None, None] * down + away
            drawn.append(np.asarray(draw_rays(house, stand, rays @ _FACING_NORTH.T)))
        return resample_views(np.stack(drawn), _FACING_NORTH, _HOUSE_VIEW)

    def _stand(self, camera: Camera) -> tuple[House, int]:
        house = self._plan(camera.scan)
        names = [stand.viewpoint for stand in house.stands]
        if camera.viewpoint not in names:
            raise DataError(self._plans, "no such viewpoint on the plan", record=camera.place)
        return house, names.index(camera.viewpoint)


def read_picture(file: Path, place: str) -> Image.Image:
    """A picture in RGB; ``place`` names it in errors.

    Raises:
        DataError: the file is missing, is no picture or is cut off.
    """
    with library_errors(file, "not a readable picture", place), Image.open(file) as picture:
        if math.prod(picture.size) > MOST_PIXELS:
            raise ValueError(f"it has {picture.size[0]} x {picture.size[1]} pixels")
        return picture.convert("RGB")


def resample_views(
    faces: Pixels, rotation: FloatArray, size: tuple[int, int] = VIEW_SIZE
) -> list[Image.Image]:
    """The 36 views of a skybox, as pinhole cameras with a vertical field of view of 60 degrees take them.

    faces: (6, S, S, 3) as in ``FACES``  rotation: (3, 3) from the frame of the skybox to the world's
    """
    # a pixel as one number: gathering these is four times as fast as gathering rows of three
    packed = np.pad(faces, ((0, 0), (0, 0), (0, 0), (0, 1))).view(np.uint32).reshape(len(faces), -1)
    return [Image.fromarray(_resampled(packed, view_axes(view) @ rotation, size)) for view in range(VIEWS)]


def view_axes(view: int) -> FloatArray:
    """Right, down and away from the camera in the picture of a view (3, 3), in the frame east, north, up."""
    heading, elevation = view % HEADINGS * STEP, (view // HEADINGS - 1) * STEP
    sine, cosine = math.sin(heading), math.cos(heading)
    rise, level = math.sin(elevation), math.cos(elevation)
    right, down = (cosine, -sine, 0.0), (rise * sine, rise * cosine, -level)
    return np.array([right, down, (level * sine, level * cosine, rise)])


def _resampled(faces: npt.NDArray[np.uint32], axes: FloatArray, size: tuple[int, int]) -> Pixels:
    """One view of a skybox, interpolated within each face.

    faces: (6, S * S) pixels  axes: (3, 3) right, down, away in the frame of the skybox  ->  (H, W, 3)
    """
    width, height = size
    side = math.isqrt(faces.shape[1])
    scale = 2 * math.tan(FIELD_OF_VIEW / 2) / height
    x = ((np.arange(width) + 0.5 - width / 2) * scale).astype(np.float32)
    y = ((np.arange(height) + 0.5 - height / 2) * scale).astype(np.float32)[:, None]
    view = np.zeros((height * width, 4), dtype=np.uint8)
    for pixels, face in zip(faces, FACES, strict=True):
        turned = (axes @ face.T).astype(np.float32)  # the axes of the view in the frame of the face
        right, down, away = (((y * v + w) + x * u).ravel() for u, v, w in turned.T)
        edge = away * np.float32(1 + 1e-5)  # a pixel on the edge of two faces must not fall between them
        seen = np.flatnonzero((away > 0) & (np.abs(right) <= edge) & (np.abs(down) <= edge))
        if not len(seen):
            continue
        column = ((right[seen] / away[seen] + 1) * (side / 2) - 0.5).clip(0, side - 1)
        row = ((down[seen] / away[seen] + 1) * (side / 2) - 0.5).clip(0, side - 1)
        left, top = column.astype(np.int32), row.astype(np.int32)
        across, below = (column - left)[:, None], (row - top)[:, None]
        beside = (left < side - 1).astype(np.int32)  # 0 at the last column, which has nothing beside it
        corner = top * side + left
        under = corner + (top < side - 1) * side
        mixed = [
            _unpacked(pixels, line) * (1 - across) + _unpacked(pixels, line + beside) * across
            for line in (corner, under)
        ]
        view[seen] = mixed[0] * (1 - below) + mixed[1] * below + np.float32(0.5)
    return view[:, :3].reshape(height, width, 3)


def _unpacked(pixels: npt.NDArray[np.uint32], index: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """pixels: (P,)  index: (N,)  ->  (N, 4)"""
    return pixels.take(index).view(np.uint8).reshape(-1, 4).astype(np.float32)


def _view_files(folder: Path, camera: Camera) -> list[Path]:
    files: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in _ENDINGS and file.stem.isdecimal():
            known = files.setdefault(int(file.stem), file)
            if known is not file:
                reason = f"there are '{known.name}' and '{file.name}', expected one picture; remove one"
                raise DataError(folder, reason, record=f"{camera.place}, view {int(file.stem)}")
    for number in range(VIEWS):
        if number not in files:
            reason = f"no '{number}.jpg' or '{number}.png', expected {VIEWS} pictures, 0 to {VIEWS - 1}"
            raise DataError(folder, reason, record=f"{camera.place}, view {number}")
    return [files[number] for number in range(VIEWS)]


def _picture_named(stem: Path) -> Path | None:
    files = (stem.with_name(stem.name + ending) for ending in _ENDINGS)
    return next((file for file in files if file.is_file()), None)
