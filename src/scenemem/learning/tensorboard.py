"""Metrics for TensorBoard, when it is installed (``pip install 'scenemem[log]'``); nothing otherwise."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Protocol


class Mirror(Protocol):
    """Whoever wants to see the lines that go into metrics.jsonl."""

    def write(self, line: dict[str, Any], /) -> None:
        """One line of the metrics."""


class NoMirror:
    """TensorBoard is not installed."""

    def write(self, _line: dict[str, Any], /) -> None:
        """Do nothing."""


class TensorBoardMirror:
    """Writes every number of a line as a scalar, named by its place in the line."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs the optional package

        self._writer = SummaryWriter(str(folder))

    def write(self, line: dict[str, Any], /) -> None:
        """Add the scalars of one line at its iteration."""
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line["iteration"])
        self._writer.flush()


def open_mirror(folder: Path) -> Mirror:
    """The TensorBoard mirror of a run when the package is there."""
    return TensorBoardMirror(folder) if importlib.util.find_spec("tensorboard") else NoMirror()


def scalars(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a nested line, by ``outer/inner`` name; the iteration itself is left out."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found.update(scalars(value, f"{prefix}{name}/"))
        elif isinstance(value, (int, float)) and name != "iteration":
            found[prefix + name] = float(value)
    return found
