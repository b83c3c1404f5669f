"""Another recurrent core: the paper's agent with a transformer over the last observations instead of an LSTM.

A state updater is one part; everything else of ``SSM`` - memory, grounding, reading, decisions - stays:

    scenemem train examples/transformer_updater.py:ssm-transformer --iterations 300

Shape letters: M episodes that observe, S remembered observations, D visual columns, H state width, L words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from scenemem.extend import (
    AGENTS,
    PRESETS,
    SSM,
    AgentSpec,
    DataSizes,
    Instructions,
    ModelConfig,
    Observation,
    SSMConfig,
    State,
    StateUpdater,
    dots,
)

WINDOW = 16  # observations the transformer looks back at
HEADS = 4


@dataclass(frozen=True)
class WindowState(State):
    """The hidden state, and the tokens of the last observations."""

    tokens: Tensor  # (B, S, H) the newest last
    count: Tensor  # (B,) observations so far


class TransformerUpdater(StateUpdater):
    """h_t = tanh(W [words, x_t]), x_t the last output of a transformer over the last S observations.

    A token is what the state attends to in the panorama, and the view the agent faces.
    """

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        super().__init__()
        self.width = config.width
        self.view_query = nn.Linear(config.width, sizes.visual, bias=False)
        self.token = nn.Linear(2 * sizes.visual, config.width)
        self.position = nn.Parameter(torch.zeros(WINDOW, config.width))
        self.layer = nn.TransformerEncoderLayer(
            config.width, HEADS, 2 * config.width, dropout=0.0, batch_first=True
        )
        self.words = nn.MultiheadAttention(config.width, HEADS, batch_first=True)
        self.join = nn.Linear(2 * config.width, config.width)

    def mask_widths(self) -> dict[str, int]:
        """One dropout mask, on the token."""
        return {"token": self.width}

    def initial_state(self, instructions: Instructions) -> WindowState:
        """The summary of the instruction, and an empty window."""
        hidden = instructions.hidden
        empty = hidden.new_zeros(len(hidden), WINDOW, self.width)
        return WindowState(hidden, empty, torch.zeros_like(hidden[:, 0], dtype=torch.long))

    def forward(self, state: WindowState, observation: Observation) -> WindowState:
        """One update."""
        panorama, feature_mask = observation.panorama, observation.masks.feature
        attention = dots(panorama, self.view_query(state.hidden) * feature_mask).softmax(dim=-1)  # (M, 36)
        attended = torch.bmm(attention.unsqueeze(1), panorama).squeeze(1)
        row = torch.arange(len(panorama), device=panorama.device)
        ahead = panorama[row, observation.view]
        token = self.token(torch.cat([attended * feature_mask, ahead * feature_mask], dim=-1))
        token = token * observation.masks["token"]
        tokens = torch.cat([state.tokens[:, 1:], token.unsqueeze(1)], dim=1)  # (M, S, H)
        count = state.count + 1
        empty = torch.arange(WINDOW, device=count.device) < WINDOW - count.unsqueeze(1)
        newest = self.layer(tokens + self.position, src_key_padding_mask=empty)[:, -1:]  # (M, 1, H)
        instructions = observation.instructions
        words, _ = self.words(
            newest, instructions.context, instructions.context, key_padding_mask=~instructions.mask
        )
        hidden = torch.tanh(self.join(torch.cat([words, newest], dim=-1))).squeeze(1)
        return WindowState(hidden, tokens, count)


def build(config: SSMConfig, sizes: DataSizes) -> SSM:
    """The paper's agent with another recurrent core."""
    return SSM(config, sizes, updater=TransformerUpdater)


AGENTS.register("ssm-transformer", AgentSpec(build, SSMConfig))
PRESETS.register("ssm-transformer", replace(PRESETS["ssm"], agent="ssm-transformer"))
