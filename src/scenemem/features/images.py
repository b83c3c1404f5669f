"""View features from pictures: image encoders, and stores whose building goes on after a kill.

Shape letters: N pictures, D columns.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from scenemem.errors import UserError
from scenemem.features.pictures import Camera, Pictures, read_cameras
from scenemem.formats.atomic import StrPath
from scenemem.formats.features import VIEWS, FeatureRow, StoreInfo, stream_store
from scenemem.formats.folder import DataFolder
from scenemem.registry import Registry
from scenemem.world.build import Progress


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
        except (msgspec.DecodeError, UnicodeDecodeError):  # new, or cut off
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
            except (msgspec.DecodeError, UnicodeDecodeError):
                break
            self._row = self._row or VIEWS * entry.width * 2
            content = self._values.read(self._row)
            if (entry.key, VIEWS * entry.width * 2, len(content)) != (key, self._row, self._row):
                break
            if zlib.crc32(content) != entry.checksum:
                break
            self._ends.append(self._ends[-1] + len(line))
        self.finished = len(self._ends) - 1
