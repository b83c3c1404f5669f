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
from scenemem.features.store import IMAGES
from scenemem.formats.atomic import StrPath
from scenemem.formats.features import VIEWS, FeatureRow, StoreInfo, stream_store
from scenemem.formats.folder import DataFolder
from scenemem.registry import Registry
from scenemem.world.build import Progress

_ROW = struct.Struct("<II")  # before the values of a finished viewpoint: their bytes, and their CRC-32


class Encoder(Protocol):
    """Turns pictures into rows of numbers."""

    name: str  # what is written into a store as its encoder: name, revision and checksum of the weights

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
    pooled output (ResNet). ``name`` is that of the model on the hub, or its folder.

    Raises:
        UserError: transformers is not installed, the model cannot be loaded or lacks weights.
    """

    def __init__(self, name: str, device: str = "cpu") -> None:
        try:
            import transformers
        except ImportError as error:
            reason = f"is not built in ({', '.join(ENCODERS)}), and others need transformers"
            advice = "which is not installed; run: pip install 'scenemem[images]'"
            raise UserError(f"encoder '{name}' {reason}, {advice}") from error
        with _loading(name, transformers):
            self._processor = transformers.AutoImageProcessor.from_pretrained(name)
            model, report = transformers.AutoModel.from_pretrained(name, output_loading_info=True)
            self._model = model.float().eval().to(device)
        self._called, self._device = name, device
        if hasattr(model, "get_image_features"):
            self._output = "image embedding"
        elif any(key.endswith("cls_token") for key, _ in model.named_parameters()):
            self._output = "class token"
        else:
            self._output = "pooled output"
        lost = [key for key in report["missing_keys"] if "pooler" not in key or "pooled" in self._output]
        if lost := sorted(map(str, lost or report["mismatched_keys"])):
            seen = f"{len(lost)} weights are missing, first '{lost[0]}'"
            raise UserError(f"encoder '{name}': {seen}; use complete weights")
        revision = getattr(model.config, "_commit_hash", None)
        called = Path(name).resolve().name if Path(name).exists() else name
        called += f"@{revision}" if revision else ""
        digest = self._digest(report["missing_keys"])
        self.name = f"{called}, {self._output} of {type(model).__name__}, sha256 {digest}"

    @torch.inference_mode()
    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        """Pictures of any size  ->  (N, D)"""
        pixels = self._processor(images=list(pictures), return_tensors="pt")["pixel_values"]
        return self._encoded(pixels.to(self._device)).float().cpu()

    def _encoded(self, pixels: Tensor) -> Tensor:
        if self._output == "image embedding":
            output = self._model.get_image_features(pixel_values=pixels)
            return output if isinstance(output, Tensor) else output.pooler_output  # the latter from 5.0 on
        output = self._model(pixel_values=pixels)
        if self._output == "class token":
            return torch.as_tensor(output.last_hidden_state[:, 0])
        if getattr(output, "pooler_output", None) is None:
            seen = f"{type(self._model).__name__} gives one picture no single row of numbers"
            advice = "choose a network with a class token, a pooled output or an image embedding"
            raise UserError(f"encoder '{self._called}': {seen}; {advice}")
        return torch.as_tensor(output.pooler_output).flatten(1)

    def _digest(self, unused: Collection[str]) -> str:
        """Of the weights that came with the model and of the preparation of pictures, which both matter."""
        digest = hashlib.sha256(json.dumps(self._processor.to_dict(), sort_keys=True, default=str).encode())
        for key, value in sorted(self._model.state_dict().items()):
            if key not in unused:  # a pooler drawn at random
                digest.update(f"{key} {tuple(value.shape)}".encode())
                digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


ENCODERS: Registry[Callable[[str], Encoder]] = Registry("encoder", {"houses-small": lambda _: HousesSmall()})
"""Built-in encoders by name; each is made for a device. Plugins may add to them."""


def open_encoder(name: str, device: str = "cpu") -> Encoder:
    """A built-in encoder, else the transformers model of that hub name or folder; both may be refused."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device '{device}' cannot be used ({reason}); try cpu") from error
    built_in = ENCODERS.get(name, None)
    return TransformersEncoder(name, device) if built_in is None else built_in(device)


