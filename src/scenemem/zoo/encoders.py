"""Instruction encoders of published systems: a one-way LSTM and a Transformer.

They stand where ``InstructionEncoder`` stands and give the same record. Shape letters: B texts, L words of
the longest, H width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from scenemem.agents.build import AgentModules, DataSizes, ModelConfig, lstm_modules
from scenemem.errors import SettingError
from scenemem.models.navigator import InstructionEncoder, Instructions, StateUpdater


class OtherEncoder(InstructionEncoder):
    """What a one-way LSTM and a Transformer share: an embedding, and dropout of the encoding."""

    def __init__(self, config: ModelConfig, sizes: DataSizes) -> None:
        nn.Module.__init__(self)  # without the two LSTMs of the usual encoder
        self.width, self.dropout = config.width, config.dropout
        self.embedding = nn.Embedding(sizes.words, config.word_width, padding_idx=sizes.padding)

    def dropout_mask(self, texts: int) -> Tensor:
        """One mask per text for all its words; ones in evaluation mode  ->  (B, H)"""
        ones = self.embedding.weight.new_ones(texts, self.width)
        return nn.functional.dropout(ones, self.dropout, self.training)


class OneWayEncoder(OtherEncoder):
    """x_l = LSTM(word_l, x_{l+1}), read last to first; c_0 is the last cell, h_0 the last state.

    Args:
        project: h_0 = tanh(W x_last) instead of x_last.
    """

    def __init__(self, config: ModelConfig, sizes: DataSizes, *, project: bool) -> None:
        super().__init__(config, sizes)
        self.lstm = nn.LSTM(config.word_width, config.width, batch_first=True)
        self.initial_hidden = nn.Linear(config.width, config.width) if project else None  # type: ignore[assignment]

    def forward(self, tokens: Tensor, lengths: Tensor, dropout: Tensor | None = None) -> Instructions:
        """tokens: (B, L) int64  lengths: (B,) int64  dropout: (B, H) mask; nothing is dropped without it"""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        length = lengths.to(tokens.device).unsqueeze(-1)
        mask = place < length
        order = torch.where(mask, length - 1 - place, place)
        entered = self.embedding(tokens.gather(1, order))
        packed = pack_padded_sequence(entered, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, (hidden, cell) = self.lstm(packed)
        context, _ = pad_packed_sequence(states, batch_first=True, total_length=tokens.shape[1])
        context = context.gather(1, order.unsqueeze(-1).expand_as(context))  # in the order of the text
        first = hidden[0] if self.initial_hidden is None else torch.tanh(self.initial_hidden(hidden[0]))
        context = context if dropout is None else context * dropout.unsqueeze(1)
        return Instructions(context, mask, first, cell[0], tokens)


class TransformerEncoder(OtherEncoder):
    """X = Transformer(words + positions); h_0 = tanh(W x_first), c_0 = 0."""

    def __init__(self, config: ModelConfig, sizes: DataSizes, layers: int, heads: int) -> None:
        super().__init__(config, sizes)
        width = config.width
        if width % heads:
            raise SettingError(f"width must be a multiple of the {heads} heads, got {width}")
        self.enter = nn.Sequential(nn.Linear(config.word_width, width), nn.LayerNorm(width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.initial_hidden = nn.Linear(width, width)

    def forward(self, tokens: Tensor, lengths: Tensor, dropout: Tensor | None = None) -> Instructions:
        """tokens: (B, L) int64  lengths: (B,) int64  dropout: (B, H) mask; nothing is dropped without it"""
        mask = torch.arange(tokens.shape[1], device=tokens.device) < lengths.to(tokens.device).unsqueeze(-1)
        entered = self.enter(self.embedding(tokens))
        context = entered + sinusoids(tokens.shape[1], self.width).to(entered)
        if dropout is not None:
            context = context * dropout.unsqueeze(1)
        for layer in self.layers:
            context = layer(context, src_key_padding_mask=~mask)
        hidden = torch.tanh(self.initial_hidden(context[:, 0]))
        return Instructions(context, mask, hidden, torch.zeros_like(hidden), tokens)


def one_way_parts(
    config: ModelConfig, sizes: DataSizes, core: StateUpdater, *, project: bool = True
) -> AgentModules:
    """A recurrent core of its own, and an LSTM that reads the words last to first."""
    encoder = OneWayEncoder(config, sizes, project=project)
    return AgentModules(encoder, core, lstm_modules(config, sizes).critic)


def usual_parts(config: ModelConfig, sizes: DataSizes, core: StateUpdater | None = None) -> AgentModules:
    """The usual parts; ``core`` may be another one."""
    usual = lstm_modules(config, sizes)
    # drawn after the other parts, so that a seed begins with the weights it always had
    encoder = InstructionEncoder(sizes.words, config.word_width, config.width, config.dropout, sizes.padding)
    return AgentModules(encoder, core or usual.updater, usual.critic)


def sinusoids(length: int, width: int) -> Tensor:
    """Position codes: sin and cos of the position at wavelengths up to 10,000  ->  (length, width)"""
    place = torch.arange(length).unsqueeze(1)
    frequency = torch.exp(torch.arange(0, width, 2) * (-torch.log(torch.tensor(10_000.0)) / width))
    angle = place * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]
