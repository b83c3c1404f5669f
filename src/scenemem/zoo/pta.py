"""PTA, Perceive Transform and Act (Landi 2020): Transformers over words, views and the past, no recurrence.

All 36 views attend to each other and to the words. The past is a sequence of what earlier decisions were made
from. Its last token, after attention to the whole past, attends to the words and to the views, and both
together decide:

    V = views after self-attention and attention to the words
    q = last of self-attention(past),   c_t = W [att(q; words), att(q; V)]
    logit_k = ReLU(W v_k) . c_t, stop is the row v = 0

Read in the released code. Differences: its low-level actions are not built; stop words stay; options are the
neighbours of here instead of views of which the nearest neighbour wins, and stop's row has a bias; words and
views are attended to by one layer without feed-forward, where the release has two full ones, and layers drop
nothing; word vectors learn; the learning rate falls along the common cosine instead of when validation stands
still. Fidelity as a reward: ``--learning.reward.rule ndtw``.

Shape letters: M episodes that observe, X observations, R decision steps, K candidate slots, S remembered
steps, W token width, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import sinusoids
from scenemem.zoo.panoramic import view_angles
from scenemem.zoo.recipes import STUDENT, published, shared
from scenemem.zoo.transformer import TokenConfig, token_parts


@dataclass(frozen=True)
class PTAConfig(TokenConfig):
    """Settings of PTA."""

    map_width: int = 128
    """width W of the tokens"""
    history: int = 40
    """S, steps of the past that are attended to"""


@dataclass(frozen=True)
class PastState(ext.State):
    """The context c_t, and the tokens of the past."""

    past: Tensor  # (B, S, W) the newest last
    count: Tensor  # (B,) tokens of the past so far
    word_attention: Tensor  # (B, L)

    @property
    def attention(self) -> dict[str, Tensor]:
        """The words the last token of the past attends to."""
        return {"perception": self.word_attention, "action": self.word_attention}


class PerceiveTransform(ext.StateUpdater):
    """One decision's context from words, views and the past."""

    def __init__(self, config: PTAConfig, visual: int) -> None:
        super().__init__()
        width, heads, text = config.map_width, config.heads, config.width
        self.width, self.inner, self.window = config.width, width, config.history
        self.text = nn.Sequential(nn.Linear(text, width), nn.LayerNorm(width))
        self.view = nn.Linear(visual, width)
        self.angle = nn.Linear(4, width)
        self.views = nn.TransformerDecoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.past = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.to_words = nn.MultiheadAttention(width, heads, batch_first=True)
        self.to_views = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.join = nn.Linear(2 * width, text)
        self.start = nn.Parameter(torch.randn(width) * 0.1)
        self.remember = nn.Linear(text, width)

    def mask_widths(self) -> dict[str, int]:
        """One mask, on the views."""
        return {"views": self.inner}

    def initial_state(self, instructions: ext.Instructions) -> PastState:
        """No past, the summary of the instruction."""
        hidden = instructions.hidden
        return PastState(
            hidden,
            hidden.new_zeros(len(hidden), self.window, self.inner),
            torch.zeros_like(hidden[:, 0], dtype=torch.long),
            torch.zeros_like(instructions.context[..., 0]),
        )

    def forward(self, state: PastState, observation: ext.Observation) -> PastState:
        """One decision's context."""
        words, padding = observation.per_instruction(self.words), ~observation.instructions.mask
        angles = self.angle(view_angles(observation.view))
        views = self.view(observation.panorama * observation.masks.feature) + angles
        views = views * observation.masks["views"].unsqueeze(1)
        views = self.views(views, words, memory_key_padding_mask=padding)

        first = (observation.previous < 0).unsqueeze(1)
        newest = torch.where(first, self.start, self.remember(state.hidden))  # the last context, if any
        past = torch.cat([state.past[:, 1:], newest.unsqueeze(1)], dim=1)
        count = (state.count + 1).clamp_max(self.window)
        longest = int(count.max())  # places before it are empty in all episodes
        empty = torch.arange(longest, device=past.device) < longest - count.unsqueeze(1)
        coded = (past + sinusoids(self.window, self.inner).to(past))[:, -longest:]
        query = self.past(coded, src_key_padding_mask=empty)[:, -1:]
        read, attention = self.to_words(query, words, words, key_padding_mask=padding)
        seen, _ = self.to_views(query, views, views, need_weights=False)
        of_words, of_views = self.norms
        both = torch.cat([of_words(query + read), of_views(query + seen)], dim=-1)
        context = self.join(both).squeeze(1)
        return PastState(context, past, count, attention.squeeze(1))

    def words(self, instructions: ext.Instructions) -> Tensor:
        """(B, L, W)"""
        words: Tensor = self.text(instructions.context)
        return words


class PTA(ext.Agent):
    """Decides from a context that Transformers made."""

    config: PTAConfig

    def __init__(self, config: PTAConfig, sizes: ext.DataSizes) -> None:
        parts = token_parts(config, sizes, lambda _, data: PerceiveTransform(config, data.visual))
        super().__init__(config, sizes, parts)
        self.view = nn.Linear(sizes.visual, config.width)
        self.angle = nn.Linear(4, config.width, bias=False)

    def score(self, point: ext.DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        context, seen = point.state.hidden * point.mask("decision"), point.candidates()
        views = self.view(seen.visual * point.feature_mask) + self.angle(seen.orientation)
        stop = self.view.bias.expand(len(views), 1, -1)
        return ext.dots(torch.relu(torch.cat([views, stop], dim=1)), context)


AGENTS = {"pta": ext.AgentSpec(PTA, PTAConfig)}
ROWS = {"pta": shared("pta", PTAConfig)}
AS_PUBLISHED = published(
    "pta",
    PTAConfig(
        word_width=300, width=512, dropout=0.1, feature_dropout=0.0, map_width=512, heads=8, text_layers=1
    ),
    STUDENT,
    batch=32,
    iterations=60_000,
    word_vectors=True,
)
