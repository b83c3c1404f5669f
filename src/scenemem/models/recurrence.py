"""Plain LSTMs over padded sequences; their hand-written gradient takes one product for all steps.

What enters the gates is computed outside, so that it can be shared between equal inputs.
Shape letters: D independent LSTMs side by side, L steps, B rows, W width of one LSTM.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gate_order(rows: Tensor) -> Tensor:
    """From the order of ``nn.LSTM`` to input, forget, output, candidate.  (4W, ...)  ->  (4W, ...)"""
    let_in, keep, candidate, let_out = rows.chunk(4)
    return torch.cat([let_in, keep, let_out, candidate])


def run_lstms(entered: Tensor, recurrent: Tensor) -> Tensor:
    """The states of D LSTMs that begin at 0; gates in the order input, forget, output, candidate.

    entered: (L, D, B, 4W) what enters the gates at every step, biases included
    recurrent: (D, 4W, W) the weights on the previous state  ->  (L, D, B, W)
    """
    states: Tensor = _Lstms.apply(entered, recurrent)  # type: ignore[no-untyped-call]
    return states


class _Lstms(torch.autograd.Function):
    """c = f * c' + i * g,  h = o * tanh(c)."""

    @staticmethod
    def forward(ctx: Any, entered: Tensor, recurrent: Tensor) -> Tensor:
        width = recurrent.shape[2]
        # each LSTM's steps lie together: a step is one block, and all steps of an LSTM are one matrix
        gates = entered.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        lstms, steps, rows = gates.shape[:3]
        cells, squashed, states = (entered.new_empty(lstms, steps, rows, width) for _ in range(3))
        weights = recurrent.transpose(1, 2)
        for step in range(steps):
            gate, cell = gates[:, step], cells[:, step]
            if step:
                gate.baddbmm_(states[:, step - 1], weights)
            gate[..., : 3 * width].sigmoid_()
            gate[..., 3 * width :].tanh_()
            let_in, keep, let_out, candidate = gate.chunk(4, dim=-1)
            torch.mul(let_in, candidate, out=cell)
            if step:
                cell.addcmul_(keep, cells[:, step - 1])
            torch.tanh(cell, out=squashed[:, step])
            torch.mul(let_out, squashed[:, step], out=states[:, step])
        ctx.save_for_backward(gates, cells, squashed, states, recurrent)
        return states.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        gates, cells, squashed, states, recurrent = ctx.saved_tensors
        sums = torch.empty_like(gates)
        state, cell = torch.zeros_like(states[:, 0]), torch.zeros_like(states[:, 0])
        for step in range(gates.shape[1] - 1, -1, -1):
            let_in, keep, let_out, candidate = gates[:, step].chunk(4, dim=-1)
            to_in, to_keep, to_out, to_candidate = sums[:, step].chunk(4, dim=-1)
            state = state + gradients[0][step]
            torch.mul(state * squashed[:, step], let_out * (1 - let_out), out=to_out)
            cell = cell + state * let_out * (1 - squashed[:, step].square())
            torch.mul(cell * candidate, let_in * (1 - let_in), out=to_in)
            torch.mul(cell * let_in, 1 - candidate.square(), out=to_candidate)
            if not step:
                to_keep.zero_()
                break
            torch.mul(cell * cells[:, step - 1], keep * (1 - keep), out=to_keep)
            cell = cell * keep
            state = torch.bmm(sums[:, step], recurrent)
        later = sums[:, 1:].flatten(1, 2)  # (D, (L - 1) * B, 4W)
        earlier = states[:, :-1].flatten(1, 2)
        return sums.transpose(0, 1), torch.bmm(later.transpose(1, 2), earlier)
