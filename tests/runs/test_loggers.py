"""Curves for TensorBoard and Weights & Biases: when they are written, and what is in them."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from scenemem.errors import UserError
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import TensorBoardLogger, open_loggers, scalars
from tests.commands.helpers import typed
from tests.runs.conftest import SMALL

LINE = {
    "iteration": 7,
    "stage": "mixed",
    "losses": {"teacher": 2.5},
    "validation": {"sr": 0.5},
    "gradient": 3,
}


@pytest.fixture(autouse=True)
def _unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)


def test_without_the_packages_nothing_happens_or_what_is_asked_for_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert open_loggers(RunFolder(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("WANDB_PROJECT", "houses")
    with pytest.raises(UserError, match=r"pip install 'scenemem\[wandb\]', or unset WANDB_PROJECT"):
        open_loggers(RunFolder(tmp_path))


def test_tensorboard_gets_scalars_at_their_iteration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    writer = Mock()
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    (log,) = open_loggers(RunFolder(tmp_path))
    assert isinstance(log, TensorBoardLogger)
    log.write({**LINE, "losses": {"teacher": 2.5, "augmented teacher": 1.5}})
    log.close()
    assert scalars(LINE) == {"losses/teacher": 2.5, "validation/sr": 0.5, "gradient": 3.0}
    legal = {"losses/teacher": 2.5, "losses/augmented_teacher": 1.5, "validation/sr": 0.5, "gradient": 3.0}
    written = [call().add_scalar(name, value, 7) for name, value in legal.items()]
    opened, closed = call(str(tmp_path / "tensorboard")), [call().flush(), call().close()]
    assert writer.mock_calls == [opened, *written, *closed]


def test_weights_and_biases_keeps_a_training_offline(
    tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb: Any = pytest.importorskip("wandb", reason="needs wandb (pip install 'scenemem[wandb]')")
    logged: list[dict[str, Any]] = []
    real = wandb.sdk.wandb_run.Run.log

    def spied(run: Any, data: dict[str, Any], step: int) -> None:
        logged.append({"step": step, **data})
        real(run, data, step=step)

    monkeypatch.setattr(wandb.sdk.wandb_run.Run, "log", spied)
    monkeypatch.setenv("WANDB_PROJECT", "houses")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = tmp_path / "basic-0"
    words = ("train", "basic", "--data", tiny_trainable, "--out", run, "--iterations", 2)
    assert typed(*words, *SMALL) == 0
    (line,) = RunFolder(run).logged()
    assert [entry["step"] for entry in logged] == [2]
    assert logged[0]["validation/sr"] == line["validation"]["sr"]
    name = (run / "wandb" / "id").read_text()
    assert list((run / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb")), "and nothing was sent"
