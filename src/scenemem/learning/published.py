"""Published weights: the weights of a trained agent in half precision, and the run folder they unpack to.

``weights:NAME`` on the command line stands for that folder, so every command that takes a run takes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import scenemem
from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file, atomic_folder
from scenemem.formats.folder import cache_folder
from scenemem.learning.checkpoint import VERSION, Checkpoint, read_checkpoint
from scenemem.learning.run_folder import RunFolder

PREFIX = "weights:"
WEIGHTS = Path(scenemem.__file__).parent / "weights"
"""Where the weights that come with SceneMem lie, ``NAME.safetensors`` each."""

_FACTS = ("preset", "vocabulary", "features", "name", "seed")  # of a checkpoint, needed to use its weights


@dataclass(frozen=True)
class Published:
    """What the file of published weights says about itself."""

    name: str
    file: Path
    facts: dict[str, Any]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """What these very weights reach, by split."""
        metrics: dict[str, dict[str, float]] = self.facts["metrics"]
        return metrics

    @property
    def description(self) -> dict[str, Any]:
        """The description of the run they come from."""
        description: dict[str, Any] = self.facts["description"]
        return description


def published(folder: Path | None = None) -> list[Published]:
    """All weights in a folder, by name; those that come with SceneMem unless another one is named."""
    return [Published(name, file, read_checkpoint(file).facts) for name, file in _files(folder).items()]


def halved(checkpoint: Checkpoint) -> Checkpoint:
    """The weights of a checkpoint in half precision, without what only training needs.

    Raises:
        UserError: a weight is too large for half precision.
    """
    tensors = {
        name: tensor.half() for name, tensor in checkpoint.tensors.items() if name.startswith("network.")
    }
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"'{name}' has numbers that half precision cannot hold; train with weight decay")
    facts = {name: checkpoint.facts[name] for name in _FACTS}
    progress = {"iteration": checkpoint.facts["progress"]["iteration"]}
    return Checkpoint(tensors, {**facts, "progress": progress})


def write_published(
    file: Path,
    weights: Checkpoint,
    description: Mapping[str, Any],
    metrics: Mapping[str, Mapping[str, float]],
) -> None:
    """Write halved weights with the description of their run and what they reach on each split."""
    facts = {**weights.facts, "description": dict(description), "metrics": metrics}
    tensors = {name: tensor.contiguous() for name, tensor in weights.tensors.items()}
    with atomic_file(file) as partial:
        save_file(tensors, partial, metadata={"scenemem": json.dumps({"version": VERSION, **facts})})


def unpacked(name: str, folder: Path | None = None) -> Path:
    """The run folder of published weights, in the cache; made when it is not there yet.

    Raises:
        UserError: there are no weights of that name; the message lists those there are.
    """
    files = _files(folder)
    if name not in files:
        raise UserError(f"no weights called '{name}'; there are: {', '.join(files) or 'none'}")
    file = files[name]
    content = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    target = cache_folder() / "weights" / content / name
    if not target.is_dir():
        unpack(file, target)
    return target


def unpack(file: Path, target: Path) -> None:
    """Make a run folder out of a file of published weights."""
    weights = read_checkpoint(file)
    facts = {**weights.facts}
    description = facts.pop("description")
    tensors = {name: tensor.to(torch.float32) for name, tensor in weights.tensors.items()}
    metadata = {"scenemem": json.dumps({"version": VERSION, **facts})}
    with atomic_folder(target, keep_existing=True) as partial:
        run = RunFolder(partial)
        run.begin(description)
        run.last.parent.mkdir()
        for place in (run.last, run.best):  # there is only one set of weights
            save_file(tensors, place, metadata=metadata)


def _files(folder: Path | None) -> dict[str, Path]:
    return {file.stem: file for file in sorted((folder or WEIGHTS).glob("*.safetensors"))}
