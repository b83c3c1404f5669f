"""Re-ranking: walk several candidate routes and answer with the one that fits the instruction best.

The pragmatic inference of Speaker-Follower: a follower proposes routes, a speaker scores how likely the
instruction is given each of them. Routes are sampled walks of any agent (``RerankingAgent``), or those that
one long search has found (``PragmaticSearch``). Shape letters: B episodes, K candidates, T steps, J decisions
of a walk, M episodes that decide, N nodes of a search, P routes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace
from scenemem.agents.rollout import DecisionRequest, Rollout
from scenemem.agents.walker import Rescore, SamplePerEpisode, TrainedAgent
from scenemem.errors import NotFiniteError, SettingError
from scenemem.evaluation.evaluate import Walks
from scenemem.evaluation.metrics import length_weighted, path_length
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import NONE, World
from scenemem.zoo.search import END, SearchMixin, routes_to


class RouteScorer(Protocol):
    """Scores how well routes fit instructions, as a speaker does."""

    def score_routes(self, episodes: EpisodeSet, route: Tensor, /) -> Tensor:
        """Mean log-likelihood of a word of each instruction, given a route.

        route: (B, T) viewpoints from the start of each episode on, padded with -1  ->  (B,)
        """


@dataclass(frozen=True)
class Reranking:
    """How an agent looks at several routes before it answers."""

    candidates: int = 8
    """walks per episode: a greedy one, the others sampled; 1 is the greedy agent itself"""
    weight: float = 0.9
    """of the scorer's log-likelihood per word; the agent's log-probability per decision has the rest"""
    seed: int = 0
    """of the sampled walks"""

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise SettingError(f"the number of candidates must be 1 or more, got {self.candidates}")
        _check_weight(self.weight)
        if self.seed < 0:
            raise SettingError(f"the seed of the candidates must be 0 or more, got {self.seed}")


def _check_weight(weight: float) -> None:
    if not 0 <= weight <= 1:
        raise SettingError(f"the speaker's weight must be in [0, 1], got {weight}")


@dataclass(frozen=True)
class RouteCandidates:
    """K walks of every episode; walk k of episode b is number k * B + b of the rollout, walk 0 is greedy."""

    rollout: Rollout  # K * B episodes
    confidence: Tensor  # (K, B) mean log-probability of a walk's decisions, as the agent sees them
    score: Tensor  # (K, B) of its route, as the scorer sees it

    def best(self, weight: float) -> Rollout:
        """The walk of every episode whose weighed scores are highest, the first of equals."""
        together = weight * self.score + (1 - weight) * self.confidence
        if not bool(together.isfinite().all()):
            raise NotFiniteError("the score of a candidate route")
        episode = torch.arange(together.shape[1], device=together.device)
        return self.rollout.select(together.argmax(dim=0) * len(episode) + episode)


class RerankingAgent:
    """A trained agent that answers with the best of several walks.

    It looks at more of the building than an agent that walks once, which its results state; it keeps how far
    all candidates went. The scorer reads the same features.
    """

    def __init__(self, agent: TrainedAgent, scorer: RouteScorer, config: Reranking) -> None:
        self.agent = agent
        self.scorer = scorer
        self.config = config
        self._metres: list[Tensor] = []

    def walk(self, episodes: EpisodeSet, /) -> Rollout:
        """Walk the episodes."""
        candidates = self.candidates(episodes)
        metres = path_length(self.agent.environment.world, candidates.rollout.walked)
        self._metres.append(metres.view_as(candidates.score).sum(dim=0))
        return candidates.best(self.config.weight)

    def spl(self, walks: Walks, world: World) -> Tensor:
        """(N,) success, weighted by shortest distance / everything walked; goals must be known"""
        shortest = world.geodesic(walks.episodes.start, walks.episodes.goal)
        return length_weighted(walks.measured(world).sr, shortest, self.metres)

    @property
    def metres(self) -> Tensor:
        """(N,) length of all candidates together, of all episodes walked so far"""
        return torch.cat(self._metres)

    @torch.no_grad()
    def candidates(self, episodes: EpisodeSet) -> RouteCandidates:
        """All walks of the episodes in one rollout, scored."""
        shape = (self.config.candidates, len(episodes))
        repeated = episodes.select(torch.arange(len(episodes)).repeat(self.config.candidates))
        drawn = self._drawn(episodes)
        chances = torch.zeros_like(drawn[0])
        rollout = self.agent.walk(repeated, _GreedyFirst(drawn, greedy=len(episodes), chances=chances))
        taken = torch.zeros_like(chances)
        for table in rollout.decisions.values():
            taken += torch.bincount(table.episode, minlength=len(repeated))
        route = without_detours(rollout.walked)
        score = self.scorer.score_routes(repeated, route)
        return RouteCandidates(rollout, (chances / taken.clamp_min(1)).view(shape), score.view(shape))

    def _drawn(self, episodes: EpisodeSet) -> Tensor:
        """Random numbers for every decision; a frontier and its action are two  ->  (J, K * B)

        They belong to an instruction and a candidate: neither the other episodes of a batch nor a larger
        number of candidates changes them.
        """
        limit, world = self.agent.limits.max_decisions, self.agent.environment.world
        further = self.agent.network.action_space(world, 1, limit).further_requests
        shape = (self.config.candidates, 2 * limit + 1 + further)
        drawn = np.stack(  # a generator per text, microseconds each: torch has none per episode
            [
                np.random.default_rng((self.config.seed, crc32(name.encode()))).random(shape)
                for name in episodes.instruction_ids
            ],
            axis=1,
        )
        return torch.from_numpy(drawn).flatten(0, 1).t().to(self.agent.environment.world.device)


class _GreedyFirst(SamplePerEpisode):
    """The first episodes take the best option, the others draw.

    Args:
        drawn: (J, episodes) in [0, 1), for every decision.
        greedy: how many episodes take the best option.
        chances: (episodes,) the log-probability of every decision is added here.
    """

    def __init__(self, drawn: Tensor, *, greedy: int, chances: Tensor) -> None:
        super().__init__(drawn)
        self._greedy = greedy
        self._chances = chances

    def __call__(self, logits: Tensor, episode: Tensor, /) -> Tensor:
        """(M, O), (M,)  ->  (M,)"""
        sampled = super().__call__(logits, episode)
        choice = torch.where(episode < self._greedy, logits.argmax(dim=-1), sampled)
        self._chances[episode] += logits.log_softmax(dim=-1).gather(1, choice.unsqueeze(1)).squeeze(1)
        return choice


def searches(agent: TrainedAgent) -> bool:
    """Whether an agent ends its walks with a choice among all routes it has found."""
    return isinstance(agent.network, SearchMixin) and agent.network.config.search == "long"


class PragmaticSearch(TrainedAgent):
    """An agent that searches, and ends where it and a scorer of routes together find it best.

        end at argmax_n  w S(n) / sd S + (1 - w) F(n) / sd F

    n is every place the search has visited, S the score of the route that led there, F the agent's own score
    of ending there; deviations are those of one search. Its walks hold every metre of the search.
    """

    def __init__(self, agent: TrainedAgent, scorer: RouteScorer, weight: float) -> None:
        if not searches(agent):
            raise SettingError("the agent has no routes to choose among; it needs the setting search = long")
        _check_weight(weight)
        super().__init__(agent.network, agent.environment, agent.vocabulary, agent.limits)
        self.scorer = scorer
        self.weight = weight

    def rescoring(self, episodes: EpisodeSet) -> Rescore:
        """The scorer joins in when the end of a search is chosen."""

        def rescore(logits: Tensor, request: DecisionRequest, space: ActionSpace, /) -> Tensor:
            if request.type != END:
                return logits
            own = standardised(logits, request.options)
            heard = standardised(self._of_ends(episodes, request, space), request.options)
            return self.weight * heard + (1 - self.weight) * own

        return rescore

    def _of_ends(self, episodes: EpisodeSet, request: DecisionRequest, space: ActionSpace) -> Tensor:
        """The scorer's verdict of the route to every node  ->  (M, N), 0 at nodes that do not exist"""
        memory, (row, node) = space.memory, request.options.nonzero().unbind(1)
        came_from = memory.columns["parent"][request.episode].squeeze(-1).round().long()
        route = routes_to(memory.node[request.episode], came_from, row, node)
        route = route[:, : int((route != NONE).sum(dim=1).amax())]
        rows = episodes.select(request.episode[row])
        parts = torch.split(torch.arange(len(row), device=row.device), _ROUTES_AT_ONCE)
        scores = [self.scorer.score_routes(rows.select(part), route[part]) for part in parts]
        return torch.zeros(request.options.shape).to(scores[0]).index_put((row, node), torch.cat(scores))


