"""Speaker-Follower (Fried 2018): the first panoramic follower, described paths, and pragmatic search.

The follower decides by an elementwise product of state and candidate,

    logit_k = w . ((W_1 h~_t) * (W_2 u_k)),   stop is the row u = 0

and as published h_t = LSTM([u_{t-1}, v_t], h_{t-1}) reads the action just taken and the views that h_{t-1}
attends to; words are read last to first. Read in the released code. On the common recipe w begins with ones,
a plain dot product as basic's: three random factors make scores so small that learning begins late.

It learns from paths that a speaker described beside the instructions of people, then from the latter alone:
the published row needs ``--speaker`` or ``--augment``, and walks a batch of each.

Pragmatic search: ``speaker-follower-search`` expands states best-first by the sum of log-probabilities and
keeps the first way into each place (the release: the best one into each place and direction), up to 40
places. Every visited place is the end of a route, and a speaker helps to choose among them:
``scenemem eval RUN --speaker SPEAKER_RUN --speaker-weight .5`` (``PragmaticSearch``). Everything walked
counts; the release counts the ``chosen_route``, for a second column. Differences: the release's routes are 40
at which the search chose to stop, and its deviations are those of a split, here of one search.

Shape letters: X observations, R decision steps, K candidate slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import one_way_parts
from scenemem.zoo.panoramic import FollowerUpdater, candidate_actions, navigator_words
from scenemem.zoo.recipes import SEARCH_WALK, STUDENT, SystemConfig, published, shared
from scenemem.zoo.search import SearchConfig, SearchMixin

T = TypeVar("T")


@dataclass(frozen=True)
class FollowerConfig(SystemConfig, SearchConfig):
    """Settings of Speaker-Follower."""

    follower: bool = False
    """the published recurrent core, encoder and beginning; False has the common ones"""
    action_width: int = 256
    """width in which state and candidates are multiplied"""


class LocalFollower(ext.Agent):
    """Scores candidates by products with the state."""

    config: FollowerConfig

    def __init__(self, config: FollowerConfig, sizes: ext.DataSizes) -> None:
        parts = None
        if config.follower:
            core = FollowerUpdater(sizes.visual, config.width, config.action_width)
            parts = one_way_parts(config, sizes, core)
        super().__init__(config, sizes, parts)
        self.of_state = nn.Linear(config.width, config.action_width)
        self.of_action = nn.Linear(sizes.visual + ext.ANGLE_WIDTH, config.action_width)
        # what is added to all options alike changes nothing
        self.weigh = nn.Linear(config.action_width, 1, bias=False)
        if not config.follower:
            nn.init.ones_(self.weigh.weight)

    def action_logits(self, observations: ext.Observations) -> Tensor:
        """(X, K + 1)"""
        actions = candidate_actions(observations.candidates, observations.feature_mask)
        state = self.of_state(observations.state.hidden * observations.decision_mask)
        logits: Tensor = self.weigh(self.of_action(actions) * state.unsqueeze(1))
        return logits.squeeze(-1)

    def score(self, point: ext.DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        return point.per_observation(self.action_logits)

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The words the recurrent core attends to."""
        return ext.Explanation(navigator_words(self, point))


class SpeakerFollower(SearchMixin, LocalFollower):  # type: ignore[misc]  # scores more than actions
    """The follower, which may search when it is evaluated."""


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


AGENTS = {"speaker-follower": ext.AgentSpec(SpeakerFollower, FollowerConfig)}
_SEARCH: dict[str, Any] = {"search": "long", "priority": "log_probabilities"}
ROWS = {
    "speaker-follower": shared("speaker-follower", FollowerConfig),
    "speaker-follower-search": shared("speaker-follower", FollowerConfig, walk=SEARCH_WALK, **_SEARCH),
}
AS_PUBLISHED = published(
    "speaker-follower",
    FollowerConfig(word_width=300, width=512, feature_dropout=0.0, follower=True),
    (
        ext.Stage("described", share=5.0, losses=STUDENT, augmented=STUDENT),
        ext.Stage("fine-tuning", share=2.0, losses=STUDENT),
    ),
    iterations=70_000,
    word_vectors=True,
    batch=100,
    weight_decay=5e-4,
)
AS_RELEASED = {"speaker-follower-search": chosen_route}
