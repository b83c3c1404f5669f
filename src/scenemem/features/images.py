"""View features from pictures: image encoders, and stores whose building goes on after a kill.

Shape letters: N pictures, D columns.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from scenemem.errors import UserError
from scenemem.features.pictures import Camera, Pictures, read_cameras
from scenemem.features.tracks import IMAGES
from scenemem.formats.atomic import StrPath
from scenemem.formats.features import VIEWS, FeatureRow, StoreInfo, stream_store
from scenemem.formats.folder import DataFolder
from scenemem.registry import Registry
from scenemem.world.build import Progress

_ROW = struct.Struct("<II")  # before the values of a finished viewpoint: their bytes, and their CRC-32


class Encoder(Protocol):
    """Turns pictures into rows of numbers."""

    @property
    def name(self) -> str:
        """What is written into a store as its encoder: name, revision and checksum of the weights."""

    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Pictures of any size  ->  (N, D) float32, on the CPU; no row depends on the other pictures."""


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
        digest = self._digest(report["missing_keys"])
        self.name = f"{called}, {self._output} of {type(model).__name__}, sha256 {digest}"

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
                )  # the latter from 5.0 on

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

    def _digest(self, unused: Collection[str]) -> str:
        """Of the weights that came with the model and of the preparation of pictures, which both matter."""
        digest = hashlib.sha256(json.dumps(self._processor.to_dict(), sort_keys=True, default=str).encode())
        for key, value in sorted(self._model.state_dict().items()):
            if key in unused:  # a pooler drawn at random
                continue
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

    Finished viewpoints are kept in a hidden file beside it, so that the same call goes on after a kill;
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
    told = f"encoder {encoder.name!r}, pictures {pictures.description!r} and batch {batch}"
    file = Path(target).with_name(f".{Path(target).name}.unfinished")

    def rows() -> Iterator[FeatureRow]:
        # opened in here, where ``stream_store`` has made the folder and words what the system refuses
        with _opened_alone(file) as stream:
            kept = _finished(stream, told, [camera.key for camera in cameras], file)
            for done, row in enumerate(_encoded(cameras, pictures, encoder, batch, stream, kept), start=1):
                yield row
                if done > len(kept):  # only what the store has taken
                    content = row.values.astype(np.float16).tobytes()
                    stream.write(_ROW.pack(len(content), zlib.crc32(content)) + content)
                    stream.flush()
                if progress is not None:
                    progress(done, len(cameras))

    source = f"{pictures.description}, {len(cameras)} viewpoints"
    info = stream_store(target, rows(), origin=target, source=source, encoder=encoder.name, track=IMAGES.name)
    file.unlink(missing_ok=True)
    return info


def _encoded(
    cameras: Sequence[Camera],
    pictures: Pictures,
    encoder: Encoder,
    batch: int,
    stream: BinaryIO,
    kept: list[int],
) -> Iterator[FeatureRow]:
    """The rows of all viewpoints; those finished earlier are read.

    Batches begin at the same viewpoints however often the work was interrupted, because a batch of another
    size may change a last bit.

    Args:
        cameras: the viewpoints.
        pictures: of them.
        encoder: turns pictures into columns.
        batch: most pictures encoded at once.
        stream: the finished viewpoints.
        kept: where each of them begins there; what is encoded again is taken away.
    """
    together = max(1, batch // VIEWS)  # viewpoints
    del kept[len(kept) // together * together :]
    for camera, begin in zip(cameras, kept, strict=False):
        stream.seek(begin)
        size, _ = _ROW.unpack(stream.read(_ROW.size))
        yield FeatureRow(
            camera.key, np.frombuffer(stream.read(size), np.float16).reshape(VIEWS, -1), camera.key
        )
    stream.truncate(stream.tell())
    for start in range(len(kept), len(cameras), together):
        group = cameras[start : start + together]
        views = [picture for camera in group for picture in pictures.views(camera)]
        chunks = range(0, len(views), batch)
        encoded = torch.cat([encoder.encode(views[first : first + batch]) for first in chunks])
        for camera, values in zip(group, encoded.view(len(group), VIEWS, -1), strict=True):
            yield FeatureRow(camera.key, values.numpy(), camera.key)


@contextmanager
def _opened_alone(file: Path) -> Iterator[BinaryIO]:
    """A file that no other process has opened this way."""
    file.touch()
    with file.open("r+b") as stream:
        with suppress(ImportError):  # systems without it go without
            import fcntl

            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                advice = "wait for it or choose another --name"
                raise UserError(f"{file}: another process is building this store; {advice}") from error
        yield stream


def _finished(stream: BinaryIO, told: str, keys: Sequence[str], file: Path) -> list[int]:
    """Where each viewpoint begins that an earlier run has finished; the first line names the settings.

    Raises:
        UserError: they were made of other viewpoints or with other settings.
    """
    head = json.dumps([told, hashlib.sha256("".join(keys).encode()).hexdigest()]).encode() + b"\n"
    found = stream.readline()
    if not found.endswith(b"\n"):  # new, or cut off
        stream.seek(0)
        stream.write(head)
        return []
    if found != head:
        raise UserError(
            f"{file}: the viewpoints finished so far were made with other settings than {told}; "
            "use the same, choose another --name or delete this file to start over"
        )
    begins = []
    for _ in keys:
        begin = stream.tell()
        size, checksum = _ROW.unpack(stream.read(_ROW.size).ljust(_ROW.size, b"\0"))
        content = stream.read(size)
        if not size or len(content) < size or zlib.crc32(content) != checksum:
            break
        begins.append(begin)
    stream.seek(len(head))
    return begins