_ROUTES_AT_ONCE = 512  # so that the panoramas along all routes of many searches are never in memory together


def standardised(scores: Tensor, exists: Tensor) -> Tensor:
    """Scores of the options that exist, with mean 0 and deviation 1; 0 where all are equal, and elsewhere.

    scores: (M, N)  exists: (M, N) bool  ->  (M, N)
    """
    count = exists.sum(dim=1, keepdim=True)
    scores = scores.masked_fill(~exists, 0.0)
    apart = (scores - scores.sum(dim=1, keepdim=True) / count).masked_fill(~exists, 0.0)
    deviation = (apart.square().sum(dim=1, keepdim=True) / count).sqrt()
    rounding = 1e-6 * scores.abs().amax(dim=1, keepdim=True)  # equal scores may be so far from their mean
    return torch.where(deviation <= rounding, 0.0, apart / deviation)


def without_detours(walked: Tensor) -> Tensor:
    """Walks without the loops in them: instructions and the training of speakers have no detours.

    walked: (B, T) viewpoints, padded with -1  ->  (B, <= T)
    """
    episodes, steps = walked.shape
    episode = torch.arange(episodes, device=walked.device)
    again = walked.unsqueeze(2) == walked.unsqueeze(1)
    last = torch.where(again, torch.arange(steps, device=walked.device), NONE).amax(dim=2)
    padded = torch.nn.functional.pad(walked, (0, 1), value=NONE)
    here = torch.zeros_like(episode)  # the step of the next place that stays
    columns = []
    for _ in range(steps):
        columns.append(padded[episode, here])
        here = torch.where(columns[-1] == NONE, here, last[episode, here.clamp_max(steps - 1)] + 1)
    route = torch.stack(columns, dim=1)
    return route[:, : int((route != NONE).sum(dim=1).max())]
