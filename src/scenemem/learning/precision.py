"""The precision of matrix products: full, or fast where the device is faster with less."""

from __future__ import annotations

import time
from typing import Literal

import torch

Precision = Literal["full", "fast"]

_SIZE, _PRODUCTS = 512, 5


def use_precision(precision: Precision, device: str, *, tried: bool = False) -> str | None:
    """Let products use TF32 or bfloat16 inside (``fast``), or not; weights and gradients stay as they are.

    A processor without units for bfloat16 converts every number and is slower, so it is tried first.

    Args:
        precision: what was asked for.
        device: where the products are computed.
        tried: a run that was begun with ``fast`` goes on with it without being timed again.

    Returns:
        What to tell the user when ``fast`` is not used.
    """
    torch.set_float32_matmul_precision("highest")
    if precision == "full":
        return None
    slower = 1.0 if tried or device != "cpu" else _seconds("medium") / _seconds("highest")
    if slower > 1.0:
        return f"--precision fast makes products {slower:.1f} times slower on this processor; full is used"
    torch.set_float32_matmul_precision("medium")
    return None


def _seconds(precision: str) -> float:
    """Of a square product, the fastest of some; the precision is full again afterwards."""
    matrix = torch.rand(_SIZE, _SIZE)
    torch.set_float32_matmul_precision(precision)
    try:
        taken = []
        for _ in range(_PRODUCTS + 1):  # the first one prepares
            begun = time.perf_counter()
            torch.mm(matrix, matrix)
            taken.append(time.perf_counter() - begun)
    finally:
        torch.set_float32_matmul_precision("highest")
    return min(taken[1:])
