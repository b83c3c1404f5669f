from __future__ import annotations

import pytest
import torch
from scenemem.models.recurrence import gate_order, run_lstms
from torch import Tensor, nn

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
    """The states by the function under test, every input a row of its own.

    inputs: (D, L, B, E)  ->  (D, L, B, W)
    """
    entering = [
        inputs[number].flatten(0, 1) @ gate_order(lstm.get_parameter("weight_ih_l0")).t()
        + gate_order(lstm.get_parameter("bias_ih_l0") + lstm.get_parameter("bias_hh_l0"))
        for number, lstm in enumerate(lstms)
    ]
    recurrent = torch.stack([gate_order(lstm.get_parameter("weight_hh_l0")) for lstm in lstms])
    which = torch.arange(inputs[..., 0].numel()).view(inputs.shape[:3])
    return run_lstms(torch.cat(entering), which, recurrent)


def _run_by_torch(lstms: list[nn.LSTM], inputs: Tensor) -> Tensor:
    return torch.stack([lstm(inputs[number])[0] for number, lstm in enumerate(lstms)])


@sizes
def test_the_states_are_those_of_torch(lstms: int, steps: int, rows: int) -> None:
    modules, inputs = _lstms(lstms), torch.randn(lstms, steps, rows, ENTERING, dtype=torch.float64)
    torch.testing.assert_close(_run(modules, inputs), _run_by_torch(modules, inputs))


@sizes
def test_the_gradients_are_those_of_torch(lstms: int, steps: int, rows: int) -> None:
    """Of the inputs and of every weight, when every state matters."""
    modules = _lstms(lstms)
    inputs = torch.randn(lstms, steps, rows, ENTERING, dtype=torch.float64, requires_grad=True)
    matters = torch.randn(lstms, steps, rows, WIDTH, dtype=torch.float64)
    learned = [inputs, *nn.ModuleList(modules).parameters()]
    gradients = torch.autograd.grad((_run(modules, inputs) * matters).sum(), learned)
    expected = torch.autograd.grad((_run_by_torch(modules, inputs) * matters).sum(), learned)
    torch.testing.assert_close(gradients, expected)


@pytest.fixture
def shared() -> tuple[Tensor, Tensor, Tensor]:
    """Five different inputs that enter two LSTMs again and again, and one that never does."""
    torch.manual_seed(0)
    entering = torch.randn(6, 4 * WIDTH, dtype=torch.float64, requires_grad=True)
    recurrent = torch.randn(2, 4 * WIDTH, WIDTH, dtype=torch.float64, requires_grad=True)
    return entering, torch.randint(0, 5, (2, 6, 3)), recurrent


def test_a_state_depends_on_what_came_before_only(shared: tuple[Tensor, Tensor, Tensor]) -> None:
    entering, which, recurrent = shared
    states = run_lstms(entering, which, recurrent)
    torch.testing.assert_close(run_lstms(entering, which[:, :4], recurrent), states[:, :4])
    torch.testing.assert_close(run_lstms(entering, which[:, :, 1:2], recurrent), states[:, :, 1:2])
    torch.testing.assert_close(run_lstms(entering, which[1:], recurrent[1:]), states[1:])


def test_equal_inputs_may_be_given_once(shared: tuple[Tensor, Tensor, Tensor]) -> None:
    """Values and gradients are those of inputs written out; what never enters has none."""
    entering, which, recurrent = shared
    every = torch.arange(which.numel()).view_as(which)
    states = run_lstms(entering, which, recurrent)
    expected = run_lstms(entering[which.flatten()], every, recurrent)
    torch.testing.assert_close(states, expected)

    matters = torch.randn_like(expected)
    gradients = torch.autograd.grad((states * matters).sum(), [entering, recurrent])
    torch.testing.assert_close(
        gradients, torch.autograd.grad((expected * matters).sum(), [entering, recurrent])
    )
    assert not gradients[0][5].any()


def test_the_gradient_may_lie_in_memory_in_any_order_and_the_inputs_stay_as_they_are(
    shared: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Autograd hands over expanded and turned gradients."""
    entering, _, recurrent = shared
    before = entering.detach().clone()
    plain, matters = torch.ones(2, 6, 3, WIDTH, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    turned = torch.ones(3, WIDTH, 2, 6, dtype=torch.float64).permute(2, 3, 0, 1)
    expected = torch.autograd.grad(run_lstms(*shared), [entering, recurrent], plain)
    for gradient in (turned, matters.expand_as(plain)):
        found = torch.autograd.grad(run_lstms(*shared), [entering, recurrent], gradient)
        torch.testing.assert_close(found, expected)
    assert torch.equal(entering, before)


def test_gates_are_put_in_order() -> None:
    """From input, forget, candidate, output to input, forget, output, candidate."""
    rows = torch.arange(8)
    assert gate_order(rows).tolist() == [0, 1, 2, 3, 6, 7, 4, 5]
    table = torch.randn(8, 3)
    assert torch.equal(gate_order(table), table[gate_order(rows)])
