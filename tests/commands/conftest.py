"""Runs that commands are typed on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def runs(hardly_trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies for the tests of a module."""
    return Path(shutil.copytree(hardly_trained, tmp_path_factory.mktemp("module") / "runs"))


@pytest.fixture(scope="module")
def ssm(runs: Path) -> Path:
    """The agent with a memory."""
    return runs / "ssm-0"


@pytest.fixture(scope="module")
def basic(runs: Path) -> Path:
    """The agent without one."""
    return runs / "basic-0"


@pytest.fixture(scope="module")
def speaker(runs: Path) -> Path:
    return runs / "speaker-0"
