"""Transformer layers for tokens of decision steps: self-attention with a bias, and attention to the words.

Keys and values of the words are computed once per episode. Shape letters: R decision steps, T tokens of each,
L words, H width of words, W width of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from scenemem.errors import SettingError


@dataclass(frozen=True)
class Words:
    """The words that each decision step reads, as the layers want them: a key and a value for every layer."""

    known: tuple[Tensor, ...]  # (R, L, 2W), one per layer
    mask: Tensor  # (R, L) bool

    @property
    def bias(self) -> Tensor:
        """(R, 1, L) 0 at words, -inf at padding"""
        return hidden_bias(self.mask).to(self.known[0])


class Attention(nn.Module):
    """Multi-head attention of tokens to other tokens, or to words.

    Args:
        width: W of the tokens.
        source: width of what is attended to.
        heads: attention heads.
    """

    def __init__(self, width: int, source: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise SettingError(f"the width of a layer must be a multiple of its {heads} heads, got {width}")
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(source, width)
        self.value = nn.Linear(source, width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor, source: Tensor, bias: Tensor) -> Tensor:
        """tokens: (R, T, W)  source: (R, S, H)  bias: (R, T or 1, S), -inf where hidden  ->  (R, T, W)"""
        return self.attend(tokens, self.keys_and_values(source), bias)

    def keys_and_values(self, source: Tensor) -> Tensor:
        """What tokens need of a source they attend to.  (R, S, H)  ->  (R, S, 2W)"""
        return torch.cat([self.key(source), self.value(source)], dim=-1)

    def attend(self, tokens: Tensor, known: Tensor, bias: Tensor) -> Tensor:
        """tokens: (R, T, W)  known: (R, S, 2W) keys and values  bias: (R, T or 1, S)  ->  (R, T, W)"""
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
        rows, count, width = tokens.shape
        return tokens.view(rows, count, self.heads, width // self.heads).transpose(1, 2)


class CrossModalLayer(nn.Module):
    """Tokens attend to the words, then to each other, then pass a feed-forward net; each adds and norms.

    Args:
        width: W of the tokens.
        text: width H of the words.
        heads: attention heads.
    """

    def __init__(self, width: int, text: int, heads: int) -> None:
        super().__init__()
        self.words = Attention(width, text, heads)
        self.tokens = Attention(width, width, heads)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, tokens: Tensor, bias: Tensor, words: Tensor, words_bias: Tensor) -> Tensor:
        """tokens: (R, T, W)  bias: (R, T or 1, T)  words: (R, L, 2W) keys and values  ->  (R, T, W)"""
        of_words, of_tokens, of_inner = self.norms
        tokens = of_words(tokens + self.words.attend(tokens, words, words_bias))
        tokens = of_tokens(tokens + self.tokens(tokens, tokens, bias))
        result: Tensor = of_inner(tokens + self.inner(tokens))
        return result

    def word_weights(self, tokens: Tensor, words: Tensor, words_bias: Tensor) -> Tensor:
        """Which words the first token attends to, for viewers.  (R, T, W)  ->  (R, L)"""
        return self.words.weights(tokens[:, :1], words, words_bias).squeeze(1)


def keys_and_values(attention: nn.MultiheadAttention, source: Tensor) -> Tensor:
    """What tokens that attend to ``source`` (B, S, W) need of it, computed in advance  ->  (B, S, 2W)"""
    width = source.shape[-1]
    known: Tensor = nn.functional.linear(
        source, attention.in_proj_weight[width:], attention.in_proj_bias[width:]
    )
    return known


def attend_known(
    attention: nn.MultiheadAttention, tokens: Tensor, known: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """``attention(tokens, source, source)`` with ``known = keys_and_values(attention, source)``.

    tokens: (R, T, W)  known: (R, S, 2W)  hidden: (R, S) bool  ->  (R, T, W), weights (R, T, S)
    """
    width, heads = tokens.shape[-1], attention.num_heads
    query = nn.functional.linear(tokens, attention.in_proj_weight[:width], attention.in_proj_bias[:width])

    def split(part: Tensor) -> Tensor:
        return part.view(*part.shape[:2], heads, width // heads).transpose(1, 2)

    key, value = (split(part) for part in known.chunk(2, dim=-1))
    scores = split(query) @ key.transpose(2, 3) * (width // heads) ** -0.5
    weights = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(dim=-1)
    attended: Tensor = attention.out_proj((weights @ value).transpose(1, 2).flatten(2))
    return attended, weights.mean(dim=1)


def last_of_layer(layer: nn.TransformerEncoderLayer, tokens: Tensor, hidden: Tensor) -> Tensor:
    """``layer(tokens, src_key_padding_mask=hidden)[:, -1:]`` without what the layer says about the others.

    tokens: (R, T, W)  hidden: (R, T) bool  ->  (R, 1, W)
    """
    last = tokens[:, -1:]
    attended, _ = attend_known(layer.self_attn, last, keys_and_values(layer.self_attn, tokens), hidden)
    last = layer.norm1(last + attended)
    result: Tensor = layer.norm2(last + layer.linear2(torch.relu(layer.linear1(last))))
    return result


def cross_layer(layer: nn.TransformerDecoderLayer, tokens: Tensor, known: Tensor, hidden: Tensor) -> Tensor:
    """``layer(tokens, source, memory_key_padding_mask=hidden)``.

    ``known`` (R, S, 2W) are the ``keys_and_values`` of its attention to the source.

    tokens: (R, T, W)  hidden: (R, S) bool  ->  (R, T, W)
    """
    tokens = layer.norm1(tokens + layer.self_attn(tokens, tokens, tokens, need_weights=False)[0])
    tokens = layer.norm2(tokens + attend_known(layer.multihead_attn, tokens, known, hidden)[0])
    result: Tensor = layer.norm3(tokens + layer.linear2(torch.relu(layer.linear1(tokens))))
    return result


def hidden_bias(mask: Tensor) -> Tensor:
    """A bias that hides what is not there.  mask: (R, T) bool  ->  (R, 1, T)"""
    return torch.zeros_like(mask, dtype=torch.float).masked_fill(~mask, -torch.inf).unsqueeze(1)
