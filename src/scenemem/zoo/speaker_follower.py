"""Speaker-Follower (Fried 2018): the first panoramic follower, described paths, and pragmatic search.

The follower decides by an elementwise product of state and candidate,

    logit_k = w . ((W_1 h~_t) * (W_2 u_k)),   stop is the row u = 0

and as published h_t = LSTM([u_{t-1}, v_t], h_{t-1}) reads the action just taken and the views that h_{t-1}
attends to; words are read last to first. Read in the released code. On the common recipe w begins with ones,
a plain dot product as basic's: three random factors make scores so small that learning begins late.

It learns from paths that a speaker described beside the instructions of people, then from the latter alone:
the published row asks for ``--speaker`` or ``--augment``, and walks a batch of each where the release draws
one from both.

Pragmatic search: ``speaker-follower-search`` expands states best-first by the sum of log-probabilities and
keeps the best way into each place (the release: each place and direction), up to 40 places. Every visited
place n is a finished route, and in ``speaker-follower-pragmatic`` a speaker helps to choose among them:

    end at argmax_n  .95 S(n) / sd S + .05 F(n) / sd F

S the log-likelihood of a word of the instruction given the route to n, F the follower's log-probability of
that route and of stopping there. All that was walked to find the routes counts, and so does the way to the
chosen end; the release counts the chosen route (``chosen_route``, for a second column) unless it is asked for
the physical walk. Differences: the release's routes are 40 at which the search chose to stop, its deviations
are those of all routes of a split, here of one search; its speaker learns before, ours beside the follower
from the reference paths. A speaker of another run re-ranks sampled walks of any agent: ``scenemem eval RUN
--speaker RUN --candidates 8``.

Shape letters: X observations, R decision steps, N nodes, K candidate slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from scenemem.extend import (
    AGENTS,
    ANGLE_WIDTH,
    ENDING,
    LOSSES,
    MATCHING_CRITIC,
    NONE,
    Agent,
    AgentSpec,
    DataSizes,
    DecisionPoint,
    Environment,
    Explanation,
    FollowerUpdater,
    ModelConfig,
    Observations,
    Outputs,
    Parts,
    Rollout,
    SearchConfig,
    Searching,
    SettingError,
    SpeakerConfig,
    SpeakerNetwork,
    Stage,
    StateLog,
    candidate_actions,
    lstm_parts,
    match_of_routes,
    spelled,
    views_of_walk,
)
from scenemem.zoo.parts import navigator_words, one_way_parts, spelling_parts
from scenemem.zoo.recipes import SEARCH_WALK, published, shared

T = TypeVar("T")


@dataclass(frozen=True)
class FollowerConfig(ModelConfig, SearchConfig):
    """Settings of Speaker-Follower."""

    follower: bool = False
    """the published recurrent core, encoder and beginning; False has the common ones"""
    action_width: int = 256
    """width in which state and candidates are multiplied"""
    speaker_width: int = 0
    """width of the speaker that helps a long search to choose where to end; 0 has none"""
    speaker_weight: float = 0.95
    """share of the speaker in that choice; the follower has the rest"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action_width < 1:
            raise SettingError(f"action_width must be 1 or more, got {self.action_width}")
        if self.speaker_width and self.search != "long":
            raise SettingError(
                f"a speaker chooses among the ends of a long search, but search is '{self.search}'; "
                "set search to long or speaker_width to 0"
            )
        if not 0 <= self.speaker_weight <= 1:
            raise SettingError(f"speaker_weight must be in [0, 1], got {self.speaker_weight}")


