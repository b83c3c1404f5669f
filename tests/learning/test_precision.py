from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from scenemem.learning import precision
from scenemem.learning.precision import use_precision


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def _seconds(monkeypatch: pytest.MonkeyPatch, fast: float) -> None:
    monkeypatch.setattr(precision, "_seconds", {"medium": fast, "highest": 1.0}.__getitem__)


def test_fast_is_refused_where_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    _seconds(monkeypatch, fast=1.75)
    said = use_precision("fast", "cpu")
    assert said == "--precision fast makes products 1.8 times slower on this processor; full is used"
    assert torch.get_float32_matmul_precision() == "highest"


def test_fast_is_used_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    _seconds(monkeypatch, fast=0.5)
    assert use_precision("fast", "cpu") is None
    assert torch.get_float32_matmul_precision() == "medium"
    assert use_precision("full", "cpu") is None
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_graphics_card_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    _seconds(monkeypatch, fast=9.0)
    assert use_precision("fast", "cuda") is None
    assert torch.get_float32_matmul_precision() == "medium"


def test_a_run_begun_with_fast_products_goes_on_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    _seconds(monkeypatch, fast=9.0)
    assert use_precision("fast", "cpu", tried=True) is None
    assert torch.get_float32_matmul_precision() == "medium"


def test_trying_leaves_the_precision_full() -> None:
    torch.set_float32_matmul_precision("medium")
    assert precision._seconds("medium") > 0
    assert torch.get_float32_matmul_precision() == "highest"
