"""Another message passing: the paper's agent, whose nodes attend to their neighbours instead of summing them.

    m_v = sum_u a_vu s_u,   a_vu = softmax_u(W s_v . s_u) over the neighbours u of v,   s_v <- GRU(m_v, s_v)

One class, handed to ``SSM``; grounding, reading and decisions stay. Train it with:

    scenemem train examples/attention_memory.py:ssm-attention --iterations 300

Shape letters: R memories, N nodes, S node states, W their width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from scenemem.extend import AGENTS, PRESETS, SSM, AgentSpec, MemoryGraph, SSMConfig, masked_softmax


class AttentionMessages(nn.Module):
    """Message passing with attention; a node without neighbours, the first of a walk, hears 0."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.query = nn.Linear(width, width, bias=False)
        self.update = nn.GRUCell(width, width)

    def forward(self, states: Tensor, graph: MemoryGraph) -> Tensor:
        """(S, W)  ->  (S, W)"""
        for _ in range(self.steps):
            nodes = graph.padded(states)  # (R, N, W)
            scores = torch.bmm(graph.padded(self.query(states)), nodes.transpose(1, 2))
            heard = torch.bmm(masked_softmax(scores, graph.edge), nodes)[graph.row, graph.node]
            states = self.update(heard, states)
        return states


AGENTS.register("ssm-attention", AgentSpec(partial(SSM, messages=AttentionMessages), SSMConfig))
PRESETS.register("ssm-attention", replace(PRESETS["ssm"], agent="ssm-attention"))
