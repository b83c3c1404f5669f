"""A run that has walked a split, and copies of it that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scenemem.runs.folder import RunFolder
from tests.commands.helpers import typed

SMALL = (
    *("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1, "--learning.batch", 4),
    *("--selection.every", 2, "--selection.save-every", 2, "--no-replays"),
)


@pytest.fixture(scope="module")
def evaluated(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A data folder, and a run trained on it that has walked val_unseen."""
    root = tmp_path_factory.mktemp("evaluated")
    data = Path(shutil.copytree(tiny_trainable, root / "data"))
    assert typed("train", "ssm", "--data", data, "--out", root / "run", "--iterations", 2, *SMALL) == 0
    assert typed("eval", root / "run", "--data", data, "--json") == 0
    return data, root / "run"


@pytest.fixture
def copied(evaluated: tuple[Path, Path], tmp_path: Path) -> tuple[Path, RunFolder]:
    """Copies that a test may change."""
    data, run = (shutil.copytree(place, tmp_path / place.name) for place in evaluated)
    return Path(data), RunFolder(Path(run))
