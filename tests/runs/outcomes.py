"""What a training run leaves behind, for tests that compare runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from scenemem.learning.checkpoint import read_checkpoint
from scenemem.runs.folder import RunFolder

_TIMES = ("episodes_per_second", "cpu_seconds")  # differ from run to run


def outcome(out: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The tensors of the last checkpoint, and the log without times."""
    lines = [{k: v for k, v in line.items() if k not in _TIMES} for line in RunFolder(out).logged()]
    return read_checkpoint(RunFolder(out).last).tensors, lines


def assert_same_run(first: Path, second: Path) -> None:
    """Two runs that logged the same and ended with the same numbers, bit for bit."""
    (tensors, lines), (other_tensors, other_lines) = outcome(first), outcome(second)
    assert lines == other_lines
    assert tensors.keys() == other_tensors.keys()
    assert all(torch.equal(tensors[name], other_tensors[name]) for name in tensors)
