"""Layers with keys and values computed in advance equal torch's own layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from scenemem.zoo.transformer import attend_known, cross_layer, keys_and_values, last_of_layer

WIDTH, HEADS = 8, 2


def _hidden(rows: int, places: int) -> torch.Tensor:
    """Some places are hidden, never the last one."""
    hidden = torch.rand(rows, places) < 0.4
    hidden[:, -1] = False
    return hidden


@pytest.mark.parametrize("seed", range(3))
def test_known_keys_and_values_change_nothing(seed: int) -> None:
    torch.manual_seed(seed)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    nn.init.normal_(attention.in_proj_bias)
    own = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    cross = nn.TransformerDecoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    tokens, source, hidden = torch.randn(4, 3, WIDTH), torch.randn(4, 6, WIDTH), _hidden(4, 6)

    expected = attention(tokens, source, source, key_padding_mask=hidden)
    found = attend_known(attention, tokens, keys_and_values(attention, source), hidden)
    torch.testing.assert_close(found, expected)
    last = own(source, src_key_padding_mask=hidden)[:, -1:]
    torch.testing.assert_close(last_of_layer(own, source, hidden), last)
    known = keys_and_values(cross.multihead_attn, source)
    attended = cross(tokens, source, memory_key_padding_mask=hidden)
    torch.testing.assert_close(cross_layer(cross, tokens, known, hidden), attended)
