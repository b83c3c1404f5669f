"""PTA, Perceive Transform and Act (Landi 2020): Transformers over words, views and the past, no recurrence.

All 36 views attend to each other and to the words. The past is a sequence: of what earlier decisions were
made from (high-level actions), or of the actions taken (low-level). Its last token, after attention to the
whole past, attends to the words and to the views, and both together decide:

    V = views after self-attention and attention to the words
    q = last of self-attention(past),   c_t = W [att(q; words), att(q; V)]
    high level: logit_k = ReLU(W v_k) . c_t, stop is the row v = 0;   low level: W c_t over six actions

Read in the released code. Differences: stop words stay; high-level options are the neighbours of here instead
of views of which the nearest neighbour wins, and stop's row has a bias; words and views are attended to by
one layer without feed-forward, where the release has two full ones, and layers drop nothing; word vectors
learn; the learning rate falls along the common cosine instead of when validation stands still. Fidelity as a
reward: ``--learning.reward.rule ndtw``. On the common recipe low-level actions have teachers as in
``student_forcing``.

Shape letters: M episodes that observe, X observations, R decision steps, K candidate slots, S remembered
steps, W token width, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import sinusoids
from scenemem.zoo.low_level import LOW_LEVEL, LowLevelActions, action_between
from scenemem.zoo.panoramic import view_angles
from scenemem.zoo.recipes import STUDENT, check_least, published, shared
from scenemem.zoo.student_forcing import ACTIONS, START, TURNS
from scenemem.zoo.transformer import TokenConfig, token_parts


@dataclass(frozen=True)
class PTAConfig(TokenConfig):
    """Settings of PTA."""

    low_level: bool = False
    """turn, tilt and step forward instead of choosing a neighbour"""
    map_width: int = 128
    """width W of the tokens"""
    history: int = 40
    """S, steps of the past that are attended to"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "history")


@dataclass(frozen=True)
class PastState(ext.State):
    """The context c_t, and the tokens of the past."""

    past: Tensor  # (B, S, W) the newest last
    count: Tensor  # (B,) tokens of the past so far
    word_attention: Tensor  # (B, L)
    faced: Tensor  # (B,) the view faced now

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
        self.low_level = config.low_level
        self.text = nn.Sequential(nn.Linear(text, width), nn.LayerNorm(width))
        self.view = nn.Linear(visual, width)
        self.angle = nn.Linear(4, width)
        self.views = nn.TransformerDecoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.past = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.to_words = nn.MultiheadAttention(width, heads, batch_first=True)
        self.to_views = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.join = nn.Linear(2 * width, text)
        if config.low_level:
            self.action = nn.Embedding(ACTIONS + 1, width)
        else:
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
            torch.zeros_like(hidden[:, 0], dtype=torch.long),
        )

    def forward(self, state: PastState, observation: ext.Observation) -> PastState:
        """One decision's context."""
        words, padding = observation.per_instruction(self.words), ~observation.instructions.mask
        angles = self.angle(view_angles(observation.view))
        views = self.view(observation.panorama * observation.masks.feature) + angles
        views = views * observation.masks["views"].unsqueeze(1)
        views = self.views(views, words, memory_key_padding_mask=padding)

        past = torch.cat([state.past[:, 1:], self._token(state, observation).unsqueeze(1)], dim=1)
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
        return PastState(context, past, count, attention.squeeze(1), observation.view)

    def words(self, instructions: ext.Instructions) -> Tensor:
        """(B, L, W)"""
        words: Tensor = self.text(instructions.context)
        return words

    def _token(self, state: PastState, observation: ext.Observation) -> Tensor:
        """The newest token of the past: the action taken, or the last context  ->  (M, W)"""
        first = observation.previous < 0
        if self.low_level:
            moved = observation.viewpoint != observation.previous
            taken = action_between(state.faced, observation.view, moved)
            token: Tensor = self.action(torch.where(first, START, taken))
            return token
        return torch.where(first.unsqueeze(1), self.start, self.remember(state.hidden))


class PTA(ext.Agent):
    """Decides from a context that Transformers made."""

    config: PTAConfig

    def __init__(self, config: PTAConfig, sizes: ext.DataSizes) -> None:
        parts = token_parts(config, sizes, lambda _, data: PerceiveTransform(config, data.visual))
        super().__init__(config, sizes, parts)
        self.follows_reference = not config.low_level
        if config.low_level:
            self.act = nn.Linear(config.width, ACTIONS)
        else:
            self.view = nn.Linear(sizes.visual, config.width)
            self.angle = nn.Linear(4, config.width, bias=False)

    def action_space(
        self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, learning: bool = False
    ) -> ext.ActionSpace:
        """The neighbours of here, or low-level actions."""
        if self.config.low_level:
            return LowLevelActions(world, episodes, max_decisions)
        return super().action_space(world, episodes, max_decisions, learning=learning)

    def score(self, point: ext.DecisionPoint) -> Tensor | dict[ext.DecisionType, Tensor]:
        """Actions: (R, K + 1), or low-level decisions: (R, 6)"""
        context = point.state.hidden * point.mask("decision")
        if self.config.low_level:
            return {LOW_LEVEL: self.act(context)}
        seen = point.candidates()
        views = self.view(seen.visual * point.feature_mask) + self.angle(seen.orientation)
        stop = self.view.bias.expand(len(views), 1, -1)
        return ext.dots(torch.relu(torch.cat([views, stop], dim=1)), context)


AGENTS = {"pta": ext.AgentSpec(PTA, PTAConfig)}
_OWN = PTAConfig(
    word_width=300, width=512, dropout=0.1, feature_dropout=0.0, map_width=512, heads=8, text_layers=1
)
ROWS = {
    "pta": shared("pta", PTAConfig),
    "pta-low": shared("pta", PTAConfig, low_level=True, **TURNS),
}
_COURSE: dict[str, Any] = {"batch": 32, "iterations": 60_000, "word_vectors": True}
_LOW = replace(_OWN, low_level=True)
AS_PUBLISHED = {
    **published("pta", _OWN, STUDENT, **_COURSE),
    **published("pta", _LOW, STUDENT, row="pta-low", decisions=30, labels="low_level", **_COURSE),
}
R4R_LABELS = {"pta-low": "low_level_path"}
