"""Benchmarks on the tiny world, with machine measurements so short that they mean nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scenemem.agents.network import NetworkConfig

from scenemem.benchmarks import products
from scenemem.benchmarks.flops import Product
from scenemem.benchmarks.workload import Case, Workload
from scenemem.formats.folder import DataFolder
from scenemem.presets import PRESETS

SMALL = {
    name: replace(
        PRESETS[name],
        model=NetworkConfig(word_width=8, width=16),
        memory=replace(PRESETS[name].memory, stream=8),
    )
    for name in ("ssm", "basic")
}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_LONG_ENOUGH", 0.0)
    monkeypatch.setattr(products, "SQUARE", Product(1, 32, 32, 32))
    for name, preset in SMALL.items():
        monkeypatch.setitem(PRESETS, name, preset)


@pytest.fixture(scope="session")
def tiny_load(tiny_trainable: Path) -> Workload:
    """Training of ``ssm`` on the tiny world."""
    return Workload(Case(SMALL["ssm"], batch=4), DataFolder(tiny_trainable))
