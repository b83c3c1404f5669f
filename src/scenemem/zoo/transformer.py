"""Transformer layers for tokens of decision steps: self-attention with a bias, and attention to the words.

Keys and values of the words are computed once per episode. Shape letters: R decision steps, T tokens of each,
L words, S things attended to, H width of words, W width of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from scenemem.agents.build import AgentModules, DataSizes, MakeUpdater, lstm_modules
from scenemem.errors import SettingError
from scenemem.zoo.encoders import TransformerEncoder
from scenemem.zoo.recipes import SystemConfig


@dataclass(frozen=True)
class TokenConfig(SystemConfig):
    """Settings of agents that read tokens."""

    map_width: int = 64
    """width W of the tokens"""
    heads: int = 4
    """attention heads of every layer"""
    text_layers: int = 0
    """layers of a Transformer over the words; 0 keeps the common LSTM"""
    may_be_0: ClassVar[tuple[str, ...]] = ("text_layers",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.map_width % self.heads or self.map_width % 2:
            raise SettingError(f"map_width must be even and a multiple of heads, got {self.map_width}")


def token_parts(config: TokenConfig, sizes: DataSizes, core: MakeUpdater | None = None) -> AgentModules:
    """The usual parts, with a Transformer over the words if it has layers."""
    parts = lstm_modules(config, sizes, core)
    if not config.text_layers:
        return parts
    encoder = TransformerEncoder(config, sizes, config.text_layers, config.heads)
    return AgentModules(encoder, parts.updater, parts.critic)


class MultiHeadAttention(nn.Module):
    """Multi-head attention of tokens to other tokens, or to words."""

    def __init__(self, width: int, source: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(source, width)
        self.value = nn.Linear(source, width)
        self.out = nn.Linear(width, width)

    def keys_and_values(self, source: Tensor) -> Tensor:
        """What tokens need of a source they attend to.  (R, S, H)  ->  (R, S, 2W)"""
        return torch.cat([self.key(source), self.value(source)], dim=-1)

    def forward(self, tokens: Tensor, known: Tensor, bias: Tensor) -> Tensor:
        """tokens: (R, T, W)  known: (R, S, 2W) keys and values  bias: (R, T or 1, S), -inf where hidden

        ->  (R, T, W)
        """
        query, key, value = (self._split(part) for part in (self.query(tokens), *known.chunk(2, dim=-1)))
        attended = scaled_dot_product_attention(query, key, value, attn_mask=bias.unsqueeze(1))
        joined: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return joined

    def weights(self, tokens: Tensor, known: Tensor, bias: Tensor) -> Tensor:
        """The weights, averaged over heads, for viewers  ->  (R, T, S)"""
        query, key = self._split(self.query(tokens)), self._split(known.chunk(2, dim=-1)[0])
        scores = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
        averaged: Tensor = (scores + bias.unsqueeze(1)).softmax(dim=-1).mean(dim=1)
        return averaged

    def _split(self, tokens: Tensor) -> Tensor:
        """(R, T, W)  ->  (R, heads, T, W / heads)"""
        return tokens.view(*tokens.shape[:2], self.heads, -1).transpose(1, 2)


class CrossModalLayer(nn.Module):
    """Tokens attend to the words, then to each other, then pass a feed-forward net; each adds and norms."""

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.words = MultiHeadAttention(width, text, heads)
        self.tokens = MultiHeadAttention(width, width, heads)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, tokens: Tensor, bias: Tensor, words: Tensor, words_bias: Tensor) -> Tensor:
        """tokens: (R, T, W)  bias: (R, T or 1, T)  words: (R, L, 2W) keys and values  ->  (R, T, W)"""
        of_words, of_tokens, of_inner = self.norms
        tokens = of_words(tokens + self.words(tokens, words, words_bias))
        tokens = of_tokens(tokens + self.tokens(tokens, self.tokens.keys_and_values(tokens), bias))
        result: Tensor = of_inner(tokens + self.inner(tokens))
        return result


def hidden_bias(mask: Tensor) -> Tensor:
    """A bias that hides what is not there.  mask: (R, T) bool  ->  (R, 1, T)"""
    return torch.zeros_like(mask, dtype=torch.float).masked_fill(~mask, -torch.inf).unsqueeze(1)
