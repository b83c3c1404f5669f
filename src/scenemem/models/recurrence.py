"""Plain LSTMs over padded sequences; their hand-written gradient takes one product for all steps.

What enters the gates is computed outside, once for all equal inputs.
Shape letters: D independent LSTMs side by side, L steps, B rows, W width of one LSTM, U different inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scenemem.models.attention import rows_of


def gate_order(rows: Tensor) -> Tensor:
    """From the order of ``nn.LSTM`` to input, forget, output, candidate.  (4W, ...)  ->  (4W, ...)"""
    let_in, keep, candidate, let_out = rows.chunk(4)
    return torch.cat([let_in, keep, let_out, candidate])


def run_lstms(entering: Tensor, which: Tensor, recurrent: Tensor) -> Tensor:
    """The states of D LSTMs that begin at 0; gates in the order input, forget, output, candidate.

    entering: (U, 4W) what the different inputs bring into the gates, biases included
    which: (D, L, B) the input of every step, a row of ``entering``
    recurrent: (D, 4W, W) the weights on the previous state  ->  (D, L, B, W)
    """
    states: Tensor = _Lstms.apply(entering, which, recurrent)  # type: ignore[no-untyped-call]
    return states


class _Lstms(torch.autograd.Function):
    """c = f * c' + i * g,  h = o * tanh(c)."""

    @staticmethod
    def forward(ctx: Any, entering: Tensor, which: Tensor, recurrent: Tensor) -> Tensor:
        width = recurrent.shape[2]
        # each LSTM's steps lie together: a step is one block, and all steps of an LSTM are one matrix
        gates = rows_of(entering, which)
        lstms, steps, rows = gates.shape[:3]
        cells, squashed, states = (entering.new_empty(lstms, steps, rows, width) for _ in range(3))
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
        ctx.save_for_backward(which, gates, cells, squashed, states, recurrent)
        ctx.inputs = len(entering)
        return states

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        which, gates, cells, squashed, states, recurrent = ctx.saved_tensors
        sums, width = torch.empty_like(gates), recurrent.shape[2]
        state, cell = torch.zeros_like(states[:, 0]), torch.zeros_like(states[:, 0])
        for step in range(gates.shape[1] - 1, -1, -1):
            opened, candidate = gates[:, step].split_with_sizes([3 * width, width], dim=-1)
            let_in, keep, let_out = opened.chunk(3, dim=-1)
            in_slope, keep_slope, out_slope = (1 - opened).mul_(opened).chunk(3, dim=-1)
            to_in, to_keep, to_out, to_candidate = sums[:, step].chunk(4, dim=-1)
            state = state + gradients[0][:, step]
            torch.mul(state * squashed[:, step], out_slope, out=to_out)
            cell = cell + (state * let_out).mul_(1 - squashed[:, step].square())
            torch.mul(cell * candidate, in_slope, out=to_in)
            torch.mul(cell * let_in, 1 - candidate.square(), out=to_candidate)
            if not step:
                to_keep.zero_()
                break
            torch.mul(cell * cells[:, step - 1], keep_slope, out=to_keep)
            cell = cell * keep
            state = torch.bmm(sums[:, step], recurrent)
        later = sums[:, 1:].flatten(1, 2)  # (D, (L - 1) * B, 4W)
        earlier = states[:, :-1].flatten(1, 2)
        return _summed_by(which, sums, ctx.inputs), None, torch.bmm(later.transpose(1, 2), earlier)


def _summed_by(which: Tensor, sums: Tensor, inputs: int) -> Tensor:
    """The gradient of what different inputs bring: where the same one entered, added up.

    which: (D, L, B)  sums: (D, L, B, 4W)  ->  (U, 4W)
    """
    # text after text: rounding then does not depend on how the steps lie in memory
    place = torch.arange(which.numel(), device=which.device).view_as(which).transpose(1, 2).flatten()
    by_input = place[which.transpose(1, 2).flatten().argsort(stable=True)]
    many = torch.bincount(which.flatten(), minlength=inputs)
    return nn.functional.embedding_bag(by_input, sums.flatten(0, 2), many.cumsum(0) - many, mode="sum")
