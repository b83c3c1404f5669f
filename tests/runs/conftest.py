"""A run that has walked a split, and copies of it that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scenemem.runs.folder import RunFolder
from tests.commands import helpers
from tests.commands.helpers import typed

SMALL = (*helpers.SMALL, "--no-replays")


@pytest.fixture(scope="module")
def evaluated(
    hardly_trained: Path, tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A data folder, and a run trained on it that has walked val_unseen."""
    root = tmp_path_factory.mktemp("evaluated")
    data = Path(shutil.copytree(tiny_trainable, root / "data"))
    run = Path(shutil.copytree(hardly_trained / "ssm-0", root / "run"))
    assert typed("eval", run, "--data", data, "--json") == 0
    return data, run


@pytest.fixture
def data(evaluated: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the data folder that a test may change."""
    return Path(shutil.copytree(evaluated[0], tmp_path / "data"))


@pytest.fixture
def run(evaluated: tuple[Path, Path], tmp_path: Path) -> RunFolder:
    """A copy of the run that a test may change."""
    return RunFolder(Path(shutil.copytree(evaluated[1], tmp_path / "run")))
