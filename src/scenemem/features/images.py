"""View features from pictures: files of views, skyboxes or drawn houses, encoded and kept after a kill.

Shape letters: N pictures, D columns, H and W the height and width of a picture, S the side of a skybox face.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import StrPath
from scenemem.formats.connectivity import connectivity_files, read_scan
from scenemem.formats.features import VIEWS, FeatureRow, StoreInfo, stream_store
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import read_plan
from scenemem.houses.house import House
from scenemem.houses.pictures import draw_rays
from scenemem.registry import Registry
from scenemem.world.build import Progress
from scenemem.world.graph import HEADINGS, STEP

FloatArray = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

VIEW_SIZE = (640, 480)
"""Width and height of a view resampled from a skybox, pixels."""

FIELD_OF_VIEW = math.pi / 3
"""Vertical field of view of a view, radians."""

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

_FACE_OF_AXIS = np.array(
    [[2, 4], [0, 5], [1, 3]]
)  # [axis a direction is nearest to, whether it points along]
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

    def view(self, number: int) -> str:
        """A view of it, as messages name it."""
        return f"scan {self.scan}, viewpoint {self.viewpoint}, view {number}"


class Pictures(Protocol):
    """Where the pictures of viewpoints come from."""

    @property
    def description(self) -> str:
        """What is written into a store as its source."""

    def check(self, camera: Camera) -> None:
        """Refuse a viewpoint that lacks a picture, without reading any.

        Raises:
            DataError: a picture is missing; it is named.
        """

    def views(self, camera: Camera) -> list[Image.Image]:
        """The 36 pictures of a viewpoint: number ``heading_step + 12 * elevation_row``, row 0 looks down.

        Raises:
            DataError: a picture is missing or cannot be read; it is named.
        """


class Encoder(Protocol):
    """Turns pictures into rows of numbers."""

    @property
    def name(self) -> str:
        """What is written into a store as its encoder: name, revision and checksum of the weights."""

    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Pictures of any size  ->  (N, D) float32, on the CPU; no row depends on the other pictures."""


def read_cameras(data: DataFolder) -> list[Camera]:
    """The viewpoints of the world of a data folder, in its order.

    Raises:
        DataError: a connectivity file is missing or broken.
    """
    return [
        Camera(scan.name, entry.image_id, np.array(entry.pose).reshape(4, 4)[:3, :3])
        for scan in map(read_scan, connectivity_files(data.connectivity))
        for entry in scan.viewpoints
        if entry.included
    ]


# Pictures


class PictureFiles:
    """Pictures in a folder: 36 views or a skybox per viewpoint.

    Looked for, with the ending .jpg, .jpeg or .png:
    ``<scan>/<viewpoint>/<0-35>.jpg``; ``<scan>/<viewpoint>_skybox<0-5>_sami.jpg`` or ``..._small.jpg``;
    ``<scan>/<viewpoint>_skybox_small.jpg``, six faces side by side. Skyboxes may also lie in
    ``<scan>/matterport_skybox_images/``.

    Args:
        root: the folder.
        size: width and height of the views resampled from skyboxes, pixels.

    Raises:
        DataError: there is no such folder.
    """

    def __init__(self, root: StrPath, size: tuple[int, int] = VIEW_SIZE) -> None:
        self.root = Path(root)
        self._size = size
        if not self.root.is_dir():
            raise DataError(self.root, "no such folder; --images expects one with a folder per scan")

    @property
    def description(self) -> str:
        """The name of the folder."""
        return f"pictures in {self.root.resolve().name}"

    def check(self, camera: Camera) -> None:
        """Refuse a viewpoint that lacks a picture."""
        self._files(camera)

    def views(self, camera: Camera) -> list[Image.Image]:
        """The 36 pictures of a viewpoint."""
        files = self._files(camera)
        if len(files) == VIEWS:
            return [read_picture(file, camera.view(number)) for number, file in enumerate(files)]
        place = f"scan {camera.scan}, viewpoint {camera.viewpoint}"
        faces = [np.asarray(read_picture(file, place)) for file in files]
        if len(faces) == 1:
            faces = np.split(faces[0], range(faces[0].shape[0], faces[0].shape[1], faces[0].shape[0]), axis=1)
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
                found = [file for stem in stems if (file := _picture_named(stem)) is not None]
                if len(found) == len(FACES):
                    return found
                if found and strip is None:
                    lost = next(n for n, stem in enumerate(stems) if _picture_named(stem) is None)
                    record = f"scan {camera.scan}, viewpoint {camera.viewpoint}, skybox face {lost}"
                    raise DataError(
                        place, f"no '{stems[lost].name}.jpg' beside the other faces", record=record
                    )
            if strip is not None:
                return [strip]
        raise DataError(
            self.root,
            "no pictures of this viewpoint of the world; expected "
            f"{camera.scan}/{camera.viewpoint}/<0-35>.jpg or "
            f"{camera.scan}/{camera.viewpoint}_skybox<0-5>_sami.jpg; "
            "add them, or leave the scan out of the connectivity files",
            record=f"scan {camera.scan}, viewpoint {camera.viewpoint}",
        )


