"""The folder of a run: description, metrics, checkpoints; and packed weights that become one."""

from __future__ import annotations

import errno
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

import scenemem
from scenemem.errors import DataError, UserError
from scenemem.formats.atomic import atomic_file, atomic_folder
from scenemem.formats.decoding import decode_json, file_digest, fitted, read_bytes, read_json, read_toml
from scenemem.formats.folder import cache_folder
from scenemem.learning.checkpoint import NETWORK, Checkpoint, read_checkpoint, write_tensors

Which = Literal["best", "last"]
"""Which checkpoint of a run: the best on its selection split, or the last one."""

PREFIX = "weights:"
WEIGHTS = Path(scenemem.__file__).parent / "weights"
"""Where the weights that come with SceneMem lie, ``NAME.safetensors`` each."""

try:
    import fcntl
except ImportError:  # not on Windows, where nothing keeps two trainings apart
    fcntl = None  # type: ignore[assignment]

SPEAKER = "speaker"
"""The kind that the metadata of a speaker's checkpoint names; agents name none."""

_PACKED = ("preset", "vocabulary", "features", "name", "seed")  # metadata needed to use weights


@dataclass(frozen=True)
class RunFolder:
    """``runs/<name>/``: preset.json, experiment.toml, metrics.jsonl, checkpoints/, results/."""

    root: Path

    @property
    def description(self) -> Path:
        """The settings of the run: preset, seed, data, versions."""
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
    def previous(self) -> Path:
        """The checkpoint before the last one, to go on from when that is damaged."""
        return self.root / "checkpoints" / "previous.safetensors"

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.last.exists() or self.previous.exists()

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

    def stamp(self, split: str) -> Path:
        """What the results of a split come from: weights, data, versions."""
        return self.results(split).with_suffix(".stamp.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other trainings out of the folder; the system gives the lock back however this process ends.

        Raises:
            UserError: another process is training here, or the folder cannot be written.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            handle = _lock(self.root / ".lock") if fcntl is not None else None
        except OSError as error:
            reason = (
                f"cannot be written ({error.strerror or error}); make it writable or choose another --out"
            )
            raise UserError(f"{self.root}: {reason}") from error
        try:
            yield
        finally:
            if handle is not None:
                with suppress(OSError):
                    os.unlink(self.root / ".lock")  # while it is ours
                os.close(handle)

    def begin(self, description: Mapping[str, Any], config: str | None = None) -> None:
        """Write the description of a new run, and the configuration that repeats it.

        A run that is there already is an error, unless it never got to its first checkpoint.
        """
        if self.has_checkpoint:
            raise UserError(
                f"{self.root} already holds a run; continue it with --resume "
                "or name another folder with --out"
            )
        self._write_description(description)
        if config is not None:
            with atomic_file(self.config) as partial:
                partial.write_text(config, encoding="utf-8")

    def describe(self) -> dict[str, Any]:
        """What ``begin`` wrote; without a run this is an error."""
        if not self.description.is_file():
            raise UserError(f"{self.root} holds no run (no preset.json); start one with 'scenemem train'")
        return read_json(self.description, dict[str, Any])

    def add_session(self, session: Mapping[str, Any]) -> dict[str, Any] | None:
        """Note from which iteration on the run was computed how, when that differs from before.

        Returns:
            how it was computed before; None when nothing changed.
        """
        description = self.describe()
        sessions = description.setdefault("sessions", [])
        before = sessions[-1] if isinstance(sessions, list) and sessions else None
        same = isinstance(before, dict) and all(
            before.get(name) == value for name, value in session.items() if name != "iteration"
        )
        if before is None or same or not isinstance(before, dict):
            return None
        sessions.append(dict(session))
        self._write_description(description)
        return before

    def _write_description(self, description: Mapping[str, Any]) -> None:
        with atomic_file(self.description) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(description), indent=2))

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to the metrics; a line is written whole or not at all.

        Raises:
            UserError: the disk is full or the folder cannot be written.
        """
        self.metrics.parent.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.encode(line) + b"\n"
        size = 0
        try:
            with self.metrics.open("ab", buffering=0) as stream:
                size = os.fstat(stream.fileno()).st_size
                written = stream.write(text)
                if written != len(text):  # the rest did not fit
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with suppress(OSError):
                if self.metrics.stat().st_size > size:
                    os.truncate(self.metrics, size)
            raise UserError(
                f"{self.metrics}: cannot be written ({error.strerror or error}); "
                "the last checkpoint is kept; free some space or make the folder writable, "
                "then continue with --resume"
            ) from error

    def logged(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics so far.

        Raises:
            DataError: a line is damaged.
        """
        if self.metrics.is_file():
            for number, text in enumerate(read_bytes(self.metrics).splitlines(), start=1):
                if text.strip():
                    yield _metrics_line(text, self.metrics, number)

    def forget_after(self, iteration: int) -> None:
        """Drop lines that a resumed run will write again, and a line cut short by a kill.

        Damaged lines are dropped as well; the file as it was is kept beside it then, with a warning.
        """
        if not self.metrics.is_file():
            return
        kept, damaged = [], list[DataError]()
        content = self.metrics.read_bytes()
        for number, text in enumerate(content.splitlines(keepends=True), start=1):
            if not text.endswith(b"\n"):
                break
            try:
                if _metrics_line(text, self.metrics, number)["iteration"] <= iteration:
                    kept.append(text)
            except DataError as error:
                damaged.append(error)
        if damaged:
            copy = self.metrics.with_suffix(".damaged.jsonl")
            with atomic_file(copy) as partial:
                partial.write_bytes(content)
            warnings.warn(
                f"{damaged[0]}; {len(damaged)} damaged lines were left out, "
                f"the file as it was is kept as '{copy.name}'",
                stacklevel=2,
            )
        with atomic_file(self.metrics) as partial:
            partial.write_bytes(b"".join(kept))