@contextmanager
def _loading(name: str, transformers: Any) -> Iterator[None]:
    """One clear error instead of transformers' own progress bars, reports and exceptions."""
    logging = transformers.utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        kinds = f"neither built in ({', '.join(ENCODERS)}) nor a model that transformers can load ({reason})"
        advice = "a folder with config.json, preprocessor_config.json and the weights"
        expected = f"expected the name of a model on the hub or {advice}"
        raise UserError(f"encoder '{name}' is {kinds}; {expected}") from error
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
    scans: Collection[str] = (),
    progress: Progress | None = None,
) -> StoreInfo:
    """Encode the pictures of all viewpoints of a data folder, or of some scans, into the store ``target``.

    Finished viewpoints are kept in a hidden file beside it, so that the same call goes on after a kill;
    the store has the same bytes as without one. It appears complete or not at all.

    At most ``batch`` pictures are encoded at once, of several viewpoints when it is 72 or more; ``progress``
    is called with (viewpoints done, in all).

    Raises:
        DataError: a picture is missing or broken, or a feature is not a finite number.
        UserError: viewpoints were finished with other settings, another process is at work, or the place
            cannot be written.
    """
    if batch < 1:
        raise UserError(f"batch must be 1 or more, got {batch}")
    cameras = read_cameras(data, scans)
    for camera in cameras:  # before hours of work, not after
        pictures.check(camera)
    settings = f"encoder {encoder.name!r}, pictures {pictures.description!r} and batch {batch}"
    file = Path(target).with_name(f".{Path(target).name}.unfinished")

    def rows() -> Iterator[FeatureRow]:
        # opened in here, where ``stream_store`` has made the folder and words what the system refuses
        with _opened_alone(file) as stream:
            kept = _finished(stream, settings, [camera.key for camera in cameras], file)
            for done, row in enumerate(_encoded(cameras, pictures, encoder, batch, stream, kept), start=1):
                yield row
                if done > len(kept):  # only what the store has taken
                    content = row.values.astype(np.float16).tobytes()
                    stream.write(_ROW.pack(len(content), zlib.crc32(content)) + content)
                    stream.flush()
                if progress is not None:
                    progress(done, len(cameras))

    source = f"{pictures.description}, {len(cameras)} viewpoints"
    info = stream_store(target, rows(), origin=target, source=source, encoder=encoder.name, **IMAGES.about)
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
    """The rows of all viewpoints; those finished earlier are read from ``stream``, where ``kept`` says.

    Batches begin at the same viewpoints however often the work was interrupted, because a batch of another
    size may change a last bit: what is encoded again is taken out of ``kept`` and ``stream``.
    """
    together = max(1, batch // VIEWS)  # viewpoints
    del kept[len(kept) // together * together :]
    for camera, begin in zip(cameras, kept, strict=False):
        stream.seek(begin)
        size, _ = _ROW.unpack(stream.read(_ROW.size))
        values = np.frombuffer(stream.read(size), np.float16).reshape(VIEWS, -1)
        yield FeatureRow(camera.key, values, camera.key)
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
                advice = "wait for it or choose another `name`"
                raise UserError(f"{file}: another process is building this store; {advice}") from error
        yield stream


def _finished(stream: BinaryIO, settings: str, keys: Sequence[str], file: Path) -> list[int]:
    """Where each viewpoint begins that an earlier run has finished; the first line names the settings."""
    head = json.dumps([settings, hashlib.sha256("".join(keys).encode()).hexdigest()]).encode() + b"\n"
    found = stream.readline()
    if not found.endswith(b"\n"):  # new, or cut off
        stream.seek(0)
        stream.write(head)
        return []
    if found != head:
        seen = f"the viewpoints finished so far were made with other settings than {settings}"
        advice = "use the same, choose another `name` or delete this file to start over"
        raise UserError(f"{file}: {seen}; {advice}")
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