class LocalFollower(Agent):
    """Scores candidates by products with the state."""

    config: FollowerConfig

    def __init__(self, config: FollowerConfig, sizes: DataSizes, parts: Parts) -> None:
        super().__init__(config, sizes, parts)
        self.of_state = nn.Linear(config.width, config.action_width)
        self.of_action = nn.Linear(sizes.visual + ANGLE_WIDTH, config.action_width)
        # what is added to all options alike changes nothing
        self.weigh = nn.Linear(config.action_width, 1, bias=False)
        if not config.follower:
            nn.init.ones_(self.weigh.weight)

    @classmethod
    def build(cls, config: FollowerConfig, sizes: DataSizes) -> LocalFollower:
        """Fresh weights."""
        spells = config.speaker_width > 0
        if not config.follower:
            return cls(config, sizes, (spelling_parts if spells else lstm_parts)(config, sizes))
        core = FollowerUpdater(sizes.visual, config.width, config.action_width)
        parts = one_way_parts(config, sizes, core, backwards=True, project=True, spells=spells)
        return cls(config, sizes, parts)

    def action_logits(self, observations: Observations) -> Tensor:
        """(X, K + 1)"""
        actions = candidate_actions(observations.candidates, observations.feature_mask)
        state = self.of_state(observations.state.hidden * observations.decision_mask)
        logits: Tensor = self.weigh(self.of_action(actions) * state.unsqueeze(1))
        return logits.squeeze(-1)

    def score(self, point: DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        return point.per_observation(self.action_logits)

    def explain(self, point: DecisionPoint) -> Explanation:
        """The words the recurrent core attends to."""
        return Explanation(navigator_words(self, point))


class SpeakerFollower(Searching, LocalFollower):  # type: ignore[misc]  # scores more than actions
    """The follower, which may search when it is evaluated, and ask a speaker where to end."""

    def __init__(self, config: FollowerConfig, sizes: DataSizes, parts: Parts) -> None:
        super().__init__(config, sizes, parts)
        self.speaker: SpeakerNetwork | None = None
        if config.speaker_width:
            speaker = SpeakerConfig(config.word_width, config.speaker_width, config.dropout)
            self.speaker = SpeakerNetwork(speaker, sizes.words, sizes.visual)

    def evaluate_actions(self, rollout: Rollout, log: StateLog, environment: Environment) -> Outputs:
        """With how well the speaker can tell the instruction from each walk, the same at all its steps."""
        outputs = super().evaluate_actions(rollout, log, environment)
        if self.speaker is None:
            return outputs
        tokens = spelled(log.instructions).tokens
        told = self.speaker.likelihood(views_of_walk(environment, rollout), log.masks.feature, tokens)
        match = told.per_word.unsqueeze(1).expand(-1, rollout.alive.shape[1])
        return Outputs(outputs.logits, {**outputs.heads, "match": match})

    def rank_ends(self, point: DecisionPoint, totals: Tensor) -> Tensor:
        """Speaker and follower on the route to every node; the speaker speaks only at the end  ->  (R, N)"""
        if self.speaker is None:
            return totals
        exists = point.memory().viewpoint != NONE
        row, node = (exists & (point.memory().note(ENDING) > 0)).nonzero().unbind(1)
        match = torch.zeros_like(totals).index_put(
            (row, node), match_of_routes(self.speaker, point, row, node)
        )
        weight = float(self.config.speaker_weight)
        return weight * standardised(match, exists) + (1 - weight) * standardised(totals, exists)

    def explain(self, point: DecisionPoint) -> Explanation:
        """The words and, with a speaker, how well it could tell the instruction from the route to here."""
        shown = super().explain(point)
        if self.speaker is None or point.graph is None:
            return shown
        rows = torch.arange(len(point.row), device=point.row.device)
        match = match_of_routes(self.speaker, point, rows, point.graph.here)
        return Explanation(shown.words, numbers={"speaker, per word": match})


def standardised(scores: Tensor, exists: Tensor) -> Tensor:
    """Scores of the nodes that exist, with mean 0 and deviation 1; 0 where all are equal, and at other nodes.

    scores: (R, N)  exists: (R, N) bool  ->  (R, N)
    """
    count = exists.sum(dim=1, keepdim=True)
    apart = (scores - (scores * exists).sum(dim=1, keepdim=True) / count) * exists
    variance = apart.square().sum(dim=1, keepdim=True) / count
    return apart / variance.clamp_min(1e-12).sqrt()  # the other way round, gradients at 0 are none


def chosen_route(walk: Sequence[T]) -> list[T]:
    """What the release counts of the walk of a search: the route on which it first came to its end."""
    came_from: dict[T, T] = {}
    for before, here in pairwise(walk):
        if here != walk[0]:
            came_from.setdefault(here, before)
    route = [walk[-1]]
    while route[-1] in came_from:
        route.append(came_from[route[-1]])
    return route[::-1]


SPEC = AgentSpec(SpeakerFollower.build, FollowerConfig)
_SHARED = shared("speaker-follower", FollowerConfig)
_SEARCH = {"search": "long", "priority": "log_probabilities"}
ROWS = {
    "speaker-follower": _SHARED,
    "speaker-follower-search": replace(_SHARED, model=replace(_SHARED.model, **_SEARCH), walk=SEARCH_WALK),
    "speaker-follower-pragmatic": replace(
        shared("speaker-follower", FollowerConfig, {"matching_critic": 1.0}, speaker_width=128, **_SEARCH),
        walk=SEARCH_WALK,
    ),
    "speaker-follower-as-published": published(
        "speaker-follower",
        FollowerConfig(word_width=300, width=512, feature_dropout=0.0, follower=True),
        (
            Stage(
                "described",
                share=5.0,
                losses={"student_forcing": 1.0},
                augmented={"student_forcing": 1.0},
            ),
            Stage("fine-tuning", share=2.0, losses={"student_forcing": 1.0}),
        ),
        iterations=70_000,
        word_vectors=True,
        batch=100,
        weight_decay=5e-4,
    ),
}
R4R = {"speaker-follower": "path"}
AS_RELEASED = {"speaker-follower-search": chosen_route, "speaker-follower-pragmatic": chosen_route}


def register() -> None:
    """Its agent, and the loss of its speaker."""
    AGENTS.register("speaker-follower", SPEC)
    LOSSES.register("matching_critic", MATCHING_CRITIC)
