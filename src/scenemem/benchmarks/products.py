"""How fast this machine multiplies matrices: large square ones, and the ones a program really multiplies."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from scenemem.benchmarks.clock import now
from scenemem.benchmarks.flops import Product

GIGA = 1e9
SQUARE = Product(1, 1024, 1024, 1024)
"""The product whose speed is taken as the speed of the machine."""

_LONG_ENOUGH = 5e-3  # seconds one measurement lasts at least
_ROUNDS = 3
_MOST_SHAPES = 80


@dataclass(frozen=True)
class ShapesUsed:
    """The speed of the machine at the products of a program."""

    gigaflops_per_second: float  # their operations / the time they take one after the other
    of_square: float  # that / the speed of a large square product at the same time
    share: float  # of all operations of the program, that lie in the products measured
    products: int  # different products measured


def square_gigaflops() -> float:
    """GFLOP/s of a large square product."""
    return SQUARE.flops / _seconds(SQUARE) / GIGA


def measure_products(products: Counter[Product], share: float = 0.9) -> ShapesUsed | None:
    """Measure the heaviest products that together make up ``share`` of all operations; None without any."""
    whole = sum(product.flops * count for product, count in products.items())
    heaviest = sorted(products, key=lambda product: product.flops * products[product], reverse=True)
    operations, seconds, measured = 0, 0.0, 0
    squares = [square_gigaflops()]
    for product in heaviest[:_MOST_SHAPES]:
        if operations >= share * whole:
            break
        operations += product.flops * products[product]
        seconds += _seconds(product) * products[product]
        measured += 1
        if measured % 8 == 0:  # the speed of a machine drifts
            squares.append(square_gigaflops())
    if not operations:
        return None
    speed = operations / seconds / GIGA
    return ShapesUsed(speed, speed / statistics.median(squares), operations / whole, measured)


def _seconds(product: Product) -> float:
    """One call, the operands being warm: the best a program can hope for."""
    left = _operand(product.batch, product.m, product.k, turned=product.left_turned)
    right = _operand(product.batch, product.k, product.n, turned=product.right_turned)
    multiply = torch.mm if product.batch == 1 else torch.bmm
    if product.batch == 1:
        left, right = left[0], right[0]
    result = multiply(left, right)
    rounds = []
    for _ in range(_ROUNDS):
        calls, begun = 0, now()
        while True:
            multiply(left, right, out=result)
            calls += 1
            taken = now() - begun
            if taken >= _LONG_ENOUGH:
                break
        rounds.append(taken / calls)
    return statistics.median(rounds)


def _operand(batch: int, rows: int, columns: int, *, turned: bool) -> Tensor:
    if turned:
        return torch.rand(batch, columns, rows).transpose(1, 2)
    return torch.rand(batch, rows, columns)
