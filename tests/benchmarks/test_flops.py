"""Counted operations equal the ones worked out by hand, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from scenemem.benchmarks.flops import Product, ProductCounter

B, L, K, H = 3, 5, 7, 11  # lanes, words, columns, width


def _inputs(*shape: int) -> Tensor:
    return torch.rand(*shape, requires_grad=True)


def _counted(work: Callable[[], Tensor], *, backward: bool) -> int:
    counter = ProductCounter()
    with counter:
        result = work()
        if backward:
            result.sum().backward()  # type: ignore[no-untyped-call]
    return counter.flops


# work, its forward operations by hand; the gradients of both factors cost twice as much
CASES: dict[str, tuple[Callable[[], Tensor], int]] = {
    "linear": (lambda: nn.Linear(K, H)(_inputs(B, K)), 2 * B * K * H),
    "linear over words": (lambda: nn.Linear(K, H, bias=False)(_inputs(B, L, K)), 2 * B * L * K * H),
    "batched": (lambda: torch.bmm(_inputs(B, L, K), _inputs(B, K, H)), 2 * B * L * K * H),
    "batched sum": (
        lambda: torch.baddbmm(torch.ones(B, L, H), _inputs(B, L, K), _inputs(B, K, H)),
        2 * B * L * K * H,
    ),
    "einsum": (lambda: torch.einsum("blk,bkh->blh", _inputs(B, L, K), _inputs(B, K, H)), 2 * B * L * K * H),
    "lstm": (lambda: nn.LSTM(K, H, batch_first=True)(_inputs(B, L, K))[0], 2 * B * L * (K + H) * 4 * H),
    "two-layer lstm": (
        lambda: nn.LSTM(K, H, num_layers=2)(_inputs(L, B, K))[0],
        2 * B * L * (K + H) * 4 * H + 2 * B * L * (H + H) * 4 * H,
    ),
    "lstm cell": (
        lambda: nn.LSTMCell(K, H)(_inputs(B, K), (_inputs(B, H), _inputs(B, H)))[0],
        2 * B * (K + H) * 4 * H,
    ),
    "gru cell": (lambda: nn.GRUCell(K, H)(_inputs(B, K), _inputs(B, H)), 2 * B * (K + H) * 3 * H),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_operations_are_the_ones_worked_out_by_hand(name: str) -> None:
    work, expected = CASES[name]
    assert _counted(work, backward=False) == expected
    with torch.no_grad():
        assert _counted(work, backward=False) == expected, "the same without gradients"
    with torch.inference_mode():
        assert _counted(work, backward=False) == expected, "and in inference mode"


@pytest.mark.parametrize("name", CASES)
def test_backward_doubles_the_operations_once_more(name: str) -> None:
    work, expected = CASES[name]
    assert _counted(work, backward=True) == 3 * expected


def test_attention_is_two_products_forward_and_five_backward() -> None:
    def attend() -> Tensor:
        query, key = _inputs(1, B, L, K), _inputs(1, B, H, K)
        result: Tensor = nn.functional.scaled_dot_product_attention(query, key, _inputs(1, B, H, K))
        return result

    one = 2 * B * L * K * H
    assert _counted(attend, backward=False) == 2 * one
    assert _counted(attend, backward=True) == 7 * one


def test_vectors_count_too() -> None:
    matrix, vector = torch.rand(H, K), torch.rand(K)
    assert _counted(lambda: matrix @ vector, backward=False) == 2 * H * K
    assert _counted(lambda: torch.addmv(torch.ones(H), matrix, vector), backward=False) == 2 * H * K
    assert _counted(lambda: torch.dot(vector, vector), backward=False) == 2 * K


def test_where_torch_counts_it_counts_the_same() -> None:
    network = nn.Sequential(nn.Linear(K, H), nn.Tanh(), nn.Linear(H, H, bias=False), nn.Linear(H, K))
    query = _inputs(B, L, K)

    def work() -> Tensor:
        answer = network(query)
        return torch.bmm(answer, answer.transpose(1, 2))

    with FlopCounterMode(display=False) as theirs:
        work().sum().backward()  # type: ignore[no-untyped-call]
    assert _counted(work, backward=True) == theirs.get_total_flops()


def test_products_are_counted_per_part_with_their_shapes() -> None:
    part = "first"
    counter = ProductCounter(lambda: part)
    left, right = torch.rand(B, K), torch.rand(H, K)
    with counter:
        torch.mm(left, right.t())
        torch.mm(left, right.t())
        part = "second"
        torch.bmm(left.unsqueeze(0), torch.rand(1, K, L))
    turned, straight = Product(1, B, K, H, right_turned=True), Product(1, B, K, L)
    assert counter.products == {turned: 2, straight: 1}
    assert counter.by_part() == {"first": 2 * turned.flops, "second": straight.flops}
    assert counter.flops == 2 * (2 * B * K * H) + 2 * B * K * L


def test_only_products_count() -> None:
    assert _counted(lambda: (torch.rand(B, H) * 2).softmax(dim=-1).sum(), backward=False) == 0
