"""The folder of a run: what was asked for, what happened, checkpoints; and packed weights that become one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

import scenemem
from scenemem.errors import DataError, UserError
from scenemem.features.tracks import track_of
from scenemem.formats.atomic import atomic_file, atomic_folder
from scenemem.formats.decoding import read_json, read_json_lines
from scenemem.formats.folder import cache_folder
from scenemem.learning.checkpoint import NETWORK, Checkpoint, read_checkpoint, write_tensors

Which = Literal["best", "last"]
"""Which checkpoint of a run: the best on its selection split, or the last one."""

PREFIX = "weights:"
WEIGHTS = Path(scenemem.__file__).parent / "weights"
"""Where the weights that come with SceneMem lie, ``NAME.safetensors`` each."""

_PACKED = ("preset", "vocabulary", "features", "name", "seed")  # metadata needed to use weights


@dataclass(frozen=True)
class RunFolder:
    """``runs/<name>/``: preset.json, experiment.toml, metrics.jsonl, checkpoints/, results/."""

    root: Path

    @property
    def description(self) -> Path:
        """Everything that was asked for: preset, seed, data, versions."""
        return self.root / "preset.json"

    @property
    def config(self) -> Path:
        """A configuration that repeats the run: ``scenemem train --config``."""
        return self.root / "experiment.toml"

    @property
    def metrics(self) -> Path:
        """One JSON line per validation or checkpoint."""
        return self.root / "metrics.jsonl"

    @property
    def last(self) -> Path:
        """The checkpoint a run resumes from."""
        return self.root / "checkpoints" / "last.safetensors"

    @property
    def best(self) -> Path:
        """The weights that did best on the selection split."""
        return self.root / "checkpoints" / "best.safetensors"

    def checkpoint(self, which: Which) -> Path:
        """The file of a checkpoint."""
        return self.best if which == "best" else self.last

    def results(self, split: str) -> Path:
        """The trajectories of a split, in the leaderboard format."""
        return self.root / "results" / f"{split}.json"

    def outcomes(self, split: str) -> Path:
        """The metrics of every episode of a split, beside its trajectories."""
        return self.results(split).with_suffix(".jsonl")

    def begin(self, description: Mapping[str, Any], config: str | None = None) -> None:
        """Write the description of a new run, and the configuration that repeats it.

        A run that is there already is an error, unless it never got to its first checkpoint.
        """
        if self.last.exists():
            raise UserError(
                f"{self.root} already holds a run; continue it with --resume "
                "or name another folder with --out"
            )
        with atomic_file(self.description) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(description), indent=2))
        if config is not None:
            with atomic_file(self.config) as partial:
                partial.write_text(config, encoding="utf-8")

    def describe(self) -> dict[str, Any]:
        """What ``begin`` wrote; without a run this is an error."""
        if not self.description.is_file():
            raise UserError(f"{self.root} holds no run (no preset.json); start one with 'scenemem train'")
        return read_json(self.description, dict[str, Any])

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to the metrics; a line is written whole or not at all."""
        self.metrics.parent.mkdir(parents=True, exist_ok=True)
        with self.metrics.open("ab", buffering=0) as stream:
            stream.write(msgspec.json.encode(line) + b"\n")

    def logged(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics so far."""
        if self.metrics.is_file():
            for _, line in read_json_lines(self.metrics, dict[str, Any]):
                yield line

    def forget_after(self, iteration: int) -> None:
        """Drop lines that a resumed run will write again, and a line cut short by a kill."""
        if not self.metrics.is_file():
            return
        kept = []
        for text in self.metrics.read_bytes().splitlines(keepends=True):
            if not text.endswith(b"\n") or msgspec.json.decode(text)["iteration"] > iteration:
                break
            kept.append(text)
        with atomic_file(self.metrics) as partial:
            partial.write_bytes(b"".join(kept))


def find_run(source: str | os.PathLike[str]) -> RunFolder:
    """The run behind a folder, a file of packed weights, or ``weights:NAME`` for those that come with us."""
    name = os.fspath(source)
    if name.startswith(PREFIX):
        return RunFolder(unpacked(name.removeprefix(PREFIX)))
    run = RunFolder(Path(name))
    if run.root.suffix == ".safetensors":
        if not run.root.is_file():
            raise UserError(f"there are no packed weights at {name}")
        return RunFolder(_unpacked_file(run.root))
    run.describe()  # or say that there is none
    return run


RENAMED_WEIGHTS = {f"{agent}-r2r-objects": f"{agent}-r2r-oracle" for agent in ("ssm", "basic")}
"""former name of packaged weights -> their name now, which ends in their track"""


@dataclass(frozen=True)
class Published:
    """What a file of packed weights says about itself."""

    name: str
    file: Path
    metadata: dict[str, Any]
    metrics: dict[str, dict[str, float]]  # what these very weights reach, by split
    description: dict[str, Any]  # of the run they come from

    @property
    def track(self) -> str:
        """The track of the features they see; empty when it is not known."""
        features, store = self.metadata["features"], self.metadata["preset"]["data"]["features"]
        return track_of(store, features.get("track", ""), features["encoder"])


def published(folder: Path | None = None) -> list[Published]:
    """All weights in a folder, by name; those that come with SceneMem unless another one is named."""
    return [read_published(file) for file in _files(folder).values()]


def read_published(file: Path) -> Published:
    """What a file of packed weights says about itself."""
    metadata = read_checkpoint(file).metadata
    return Published(file.stem, file, metadata, metadata["metrics"], metadata["description"])


def halved(checkpoint: Checkpoint) -> Checkpoint:
    """The weights of a checkpoint in half precision, without what only training needs."""
    tensors = {name: tensor.half() for name, tensor in checkpoint.tensors.items() if name.startswith(NETWORK)}
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"'{name}' has numbers that half precision cannot hold; train with weight decay")
    metadata = {name: checkpoint.metadata[name] for name in _PACKED}
    progress = {"iteration": checkpoint.metadata["progress"]["iteration"]}
    return Checkpoint(tensors, {**metadata, "progress": progress})


def write_published(
    file: Path, weights: Checkpoint, description: Mapping[str, Any], metrics: Mapping[str, Any]
) -> None:
    """Write halved weights with the description of their run and what they reach on each split."""
    metadata = {**weights.metadata, "description": description, "metrics": metrics}
    write_tensors(file, weights.tensors, metadata)


def unpacked(name: str, folder: Path | None = None) -> Path:
    """The run folder of published weights, in the cache; made when it is not there yet."""
    files = _files(folder)
    name = name if name in files else RENAMED_WEIGHTS.get(name, name)
    if name not in files:
        raise UserError(f"no weights called '{name}'; there are: {', '.join(files) or 'none'}")
    return _unpacked_file(files[name])


def unpack(file: Path, target: Path) -> None:
    """Make a run folder out of a file of packed weights."""
    weights = read_checkpoint(file)
    description = weights.metadata.pop("description", None)
    if description is None:
        raise DataError(file, "holds no packed weights; name the run folder, or use 'scenemem weights pack'")
    tensors = {name: tensor.to(torch.float32) for name, tensor in weights.tensors.items()}
    with atomic_folder(target, keep_existing=True) as partial:
        run = RunFolder(partial)
        run.begin(description)
        run.last.parent.mkdir()
        for place in (run.last, run.best):  # there is only one set of weights
            write_tensors(place, tensors, weights.metadata)


def _unpacked_file(file: Path) -> Path:
    content = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    target = cache_folder() / "weights" / content / file.stem
    if not target.is_dir():
        unpack(file, target)
    return target


def _files(folder: Path | None) -> dict[str, Path]:
    return {file.stem: file for file in sorted((folder or WEIGHTS).glob("*.safetensors"))}