def _lock(file: Path) -> int:
    """An open handle that holds the lock of a file."""
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(handle, 200).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise UserError(
                f"{file.parent} is being trained by another process ({owner}); "
                "wait until it has ended, or name another folder with --out"
            ) from error
        except OSError:  # a file system without locks: better no lock than no training
            return handle
        with suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == os.stat(file).st_ino:
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return handle
        os.close(handle)  # its owner removed it before we had it


def _metrics_line(text: bytes, file: Path, number: int) -> dict[str, Any]:
    """A line of the metrics; everything that reads them relies on these fields."""
    line = decode_json(text, dict[str, Any], file, f"line {number}")
    iteration: Any = line.get("iteration")
    if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration < 0:
        reason = f"is {iteration!r:.40}, expected a number of steps"
        raise DataError(file, reason, record=f"line {number}", field="iteration")
    for name in ("losses", "validation"):
        values: Any = line.get(name, {})
        if not isinstance(values, dict) or not all(
            isinstance(value, (int, float)) for value in values.values()
        ):
            reason = f"is {values!r:.40}, expected numbers by name"
            raise DataError(file, reason, record=f"line {number}", field=name)
    return line


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


_SAID: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "seed": int,
    "preset.data.task": str,
    "preset.selection.split": str,
    "vocabulary": list,
    "features.width": int,
    "features.sha256": str,
    "features.encoder": str,
    "progress.iteration": int,
    "description.data.features": str,
    "description.versions": dict,
}
"""What is said in packed weights, and relied on wherever they are read."""

AGENT_METRICS, SPEAKER_METRICS = ("sr", "spl", "osr", "ne"), ("bleu", "retrieval", "shuffled")
"""The metrics on the card of an agent and of a speaker."""


class Seeds(msgspec.Struct, frozen=True):
    """All runs that were trained like published weights: their seeds, and (mean, deviation) on val_unseen."""

    seeds: tuple[int, ...]
    sr: tuple[float, float]
    spl: tuple[float, float]


