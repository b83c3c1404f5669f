from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from scenemem.runs.loop import TensorBoardLog, open_tensorboard, scalars

LINE = {
    "iteration": 7,
    "stage": "mixed",
    "losses": {"teacher": 2.5},
    "validation": {"sr": 0.5},
    "gradient": 3,
}


def test_every_number_of_a_line_gets_a_name() -> None:
    assert scalars(LINE) == {"losses/teacher": 2.5, "validation/sr": 0.5, "gradient": 3.0}


def test_without_the_package_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert open_tensorboard(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_with_the_package_scalars_are_written_at_their_iteration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written: list[tuple[Any, ...]] = []

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            written.append(("folder", folder))

        def add_scalar(self, *scalar: Any) -> None:
            written.append(scalar)

        def flush(self) -> None:
            written.append(("flush",))

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    log = open_tensorboard(tmp_path)
    assert isinstance(log, TensorBoardLog)
    log.write(LINE)
    assert written[0] == ("folder", str(tmp_path))
    assert ("validation/sr", 0.5, 7) in written
    assert written[-1] == ("flush",)
