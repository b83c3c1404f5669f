"""Self-Monitoring (Ma 2019 ICLR): co-grounding and a progress monitor.

Words and candidates are grounded with the same state, and both groundings decide:

    a_l = softmax_l(x_l . W_x h),     x^ = sum_l a_l x_l
    b_k = softmax_k(g(u_k) . W_v h),  v^ = sum_k b_k g(u_k)
    logit_k = g(u_k) . W_a [x^, h_t],  g(u) = ReLU(norm(W u)), stop is the row u = 0

The monitor reads how the words were attended to and estimates how much of the way is done:

    p_t = tanh(w [a, sigmoid(W [h, v^]) * tanh(c_t)]),  target (d_0 - d_t) / d_0, and 1 within 3 m of the goal

As published the groundings use h_{t-1} and are read by the LSTM itself (``co_grounded``). On the common core
they are computed from its state h, and c_t is a layer of it. Read in the released code, which weighs the
first decision twice and whose monitor and position code count words from the last one; here all decisions
weigh the same, and words count from the first. Walks are greedy: progress inference, which steps into the
likeliest neighbours, and back unless the monitor rose, is not built.

Shape letters: X observations, R decision steps, K candidate slots, A width of an embedded action, H state
width, L words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import one_way_parts
from scenemem.zoo.panoramic import (
    ActionEmbedding,
    CoGroundedState,
    CoGroundedUpdater,
    EmbedsActions,
    ProgressMonitor,
    with_stop_option,
)
from scenemem.zoo.recipes import SystemConfig, published, shared


@dataclass(frozen=True)
class SelfMonitoringConfig(SystemConfig):
    """Settings of Self-Monitoring."""

    co_grounded: bool = False
    """the LSTM reads the grounded words and candidates, as published; False has the common recurrent core"""
    action_width: int = 256
    """width A of an embedded action"""
    monitor_words: int = 160
    """places of the attention the monitor reads; as many as an instruction may have words"""


class SelfMonitoring(EmbedsActions):
    """Scores candidates with grounded words, and estimates its progress."""

    config: SelfMonitoringConfig
    raw = False  # the published core in the form of Tactical Rewind

    def __init__(self, config: SelfMonitoringConfig, sizes: ext.DataSizes) -> None:
        width, inner = config.width, config.action_width
        parts, seen = None, inner
        if config.co_grounded:
            core = CoGroundedUpdater(sizes.visual, width, inner, raw=self.raw)
            parts, seen = one_way_parts(config, sizes, core, project=self.raw), core.seen_width
        super().__init__(config, sizes, parts)
        self.score_query = nn.Linear(2 * width, inner, bias=False)
        self.monitor = ProgressMonitor(width, seen, config.monitor_words)
        if not config.co_grounded:
            self.embed = ActionEmbedding(sizes.visual + ext.ANGLE_WIDTH, inner)
            self.word_query = nn.Linear(width, width, bias=False)
            self.candidate_query = nn.Linear(width, inner, bias=False)
            self.memory = nn.Linear(width, width)

    def ground(self, observations: ext.Observations) -> CoGroundedState:
        """The co-grounding of every observation; with the published core the state has it already."""
        state = observations.state
        if isinstance(state, CoGroundedState):
            return state
        hidden = state.hidden * observations.decision_mask
        text, attention = observations.instructions.attend(self.word_query(hidden))
        embedded = observations.cached(self.embedded)
        options = with_stop_option(observations.candidates.mask)
        weights = ext.masked_softmax(ext.dots(embedded, self.candidate_query(hidden)), options)
        seen = torch.bmm(weights.unsqueeze(1), embedded).squeeze(1)
        cell = self.memory(hidden)
        return CoGroundedState(hidden, cell, hidden, text, seen, attention, observations.view)

    def progress(self, observations: ext.Observations) -> Tensor:
        """The monitor's p of every observation  ->  (X,)"""
        found = observations.cached(self.ground)
        progress: Tensor = self.monitor(found.word_attention, found.before, found.seen, found.cell)
        return progress

    def query(self, observations: ext.Observations) -> Tensor:
        """W_a [x^, h_t]  ->  (X, A)"""
        hidden = observations.state.hidden * observations.decision_mask
        query: Tensor = self.score_query(torch.cat([observations.cached(self.ground).text, hidden], dim=-1))
        return query

    def action_logits(self, observations: ext.Observations) -> Tensor:
        """(X, K + 1)"""
        return ext.dots(observations.cached(self.embedded), observations.cached(self.query))

    def score(self, point: ext.DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        return point.per_observation(self.action_logits)

    def heads(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The critic's value, and the progress: (X,) each"""
        return {**super().heads(observations), "progress": observations.cached(self.progress)}

    def word_attention(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The textual grounding, for things and directions alike  ->  name: (X, L)"""
        attention = observations.cached(self.ground).word_attention
        return {"perception": attention, "action": attention}

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The grounded words, and the progress."""
        progress = point.observations.cached(self.progress)[point.row]
        return ext.Explanation(self.words_at(point), numbers={"progress": progress})


AGENTS = {"self-monitoring": ext.AgentSpec(SelfMonitoring, SelfMonitoringConfig)}
ROWS = {"self-monitoring": shared("self-monitoring", SelfMonitoringConfig, {"progress_metres": 0.5})}
AS_PUBLISHED = published(
    "self-monitoring",
    SelfMonitoringConfig(width=512, feature_dropout=0.0, co_grounded=True, action_width=1024),
    {"student_forcing": 0.5, "progress_metres": 0.5},
    iterations=60_000,
)
"""Without augmentation, which the paper adds by pre-training on described paths."""