@dataclass(frozen=True)
class Published:
    """What a file of packed weights says about itself."""

    name: str
    file: Path
    metadata: dict[str, Any]
    metrics: dict[str, dict[str, float]]  # what these very weights reach, by split
    description: dict[str, Any]  # of the run they come from

    @property
    def seeds(self) -> Seeds | None:
        """What other seeds reach, from the ``seeds.toml`` beside the weights; None when only one is known."""
        file = self.file.with_name("seeds.toml")
        known = fitted(read_toml(file), dict[str, Seeds], file) if file.is_file() else {}
        return known.get(self.name)

    @property
    def is_speaker(self) -> bool:
        """Whether they describe paths rather than walk them."""
        return self.metadata.get("kind") == SPEAKER

    @property
    def card(self) -> tuple[str, ...]:
        """The metrics that tell how good the weights are, the most important one first."""
        return SPEAKER_METRICS if self.is_speaker else AGENT_METRICS

    @property
    def track(self) -> str:
        """The track of the features they see; empty when it is not known."""
        track: str = self.metadata["features"].get("track", "")
        return track


def published(folder: Path | None = None) -> list[Published]:
    """All weights in a folder, by name; those that come with SceneMem unless another one is named."""
    return [read_published(file) for file in _files(folder).values()]


def read_published(file: Path) -> Published:
    """What a file of packed weights says about itself."""
    metadata = read_checkpoint(file).metadata
    for name in ("metrics", "description"):
        if not isinstance(metadata.get(name), dict):
            raise DataError(
                file, f"holds no packed weights (no {name}); pack them with 'scenemem weights pack'"
            )
    entry = Published(file.stem, file, metadata, metadata["metrics"], metadata["description"])
    shown = {f"metrics.{split}.{name}": (int, float) for split in entry.metrics for name in entry.card}
    for path, kind in {**_SAID, **shown}.items():
        value: Any = metadata
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, kind):
            reason = f"does not describe its weights ('{path}' is {value!r:.40}); get the file again"
            raise DataError(file, reason)
    return entry


def halved(checkpoint: Checkpoint) -> Checkpoint:
    """The weights of a checkpoint in half precision, without what only training needs."""
    tensors = {name: tensor.half() for name, tensor in checkpoint.tensors.items() if name.startswith(NETWORK)}
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise UserError(f"'{name}' has numbers that half precision cannot hold; train with weight decay")
    metadata = {name: checkpoint.metadata[name] for name in _PACKED}
    metadata |= {
        name: checkpoint.metadata[name] for name in ("inputs", "kind") if name in checkpoint.metadata
    }
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
    if name not in files:
        raise UserError(f"no weights called '{name}'; there are: {', '.join(files) or 'none'}")
    return _unpacked_file(files[name])


def unpack(file: Path, target: Path) -> None:
    """Make a run folder out of a file of packed weights."""
    weights = read_checkpoint(file)
    description = weights.metadata.pop("description", None)
    if not isinstance(description, dict):
        raise DataError(file, "holds no packed weights; name the run folder, or use 'scenemem weights pack'")
    tensors = {name: tensor.to(torch.float32) for name, tensor in weights.tensors.items()}
    with atomic_folder(target, keep_existing=True) as partial:
        run = RunFolder(partial)
        run.begin(description)
        run.last.parent.mkdir()
        for place in (run.last, run.best):  # there is only one set of weights
            write_tensors(place, tensors, weights.metadata)


def _unpacked_file(file: Path) -> Path:
    content = file_digest(file)[:12]
    target = cache_folder() / "weights" / content / file.stem
    if not target.is_dir():
        unpack(file, target)
    return target


def _files(folder: Path | None) -> dict[str, Path]:
    return {file.stem: file for file in sorted((folder or WEIGHTS).glob("*.safetensors"))}