class DrawnHouses:
    """Pictures of the embedded houses, drawn from their plans when they are asked for.

    Args:
        data: a data folder that ``scenemem data houses`` built.

    Raises:
        UserError: the folder has no plans.
    """

    def __init__(self, data: DataFolder) -> None:
        self._data = data
        if not (data.root / "plans").is_dir():
            raise UserError(
                f"{data.root}: has no plans of houses to draw; name a folder of pictures with --images"
            )

    @property
    def description(self) -> str:
        """Where the drawings come from."""
        return "drawings of the embedded houses"

    def check(self, camera: Camera) -> None:
        """Refuse a viewpoint that is not on a plan."""
        self._stand(camera)

    def views(self, camera: Camera) -> list[Image.Image]:
        """The 36 pictures of a viewpoint, 64 x 48."""
        house, stand = self._stand(camera)
        edge = (np.arange(2 * _HOUSE_FACE) + 0.5) / _HOUSE_FACE - 1  # two rays per pixel and direction
        drawn = []
        for right, down, away in FACES:
            rays = edge[None, :, None] * right + edge[:, None, None] * down + away
            drawn.append(np.asarray(draw_rays(house, stand, rays @ _FACING_NORTH.T)))
        return resample_views(np.stack(drawn), _FACING_NORTH, _HOUSE_VIEW)

    def _stand(self, camera: Camera) -> tuple[House, int]:
        house = _plan(self._data.root, camera.scan)
        numbers = {stand.viewpoint: number for number, stand in enumerate(house.stands)}
        if camera.viewpoint not in numbers:
            record = f"scan {camera.scan}, viewpoint {camera.viewpoint}"
            raise DataError(self._data.root / "plans", "no such viewpoint on the plan", record=record)
        return house, numbers[camera.viewpoint]


@lru_cache(maxsize=2)  # the viewpoints of a house follow each other
def _plan(root: Path, scan: str) -> House:
    return read_plan(root, scan)


def read_picture(file: Path, place: str) -> Image.Image:
    """A picture in RGB; ``place`` names it in errors.

    Raises:
        DataError: the file is missing, is no picture or is cut off.
    """
    try:
        with Image.open(file) as picture:
            return picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = f"not a readable picture ({error}); is the file complete?"
        raise DataError(file, reason, record=place) from error


def write_views(pictures: Pictures, cameras: Sequence[Camera], target: StrPath, ending: str = ".jpg") -> None:
    """Write the views of viewpoints as ``<target>/<scan>/<viewpoint>/<0-35><ending>``."""
    for camera in cameras:
        folder = Path(target) / camera.scan / camera.viewpoint
        folder.mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(pictures.views(camera)):
            picture.save(folder / f"{number}{ending}")


