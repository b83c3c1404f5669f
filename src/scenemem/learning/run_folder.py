"""The folder of a training run: what was asked for, what happened, and the checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file
from scenemem.formats.decoding import read_json, read_json_lines


@dataclass(frozen=True)
class RunFolder:
    """``runs/<name>/``: preset.json, metrics.jsonl, checkpoints/, results/."""

    root: Path

    @property
    def description(self) -> Path:
        """Everything that was asked for: preset, seed, data, versions."""
        return self.root / "preset.json"

    @property
    def metrics(self) -> Path:
        """One JSON line per look at the training."""
        return self.root / "metrics.jsonl"

    @property
    def last(self) -> Path:
        """The checkpoint a run resumes from."""
        return self.root / "checkpoints" / "last.safetensors"

    @property
    def best(self) -> Path:
        """The weights that did best on the selection split."""
        return self.root / "checkpoints" / "best.safetensors"

    def results(self, split: str) -> Path:
        """The trajectories of a split, in the leaderboard format."""
        return self.root / "results" / f"{split}.json"

    def begin(self, description: dict[str, Any]) -> None:
        """Write the description of a new run.

        Raises:
            UserError: there is a run already; one that never got to its first checkpoint does not count.
        """
        if self.last.exists():
            raise UserError(
                f"{self.root} already holds a run; continue it with --resume "
                "or name another folder with --out"
            )
        with atomic_file(self.description) as partial:
            partial.write_bytes(msgspec.json.format(msgspec.json.encode(description), indent=2))

    def describe(self) -> dict[str, Any]:
        """What ``begin`` wrote.

        Raises:
            UserError: there is no run here.
        """
        if not self.description.is_file():
            raise UserError(f"{self.root} holds no run (no preset.json); start one with 'scenemem train'")
        return read_json(self.description, dict[str, Any])

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to the metrics; a line is written whole or not at all."""
        self.metrics.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.metrics, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, msgspec.json.encode(line) + b"\n")
        finally:
            os.close(handle)

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
