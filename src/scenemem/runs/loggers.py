"""Curves elsewhere: the lines of a run's metrics for TensorBoard and for Weights & Biases."""

from __future__ import annotations

import importlib.util
import os
import secrets
from typing import Any

from scenemem.errors import UserError
from scenemem.formats.atomic import atomic_file
from scenemem.runs.folder import RunFolder

PROJECT = "WANDB_PROJECT"
"""The environment variable that switches Weights & Biases on, and names the project."""


class TensorBoardLogger:
    """Scalars in ``RUN/tensorboard``."""

    def __init__(self, run: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs the optional package

        self._writer = SummaryWriter(str(run.root / "tensorboard"))

    def write(self, line: dict[str, Any]) -> None:
        """Add the numbers of one line at its iteration."""
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line["iteration"])
        self._writer.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._writer.close()


class WandbLogger:
    """A run of a Weights & Biases project, begun with the first line; its files are in ``RUN/wandb``.

    A resumed training goes on in the same run. ``WANDB_MODE=offline`` keeps everything on this machine.
    """

    def __init__(self, run: RunFolder, project: str) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise UserError(
                f"{PROJECT} is set, but Weights & Biases is not installed; "
                f"install it with: pip install 'scenemem[wandb]', or unset {PROJECT}"
            )
        self._run, self._project = run, project
        self._begun: Any = None

    def write(self, line: dict[str, Any]) -> None:
        """Add the numbers of one line at its iteration."""
        import wandb  # needs the optional package

        if self._begun is None:
            root = self._run.root
            self._begun = wandb.init(
                project=self._project,
                name=root.resolve().name,
                id=self._id(),
                dir=str(root),
                config=self._run.describe(),
                resume="allow",
            )
        self._begun.log(scalars(line), step=line["iteration"])

    def close(self) -> None:
        """Nothing more will come."""
        if self._begun is not None:
            self._begun.finish()

    def _id(self) -> str:
        """The name of the run at Weights & Biases, the same after every resume."""
        file = self._run.root / "wandb" / "id"
        if not file.is_file():
            with atomic_file(file) as partial:
                partial.write_text(secrets.token_hex(8), encoding="utf-8")
        return file.read_text(encoding="utf-8")


def open_loggers(run: RunFolder) -> list[TensorBoardLogger | WandbLogger]:
    """TensorBoard where it is installed (extra ``log``); Weights & Biases where ``WANDB_PROJECT`` is set.

    Raises:
        UserError: Weights & Biases is chosen and not installed.
    """
    loggers: list[TensorBoardLogger | WandbLogger] = []
    if project := os.environ.get(PROJECT):
        loggers.append(WandbLogger(run, project))
    if importlib.util.find_spec("tensorboard") is not None:
        loggers.append(TensorBoardLogger(run))
    return loggers


def scalars(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a nested line, by ``outer/inner`` name; the iteration itself is left out."""
    found: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found.update(scalars(value, f"{prefix}{name}/"))
        elif isinstance(value, (int, float)) and name != "iteration":
            found[prefix + name] = float(value)
    return found
