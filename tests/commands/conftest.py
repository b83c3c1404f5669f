"""Runs that commands are typed on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commands.helpers import SMALL, typed


@pytest.fixture(scope="session")
def hardly_trained(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents and a speaker after four steps: the folders ssm-0, basic-0 and speaker-0."""
    root = tmp_path_factory.mktemp("trained")
    for name, words in (
        ("ssm-0", ("train", "ssm")),
        ("basic-0", ("train", "basic")),
        ("speaker-0", ("speak", "train", "--words", 20)),
    ):
        flags = ("--data", tiny_trainable, "--out", root / name, "--iterations", 4)
        assert typed(*words, *flags, *SMALL) == 0
    return root


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
