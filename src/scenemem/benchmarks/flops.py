"""Counts the floating-point operations of matrix products as they are executed, forward and backward.

A product of (m, k) and (k, n) counts 2 m k n. Everything else - sums, softmax, gathers - counts nothing, as
is the custom: it is little arithmetic, and time spent on it lowers the utilisation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


@dataclass(frozen=True)
class Product:
    """``batch`` products of (m, k) and (k, n) in one call."""

    batch: int
    m: int
    k: int
    n: int
    left_turned: bool = False  # the first factor lies transposed in memory
    right_turned: bool = False

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return 2 * self.batch * self.m * self.k * self.n


Formula = Callable[..., Iterable[Product]]
"""The products behind a call, from the arguments of the call."""


class ProductCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Inside the block, every matrix product torch executes is counted.

    Args:
        part: names the part of the program that is running; counts are kept per part.
    """

    def __init__(self, part: Callable[[], str] = lambda: "all") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._part = part
        self.counts: Counter[tuple[str, Product]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count the call, then do it."""
        del types
        kwargs = kwargs or {}
        formula = _FORMULAS.get(func.overloadpacket)
        if formula is not None:
            for product in formula(*args):
                self.counts[self._part(), product] += 1
        elif torch.is_inference_mode_enabled():
            # without gradients to prepare, calls arrive here before they are taken apart
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    @property
    def products(self) -> Counter[Product]:
        """How often each product was executed, over all parts."""
        merged: Counter[Product] = Counter()
        for (_, product), count in self.counts.items():
            merged[product] += count
        return merged

    @property
    def flops(self) -> int:
        """All operations counted so far."""
        return sum(self.by_part().values())

    def by_part(self) -> dict[str, int]:
        """The operations of every part that executed any."""
        sums: Counter[str] = Counter()
        for (part, product), count in self.counts.items():
            sums[part] += count * product.flops
        return dict(sums)


def _matrices(left: Tensor, right: Tensor) -> list[Product]:
    """left: (m, k)  right: (k, n)"""
    (m, k), n = left.shape, right.shape[1]
    return [Product(1, m, k, n, _turned(left), _turned(right))]


def _matrix_vector(left: Tensor, _right: Tensor) -> list[Product]:
    """left: (m, k)  right: (k,)"""
    return [Product(1, left.shape[0], left.shape[1], 1, _turned(left))]


def _batches(left: Tensor, right: Tensor) -> list[Product]:
    """left: (b, m, k)  right: (b, k, n)"""
    (batch, m, k), n = left.shape, right.shape[2]
    return [Product(batch, m, k, n, _turned(left), _turned(right))]


def _added(formula: Formula) -> Formula:
    """The same product with something added to it first."""
    return lambda _added, left, right, *_: formula(left, right)


def _recurrent_layer(entered: Tensor, _from_input: Tensor, from_state: Tensor, *_: Any) -> list[Product]:
    """One direction of one layer: all words enter at once, the state goes word by word.

    entered: (L, B, k)  from_state: (gates, H)
    """
    words, lanes, columns = entered.shape
    gates, width = from_state.shape
    return [
        Product(1, words * lanes, columns, gates),
        *[Product(1, lanes, width, gates)] * words,
    ]


def _recurrent_layer_backward(
    entered: Tensor, _from_input: Tensor, from_state: Tensor, *_: Any
) -> list[Product]:
    """The gradients of the input, of every state, and of both weights: twice the forward operations."""
    words, lanes, columns = entered.shape
    gates, width = from_state.shape
    return [
        Product(1, words * lanes, gates, columns),
        Product(1, gates, words * lanes, columns),
        *[Product(1, lanes, gates, width)] * words,
        Product(1, gates, words * lanes, width),
    ]


def _attention(query: Tensor, _key: Tensor, value: Tensor, *_: Any) -> list[Product]:
    """query: (..., m, d)  key: (..., n, d)  value: (..., n, e)"""
    batch, (m, d), (n, e) = math.prod(query.shape[:-2]), query.shape[-2:], value.shape[-2:]
    return [Product(batch, m, d, n), Product(batch, m, n, e)]


def _attention_backward(
    _gradient: Tensor, query: Tensor, _key: Tensor, value: Tensor, *_: Any
) -> list[Product]:
    """The scores again, then the gradients of weights, values, queries and keys."""
    batch, (m, d), (n, e) = math.prod(query.shape[:-2]), query.shape[-2:], value.shape[-2:]
    return [
        Product(batch, m, d, n),
        Product(batch, m, e, n),
        Product(batch, n, m, e),
        Product(batch, m, n, d),
        Product(batch, n, m, d),
    ]


def _turned(matrix: Tensor) -> bool:
    return matrix.stride(-1) != 1 and matrix.shape[-1] > 1


_FORMULAS: dict[Any, Formula] = {
    aten.mm: _matrices,
    aten.addmm: _added(_matrices),
    aten.addmm_: _added(_matrices),
    aten._addmm_activation: _added(_matrices),
    aten.mv: _matrix_vector,
    aten.addmv: _added(_matrix_vector),
    aten.addmv_: _added(_matrix_vector),
    aten.dot: lambda left, _right: [Product(1, 1, len(left), 1)],
    aten.bmm: _batches,
    aten.baddbmm: _added(_batches),
    aten.baddbmm_: _added(_batches),
    aten.addbmm: _added(_batches),
    aten.mkldnn_rnn_layer: _recurrent_layer,
    aten.mkldnn_rnn_layer_backward: _recurrent_layer_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
