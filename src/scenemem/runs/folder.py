"""The folder of a run: description, metrics, checkpoints, results; one training at a time writes into it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.decoding import decode_json, fitted, read_bytes, read_json

Which = Literal["best", "last"]
"""Which checkpoint of a run: the best on its selection split, or the last one."""

try:
    import fcntl
except ImportError:  # not on Windows, where nothing keeps two trainings apart
    fcntl = None  # type: ignore[assignment]

SPEAKER = "speaker"
"""The kind that the metadata of a speaker's checkpoint names; agents name none."""


class _MetricsLine(msgspec.Struct):
    """The fields of a line of the metrics that its readers rely on."""

    iteration: Annotated[int, msgspec.Meta(ge=0)]
    losses: dict[str, float] = {}
    validation: dict[str, float] = {}


class RunFolder:
    """``runs/<name>/``: preset.json, experiment.toml, metrics.jsonl, checkpoints/, results/."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.description = root / "preset.json"  # the settings of the run: preset, seed, data, versions
        self.config = root / "experiment.toml"  # repeats the run: ``scenemem train --config``
        self.metrics = root / "metrics.jsonl"  # one line per validation or checkpoint
        self.last = root / "checkpoints" / "last.safetensors"  # what a run resumes from
        self.previous = self.last.with_stem("previous")  # to go on from when the last one is damaged
        self.best = self.last.with_stem("best")  # the weights that did best on the selection split

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.last.exists() or self.previous.exists()

    def checkpoint(self, which: Which) -> Path:
        """The file of a checkpoint."""
        return self.best if which == "best" else self.last

    def results(self, split: str) -> Path:
        """The trajectories of a split, in the leaderboard format; outcomes (.jsonl) and stamp lie beside."""
        return self.root / "results" / f"{split}.json"

    def stamp(self, split: str) -> Path:
        """What the results of a split come from: weights, data, versions."""
        return self.results(split).with_suffix(".stamp.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other trainings out; the system gives the lock back however this process ends."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            stream = (self.root / ".lock").open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            reason = f"cannot be written ({error.strerror or error})"
            raise UserError(f"{self.root}: {reason}; make it writable or choose another `out`") from error
        with stream:
            if fcntl is not None:
                _lock(stream.fileno(), self.root)
            yield

    def begin(self, description: Mapping[str, Any], config: str | None = None) -> None:
        """Write the description of a new run, and the configuration that repeats it.

        A run that is there already is an error, unless it never got to its first checkpoint.
        """
        if self.has_checkpoint:
            raise UserError(
                f"{self.root} already holds a run; continue it with `resume=True` "
                "or name another folder with `out`"
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

    def add_session(self, session: Mapping[str, Any]) -> dict[str, Any]:
        """Note from which iteration on a run is computed in another way  ->  how it was computed before"""
        description = self.describe()
        sessions = fitted(description.get("sessions", []), list[dict[str, Any]], self.description)
        before = sessions[-1] if sessions else dict(session)
        if {**before, "iteration": 0} != {**session, "iteration": 0}:
            self._write_description({**description, "sessions": [*sessions, session]})
        return before

    def _write_description(self, description: Mapping[str, Any]) -> None:
        with atomic_file(self.description) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(description), indent=2))

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to the metrics."""
        self.metrics.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.metrics.open("ab") as stream:
                stream.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise UserError(
                f"{self.metrics}: cannot be written ({error.strerror or error}); "
                "the last checkpoint is kept; free some space or make the folder writable, "
                "then continue with `resume=True`"
            ) from error

    def logged(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics so far, without a last one that a kill or a full disk has cut short."""
        if self.metrics.is_file():
            content = read_bytes(self.metrics)
            # without one whole line it is no file of ours
            for number, text in enumerate(_whole_lines(content) or content.splitlines(), start=1):
                yield self._line(text, number)

    def forget_after(self, iteration: int) -> None:
        """Drop lines that a resumed run will write again, and a line that was cut short."""
        if self.metrics.is_file():
            lines = enumerate(_whole_lines(self.metrics.read_bytes()), start=1)
            kept = [text for number, text in lines if self._line(text, number)["iteration"] <= iteration]
            with atomic_file(self.metrics) as partial:
                partial.write_bytes(b"".join(kept))

    def _line(self, text: bytes, number: int) -> dict[str, Any]:
        """A line of the metrics, with the fields that its readers rely on."""
        line = decode_json(text, dict[str, Any], self.metrics, f"line {number}")
        fitted(line, _MetricsLine, self.metrics, f"line {number}")
        return line


def _whole_lines(content: bytes) -> list[bytes]:
    return [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]


def _lock(handle: int, root: Path) -> None:
    """Lock an open file, and write into it which process has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "unknown"
        raise UserError(
            f"{root} is being trained by another process ({owner}); "
            "wait until it has ended, or name another folder with `out`"
        ) from error
    except OSError:  # a file system without locks: better no lock than no training
        return
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
