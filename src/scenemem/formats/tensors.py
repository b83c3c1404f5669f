"""Tensor files: safetensors with a checksum over everything in them, so that a flipped bit is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import library_errors

CHECKSUM = "sha256"
"""Name of the checksum among the texts of a file."""

LONGEST_HEADER = 8 << 20
"""Bytes of the names, shapes and texts of a file."""


def write_tensor_file(
    file: StrPath,
    tensors: Mapping[str, Tensor],
    texts: Mapping[str, str],
    *,
    previous: StrPath | None = None,
) -> None:
    """Write tensors and texts; the same ones give the same bytes, and the file is complete or not there.

    The bytes are written here and not by the library, which would leave a file of its own behind when it is
    killed, and readable by its owner only. The file that was there before is kept as ``previous``.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(plain, metadata={**texts, CHECKSUM: tensor_digest(plain, texts)})
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))  # which the library shuffles
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with atomic_file(file, previous=previous) as partial, partial.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.write(memoryview(content)[end:])


def read_tensor_file(file: StrPath, what: str = "tensor file") -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and texts of a file, its checksum among the latter; ``what`` it should be, for errors.

    A file without a checksum is read as it is: those of older versions have none.
    """
    if not Path(file).exists():
        raise DataError(file, f"no such {what}")
    with library_errors(file, f"not a {what} of SceneMem, or damaged"):
        content = Path(file).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        if end > LONGEST_HEADER:
            raise ValueError(f"its header is longer than {LONGEST_HEADER >> 20} MB")
        tensors = load(content)
        texts: dict[str, str] = json.loads(content[8:end]).get("__metadata__") or {}
    if CHECKSUM in texts and texts[CHECKSUM] != tensor_digest(tensors, texts):
        raise DataError(file, f"not a {what} of SceneMem, or damaged (its content differs from its checksum)")
    return tensors, texts


def tensor_digest(tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> str:
    """The checksum of a file: of names, kinds, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()

    def add(*parts: str) -> None:
        for part in parts:
            encoded = part.encode()
            digest.update(f"{len(encoded)} ".encode() + encoded)

    for name, text in sorted(texts.items()):
        if name != CHECKSUM:
            add("text", name, text)
    for name, tensor in sorted(tensors.items()):
        add("tensor", name, str(tensor.dtype), str(tuple(tensor.shape)))
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