def resample_views(
    faces: Pixels, rotation: FloatArray, size: tuple[int, int] = VIEW_SIZE
) -> list[Image.Image]:
    """The 36 views of a skybox, as pinhole cameras with a vertical field of view of 60 degrees take them.

    Args:
        faces: (6, S, S, 3) in the order and orientation of ``FACES``.
        rotation: (3, 3) from the frame of the skybox to the world's.
        size: width and height of the views, pixels.
    """
    # a pixel as one number: gathering these is four times as fast as gathering rows of three
    packed = np.pad(faces, ((0, 0), (0, 0), (0, 0), (0, 1))).view(np.uint32).reshape(len(faces), -1)
    return [Image.fromarray(_resampled(packed, view_axes(view) @ rotation, size)) for view in range(VIEWS)]


def view_axes(view: int) -> FloatArray:
    """Which way the picture of a view runs to the right, downwards and away from the camera, one per row.

    ->  (3, 3) in the world's frame: east, north, up
    """
    heading, elevation = view % HEADINGS * STEP, (view // HEADINGS - 1) * STEP
    sine, cosine = math.sin(heading), math.cos(heading)
    rise, level = math.sin(elevation), math.cos(elevation)
    return np.array(
        [
            [cosine, -sine, 0.0],
            [rise * sine, rise * cosine, -level],
            [level * sine, level * cosine, rise],
        ]
    )


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
        if file.suffix.lower() not in _ENDINGS or not file.stem.isdecimal():
            continue
        number = int(file.stem)
        if number in files:
            reason = f"there are '{files[number].name}' and '{file.name}', expected one picture; remove one"
            raise DataError(folder, reason, record=camera.view(number))
        files[number] = file
    missing = next((number for number in range(VIEWS) if number not in files), None)
    if missing is not None:
        reason = f"no '{missing}.jpg' or '{missing}.png', expected {VIEWS} pictures, 0 to {VIEWS - 1}"
        raise DataError(folder, reason, record=camera.view(missing))
    return [files[number] for number in range(VIEWS)]


def _picture_named(stem: Path) -> Path | None:
    files = (stem.with_name(stem.name + ending) for ending in _ENDINGS)
    return next((file for file in files if file.is_file()), None)


# Encoders


class HousesSmall:
    """Colours and edges of a picture, counted: small, fixed and quick, made for the embedded houses.

    The picture is averaged to 64 x 48. Columns: square roots of the shares of 4 x 4 x 4 colours in the left,
    middle and right third (192); mean colour (36) and strength of edges in four directions (48) of 4 x 3
    cells.
    """

    name = "houses-small 1: shares of colours by third, mean colours and edges by cell"

    _SIZE = (48, 64)
    _CELLS = (3, 4)
    _LEVELS = 4  # of a colour channel
    _DIRECTIONS = 4  # of edges

    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Pictures of any size  ->  (N, 276)"""
        return torch.stack([self._row(picture) for picture in pictures])

    def _row(self, picture: Image.Image) -> Tensor:
        pixels = torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).double() / 255
        small = functional.adaptive_avg_pool2d(pixels, self._SIZE)  # (3, 48, 64)
        level = (small * self._LEVELS).long().clamp_max(self._LEVELS - 1)
        colour = (level[0] * self._LEVELS + level[1]) * self._LEVELS + level[2]
        thirds = torch.tensor_split(colour, 3, dim=1)
        shares = [
            torch.bincount(third.flatten(), minlength=self._LEVELS**3) / third.numel() for third in thirds
        ]
        grey = functional.pad(small.mean(dim=0)[None], (1, 1, 1, 1), mode="replicate")[0]
        right, down = grey[1:-1, 2:] - grey[1:-1, :-2], grey[2:, 1:-1] - grey[:-2, 1:-1]
        turn = torch.atan2(down, right) / math.pi * self._DIRECTIONS  # an edge has no sign
        direction = turn.round().long() % self._DIRECTIONS
        edges = functional.one_hot(direction, self._DIRECTIONS).permute(2, 0, 1) * torch.hypot(right, down)
        cells = functional.adaptive_avg_pool2d(torch.cat([small, edges]), self._CELLS)
        return torch.cat([torch.cat(shares).sqrt(), cells.flatten()]).float()


class TransformersEncoder:
    """A vision network of the ``transformers`` library: ResNet, ViT, CLIP, SigLIP, DINOv2 and the like.

    A view becomes the image embedding (CLIP, SigLIP), the class token of the last layer (ViT, DINOv2) or the
    pooled output (ResNet).

    Args:
        name: of the model on the hub, or its folder.
        device: where the network runs.

    Raises:
        UserError: transformers is not installed, the model cannot be loaded or lacks weights.
    """

    def __init__(self, name: str, device: str = "cpu") -> None:
        try:
            import transformers
        except ImportError as error:
            raise UserError(
                f"encoder '{name}' is not built in ({', '.join(ENCODERS)}), and others need transformers, "
                "which is not installed; run: pip install 'scenemem[images]'"
            ) from error
        with _quiet(transformers), _loading(name):
            self._processor = transformers.AutoImageProcessor.from_pretrained(name)
            model, report = transformers.AutoModel.from_pretrained(name, output_loading_info=True)
            self._model = model.float().eval().to(device)
        self._device = device
        self._take, self._output = self._find_output(name)
        needed = [key for key in report["missing_keys"] if "pooler" not in key or "pooled" in self._output]
        if needed or report["mismatched_keys"]:
            lost = sorted(map(str, needed or report["mismatched_keys"]))
            raise UserError(
                f"encoder '{name}': {len(lost)} weights are missing, first '{lost[0]}'; use complete weights"
            )
        revision = getattr(model.config, "_commit_hash", None)
        called = Path(name).resolve().name if Path(name).exists() else name
        called += f"@{revision}" if revision else ""
        self.name = f"{called}, {self._output} of {type(model).__name__}, sha256 {self._digest()}"

    @torch.inference_mode()
    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Pictures of any size  ->  (N, D)"""
        pixels = self._processor(images=list(pictures), return_tensors="pt")["pixel_values"]
        return self._take(pixels.to(self._device)).float().cpu()

    def _find_output(self, name: str) -> tuple[Callable[[Tensor], Tensor], str]:
        model = self._model
        if hasattr(model, "get_image_features"):

            def embedded(pixels: Tensor) -> Tensor:
                output = model.get_image_features(pixel_values=pixels)
                return (
                    output if isinstance(output, Tensor) else output.pooler_output
                )  # a record since version 5

            return embedded, "image embedding"
        if any(key.endswith("cls_token") for key, _ in model.named_parameters()):
            return lambda pixels: model(pixel_values=pixels).last_hidden_state[:, 0], "class token"

        def pooled(pixels: Tensor) -> Tensor:
            output = getattr(model(pixel_values=pixels), "pooler_output", None)
            if output is None:
                raise UserError(
                    f"encoder '{name}': {type(model).__name__} gives one picture no single row of numbers; "
                    "choose a network with a class token, a pooled output or an image embedding"
                )
            return torch.as_tensor(output).flatten(1)

        return pooled, "pooled output"

    def _digest(self) -> str:
        """Of all weights and of the preparation of pictures: either changes the features."""
        digest = hashlib.sha256(json.dumps(self._processor.to_dict(), sort_keys=True, default=str).encode())
        for key, value in sorted(self._model.state_dict().items()):
            digest.update(f"{key} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


ENCODERS: Registry[Callable[[str], Encoder]] = Registry("encoder", {"houses-small": lambda _: HousesSmall()})
"""Built-in encoders by name; each is made for a device. Plugins may add to them."""


def open_encoder(name: str, device: str = "cpu") -> Encoder:
    """A built-in encoder, else the transformers model of that hub name or folder, on a device.

    Raises:
        UserError: there is no such encoder or device.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device '{device}' cannot be used ({str(error).splitlines()[0]}); try cpu"
        ) from error
    built_in = ENCODERS.get(name, None)
    return TransformersEncoder(name, device) if built_in is None else built_in(device)


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Say what an encoder may be when one cannot be loaded."""
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"encoder '{name}' is neither built in ({', '.join(ENCODERS)}) nor a model that transformers can "
            f"load ({reason}); expected the name of a model on the hub or a folder with config.json, "
            "preprocessor_config.json and the weights"
        ) from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without transformers' own progress bars and reports, which ours and the errors replace."""
    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


# Stores


def build_image_features(
    data: DataFolder,
    target: StrPath,
    pictures: Pictures,
    encoder: Encoder,
    *,
    batch: int = VIEWS,
    progress: Progress | None = None,
) -> StoreInfo:
    """Encode the pictures of all viewpoints of a data folder into the store ``target``.

    Finished viewpoints are kept in two hidden files beside it, so that the same call goes on after a kill;
    the store has the same bytes as without one. It appears complete or not at all.

    Args:
        data: the folder whose viewpoints are encoded.
        target: the ``.npy`` file to write.
        pictures: of every viewpoint.
        encoder: turns pictures into columns.
        batch: most pictures encoded at once; of several viewpoints when it is 72 or more.
        progress: called with (viewpoints done, in all).

    Raises:
        DataError: a picture is missing or broken, or a feature is not a finite number.
        UserError: viewpoints were finished with other settings, another process is at work, or the place
            cannot be written.
    """
    if batch < 1:
        raise UserError(f"batch must be 1 or more, got {batch}")
    cameras = read_cameras(data)
    for camera in cameras:  # before hours of work, not after
        pictures.check(camera)
    settings = _Settings(encoder.name, pictures.description, batch)
    files = _unfinished_files(target)

    def rows() -> Iterator[FeatureRow]:
        # opened in here, where ``stream_store`` has made the folder and words what the system refuses
        with _Unfinished(files, settings, cameras) as unfinished:
            for done, row in enumerate(_encoded(cameras, pictures, encoder, batch, unfinished), start=1):
                yield row
                unfinished.append(done, row)  # only what the store has taken
                if progress is not None:
                    progress(done, len(cameras))

    source = f"{pictures.description}, {len(cameras)} viewpoints"
    # stores say their track where their record has a place for it
    track: dict[str, Any] = {"track": "images"} if "track" in StoreInfo.__struct_fields__ else {}
    info = stream_store(target, rows(), origin=target, source=source, encoder=encoder.name, **track)
    for file in files:
        file.unlink(missing_ok=True)
    return info


def _encoded(
    cameras: Sequence[Camera], pictures: Pictures, encoder: Encoder, batch: int, unfinished: _Unfinished
) -> Iterator[FeatureRow]:
    """The rows of all viewpoints; those finished earlier are read.

    Batches begin at the same viewpoints however often the work was interrupted, because a batch of another
    size may change a last bit.
    """
    together = max(1, batch // VIEWS)  # viewpoints
    kept = unfinished.finished // together * together
    unfinished.keep(kept)
    for camera, values in zip(cameras, unfinished.rows(), strict=False):
        yield FeatureRow(camera.key, values, camera.key)
    for start in range(kept, len(cameras), together):
        group = cameras[start : start + together]
        views = [picture for camera in group for picture in pictures.views(camera)]
        chunks = range(0, len(views), batch)
        encoded = torch.cat([encoder.encode(views[first : first + batch]) for first in chunks])
        for camera, values in zip(group, encoded.view(len(group), VIEWS, -1), strict=True):
            yield FeatureRow(camera.key, values.numpy(), camera.key)


class _Settings(msgspec.Struct, frozen=True):
    """What finished viewpoints were encoded with; the first line of their list."""

    encoder: str
    pictures: str
    batch: int


class _Finished(msgspec.Struct, frozen=True, array_like=True):
    """A finished viewpoint: a further line of the list."""

    key: str
    width: int  # columns
    checksum: int  # CRC-32 of its float16 values


def _unfinished_files(target: StrPath) -> tuple[Path, Path]:
    """The values of finished viewpoints, and the list of them."""
    target = Path(target)
    return target.with_name(f".{target.name}.rows"), target.with_name(f".{target.name}.finished")


class _Unfinished:
    """The viewpoints of a store that earlier, killed runs have finished; a context manager.

    Values are written first and listed after, so that a viewpoint that is listed with a checksum that fits
    is complete. What follows the first that does not fit is dropped.

    Raises:
        UserError: another process works on the same store, or the viewpoints were made with other settings.
    """

    def __init__(self, files: tuple[Path, Path], settings: _Settings, cameras: Sequence[Camera]) -> None:
        self.finished = 0  # viewpoints
        self._files = files
        self._settings = settings
        self._keys = [camera.key for camera in cameras]
        self._row = 0  # bytes of a viewpoint
        self._ends: list[int] = []  # where the line of each viewpoint ends

    def __enter__(self) -> _Unfinished:
        with ExitStack() as opened:
            for file in self._files:
                file.touch()
            self._values, self._listed = (opened.enter_context(file.open("r+b")) for file in self._files)
            self._lock()
            self._check()
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def keep(self, count: int) -> None:
        """Forget all but the first viewpoints."""
        self.finished = count
        for stream, end in ((self._values, count * self._row), (self._listed, self._ends[count])):
            stream.seek(end)
            stream.truncate()

    def rows(self) -> Iterator[npt.NDArray[np.float16]]:
        """The values of the finished viewpoints, (36, D) each; the next one is appended after reading all."""
        self._values.seek(0)
        for _ in range(self.finished):
            yield np.frombuffer(self._values.read(self._row), dtype=np.float16).reshape(VIEWS, -1)

    def append(self, done: int, row: FeatureRow) -> None:
        """Keep a viewpoint, the number ``done`` of the store, unless it was kept earlier."""
        if done <= self.finished:
            return
        content = row.values.astype(np.float16).tobytes()
        self._values.write(content)
        self._values.flush()
        line = _Finished(row.key, row.values.shape[1], zlib.crc32(content))
        self._listed.write(msgspec.json.encode(line) + b"\n")
        self._listed.flush()
        self.finished = done

    def _lock(self) -> None:
        with suppress(ImportError):  # systems without it go without
            import fcntl

            try:
                fcntl.flock(self._listed, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"{self._files[1]}: another process is building this store; "
                    "wait for it or choose another --name"
                ) from error

    def _check(self) -> None:
        """Count the viewpoints that are complete, or begin the list."""
        first = self._listed.readline()
        try:
            settings = msgspec.json.decode(first, type=_Settings)
        except msgspec.DecodeError:  # new, or cut off
            self._listed.seek(0)
            self._listed.write(msgspec.json.encode(self._settings) + b"\n")
            self._ends = [self._listed.tell()]
            return
        for name in _Settings.__struct_fields__:
            seen, wanted = getattr(settings, name), getattr(self._settings, name)
            if seen != wanted:
                raise UserError(
                    f"{self._files[1]}: the viewpoints finished so far were made with {name} {seen!r}, now "
                    f"it is {wanted!r}; use the same, choose another --name or delete this file to start over"
                )
        self._ends = [self._listed.tell()]
        for key, line in zip(self._keys, self._listed, strict=False):
            try:
                entry = msgspec.json.decode(line, type=_Finished)
            except msgspec.DecodeError:
                break
            self._row = self._row or VIEWS * entry.width * 2
            content = self._values.read(self._row)
            if (entry.key, VIEWS * entry.width * 2, len(content)) != (key, self._row, self._row):
                break
            if zlib.crc32(content) != entry.checksum:
                break
            self._ends.append(self._ends[-1] + len(line))
        self.finished = len(self._ends) - 1
