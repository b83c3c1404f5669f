from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from scenemem.models.recurrence import gate_order, run_lstms

ENTERING, WIDTH = 3, 5
sizes = pytest.mark.parametrize(
    ("lstms", "steps", "rows"), [(1, 4, 3), (2, 7, 4), (3, 2, 1), (2, 1, 5), (1, 1, 1)]
)


def _lstms(number: int) -> list[nn.LSTM]:
    torch.manual_seed(number)
    lstms = [nn.LSTM(ENTERING, WIDTH).double() for _ in range(number)]
    for parameter in nn.ModuleList(lstms).parameters():
        nn.init.normal_(parameter)
    return lstms


def _run(lstms: list[nn.LSTM], inputs: Tensor) -> Tensor:
    """The states by the function under test.  inputs: (L, D, B, E)  ->  (L, D, B, W)"""
    entered = [
        inputs[:, number] @ gate_order(lstm.get_parameter("weight_ih_l0")).t()
        + gate_order(lstm.get_parameter("bias_ih_l0") + lstm.get_parameter("bias_hh_l0"))
        for number, lstm in enumerate(lstms)
    ]
    recurrent = torch.stack([gate_order(lstm.get_parameter("weight_hh_l0")) for lstm in lstms])
    return run_lstms(torch.stack(entered, dim=1), recurrent)


def _run_by_torch(lstms: list[nn.LSTM], inputs: Tensor) -> Tensor:
    return torch.stack([lstm(inputs[:, number])[0] for number, lstm in enumerate(lstms)], dim=1)


@sizes
def test_the_states_are_those_of_torch(lstms: int, steps: int, rows: int) -> None:
    modules, inputs = _lstms(lstms), torch.randn(steps, lstms, rows, ENTERING, dtype=torch.float64)
    torch.testing.assert_close(_run(modules, inputs), _run_by_torch(modules, inputs))


@sizes
def test_the_gradients_are_those_of_torch(lstms: int, steps: int, rows: int) -> None:
    """Of the inputs and of every weight, when every state matters."""
    modules = _lstms(lstms)
    inputs = torch.randn(steps, lstms, rows, ENTERING, dtype=torch.float64, requires_grad=True)
    matters = torch.randn(steps, lstms, rows, WIDTH, dtype=torch.float64)
    learned = [inputs, *nn.ModuleList(modules).parameters()]
    gradients = torch.autograd.grad((_run(modules, inputs) * matters).sum(), learned)
    expected = torch.autograd.grad((_run_by_torch(modules, inputs) * matters).sum(), learned)
    torch.testing.assert_close(gradients, expected)


def test_a_state_depends_on_what_came_before_only() -> None:
    entered = torch.randn(6, 2, 3, 4 * WIDTH)
    recurrent = torch.randn(2, 4 * WIDTH, WIDTH)
    states = run_lstms(entered, recurrent)
    torch.testing.assert_close(run_lstms(entered[:4], recurrent), states[:4])
    torch.testing.assert_close(run_lstms(entered[:, :, 1:2], recurrent), states[:, :, 1:2])
    torch.testing.assert_close(run_lstms(entered[:, 1:], recurrent[1:]), states[:, 1:])


def test_inputs_may_lie_in_memory_in_any_order_and_stay_as_they_are() -> None:
    """The encoder hands over (D, B, L, 4W), turned; autograd an expanded gradient."""
    turned = torch.randn(2, 3, 4, 4 * WIDTH, dtype=torch.float64, requires_grad=True)
    recurrent = torch.randn(2, 4 * WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)
    before = turned.detach().clone()
    plain = turned.detach().permute(2, 0, 1, 3).contiguous().requires_grad_()
    states, expected = run_lstms(turned.permute(2, 0, 1, 3), recurrent), run_lstms(plain, recurrent)
    torch.testing.assert_close(states, expected)
    gradients = torch.autograd.grad(states.sum(), [turned, recurrent])
    (entered, weights) = torch.autograd.grad((expected * torch.ones_like(expected)).sum(), [plain, recurrent])
    torch.testing.assert_close(gradients[0].permute(2, 0, 1, 3), entered)
    torch.testing.assert_close(gradients[1], weights)
    assert torch.equal(turned, before)


def test_gates_are_put_in_order() -> None:
    """From input, forget, candidate, output to input, forget, output, candidate."""
    rows = torch.arange(8)
    assert gate_order(rows).tolist() == [0, 1, 2, 3, 6, 7, 4, 5]
    table = torch.randn(8, 3)
    assert torch.equal(gate_order(table), table[gate_order(rows)])
