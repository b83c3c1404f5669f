"""The tiny world for the tests of agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.helpers import Setting


@pytest.fixture(scope="session")
def whole(tiny_trainable: Path) -> Setting:
    """With all episodes to learn from."""
    return Setting.load(tiny_trainable)


@pytest.fixture(scope="session")
def setting(whole: Setting) -> Setting:
    """With some of them."""
    return whole.every(5)
