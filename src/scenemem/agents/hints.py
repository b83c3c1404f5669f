"""Frontier hints: plain facts about every node that the paper's frontier scores do not have (an option).

Shape letters: R frontier decisions, N remembered places, K neighbour slots, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

_FACTS = 5
_WORST = -10.0  # floor for remembered log-probabilities


@dataclass(frozen=True)
class NodeFacts:
    """What is known about the nodes of R memories."""

    here: Tensor  # (R,) node the lane stands at
    count: Tensor  # (R,) known nodes
    walk: Tensor  # (R, N) metres to walk there
    # log-probabilities of the neighbours and of stopping when last there, without what the memory said then
    remembered: Tensor  # (R, N, K + 1)
    open: Tensor  # (R, N, K) bool, neighbours still unvisited

    def columns(self) -> Tensor:
        """(R, N, 5): is it here, how far, how long ago found, best open neighbour, stopping there"""
        nodes = torch.arange(self.walk.shape[1], device=self.walk.device)
        known = nodes < self.count.unsqueeze(1)
        is_here = (nodes == self.here.unsqueeze(1)).to(self.walk.dtype)
        age = (self.count.unsqueeze(1) - 1 - nodes).to(self.walk.dtype)
        best_open = self.remembered[..., :-1].masked_fill(~self.open, _WORST).amax(dim=-1)
        stopping = self.remembered[..., -1]
        facts = [
            is_here,
            self.walk / 10.0,
            age / 10.0,
            best_open.clamp_min(_WORST),
            stopping.clamp_min(_WORST),
        ]
        return torch.stack(facts, dim=-1).masked_fill(~known.unsqueeze(-1), 0.0)


class FrontierHints(nn.Module):
    """A small score from the facts and the state: W_2 tanh(W_1 [facts, W_0 h])."""

    def __init__(self, width: int, inner: int = 32) -> None:
        super().__init__()
        self.state = nn.Linear(width, inner)
        self.facts = nn.Linear(_FACTS, inner, bias=False)
        self.score = nn.Linear(inner, 1, bias=False)

    def forward(self, state: Tensor, facts: NodeFacts) -> Tensor:
        """state: (R, H)  ->  (R, N)"""
        inner = torch.tanh(self.state(state).unsqueeze(1) + self.facts(facts.columns()))
        score: Tensor = self.score(inner)
        return score.squeeze(-1)
