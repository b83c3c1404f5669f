"""An agent led along the reference paths: what it would choose there, and which words it attends to.

A walk shows how one mistake leads to the next; this shows which kind of decision the mistakes begin with. The
agent sees what the teacher sees and decides nothing. Along a reference path the place of here is always the
right frontier, so for frontier decisions the share is how often the agent stays. For grounding quality, its
word attention is compared with hand-made labels: how much falls on the words about the place where it stands.

Shape letters: B episodes of a batch, N of all, M decisions, T steps of a walk, L tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, Agent, Observations
from scenemem.agents.rollout import Rollout
from scenemem.agents.walker import (
    AgentPolicy,
    Decided,
    TrainedAgent,
    Watcher,
    collect,
    evaluating,
    take_best,
)
from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Clusters, Estimate
from scenemem.formats.annotations import LandmarkLabels
from scenemem.learning.objectives import ReferencePath
from scenemem.models.navigator import RolloutInputs
from scenemem.tasks.episode_set import EpisodeSet, in_order
from scenemem.tasks.vocabulary import split_words
from scenemem.world.build import Progress
from scenemem.world.graph import Pose

Stream = Literal["perception", "action", "navigator"]
STREAMS: tuple[Stream, ...] = ("perception", "action", "navigator")
"""The two attentions of the paper's Eq. 5, and the one that every agent has: the recurrent navigator's."""

Words = Literal["landmark", "action"]
KINDS: tuple[Words, ...] = ("landmark", "action")
OWN: Mapping[Words, Stream] = {"landmark": "perception", "action": "action"}
"""Which stream should attend to which words."""

_FIRST_WORD = 1  # tokens begin with <BOS>
_MARKS = 2  # <BOS> and <EOS>
_DRAWS = 2000  # of the bootstrap


@torch.no_grad()
def led(agent: TrainedAgent, episodes: EpisodeSet, watcher: Watcher | None = None) -> Rollout:
    """The walk along the reference paths, as in teacher forcing, scored by an agent.

    Raises:
        UserError: the agent has low-level actions, so that a path does not name what is right.
    """
    network, world, longest = agent.network, agent.environment.world, int(episodes.path_length.max())
    if not network.follows_reference:
        raise UserError("this agent turns and steps; only agents that choose viewpoints are led along paths")
    with evaluating(network):
        masks = network.dropout_masks(len(episodes))
        inputs = RolloutInputs(agent.environment, agent.read(episodes.texts), masks)
        forced = torch.ones(len(episodes), dtype=torch.bool, device=world.device)
        policy = AgentPolicy(network, inputs, take_best, forced=forced, watcher=watcher)
        # a path that crosses itself is walked over known places again
        rollout = collect(
            world,
            episodes,
            network.action_space(world, len(episodes), longest, learning=True),
            policy,
            max_steps=longest * longest,
            label_rule=ReferencePath(world, episodes.path),
        )
        policy.check_scores()
    return rollout


# Agreement


@dataclass(frozen=True)
class Agreement:
    """How often the likeliest option was the right one."""

    decisions: str  # which ones: a type of decision, and whether the right option stops
    right: int
    of: int

    @property
    def share(self) -> float:
        """Of the decisions, those that were right."""
        return self.right / self.of


def measure_following(
    agent: TrainedAgent, episodes: EpisodeSet, *, batch_size: int = 256, progress: Progress | None = None
) -> list[Agreement]:
    """How often an agent would have chosen what is right at the decisions along the reference paths.

    Goals must be known; ``progress`` is called with (episodes done, episodes in all).
    """
    right, of = Counter[str](), Counter[str]()
    for rows in in_order(len(episodes), batch_size, progress):
        for name, agrees in _agreements(agent, episodes.select(rows)):
            right[name] += int(agrees.sum())
            of[name] += len(agrees)
    return [Agreement(name, right[name], of[name]) for name in sorted(of) if of[name]]


def _agreements(agent: TrainedAgent, episodes: EpisodeSet) -> Iterator[tuple[str, Tensor]]:
    """Names of decisions, and whether the agent would have chosen what is right (M,)."""
    for kind, decisions in led(agent, episodes).learned.items():
        known = decisions.label >= 0
        agrees = decisions.logits.argmax(dim=1) == decisions.label
        if kind.over_nodes or kind.auxiliary:  # which neither stop nor move on
            yield f"{kind}: stay" if kind.over_nodes else str(kind), agrees[known]
            continue
        yield f"{kind}: go on", agrees[known & ~decisions.stops]
        yield f"{kind}: stop", agrees[known & decisions.stops]


def path_likelihood(agent: TrainedAgent, episodes: EpisodeSet) -> Tensor:
    """Mean log-probability of what is right at the decisions along the reference paths  ->  (B,)"""
    rollout = led(agent, episodes)
    total = torch.zeros(len(episodes), device=rollout.alive.device)
    taken = torch.zeros_like(total)
    for decisions in rollout.learned.values():
        known = (decisions.label >= 0).to(total)
        chances = decisions.logits.log_softmax(dim=1)
        right = chances.gather(1, decisions.label.clamp_min(0).unsqueeze(1)).squeeze(1)
        total.index_add_(0, decisions.episode, right.masked_fill(known == 0, 0.0))
        taken.index_add_(0, decisions.episode, known)
    return total / taken.clamp_min(1)


# Grounding


@dataclass(frozen=True, eq=False)
class ReferenceAttention:
    """Word attention along the reference paths of a batch."""

    episodes: EpisodeSet
    viewpoint: Tensor  # (B, T) where the agent stood
    alive: Tensor  # (B, T) bool, false after the end of the walk
    tokens: Tensor  # (B,) tokens it could attend to, marks and punctuation included
    words: dict[Stream, Tensor]  # (B, T, L) each, 1 in all over the tokens


@dataclass(eq=False)
class _WordWatcher:
    """Keeps the word attention of every observation, step after step."""

    agent: Agent
    steps: list[tuple[Tensor, Mapping[str, Tensor]]] = field(default_factory=list)

    def observed(self, observations: Observations, _pose: Pose, _space: ActionSpace, /) -> None:
        """One step of the walks that go on."""
        self.steps.append((observations.episode, self.agent.word_attention(observations)))

    def decided(self, _decided: Decided, /) -> None:
        """What is decided does not matter here."""


def attention_along_reference(
    agent: TrainedAgent, episodes: EpisodeSet, *, batch_size: int = 256, progress: Progress | None = None
) -> Iterator[ReferenceAttention]:
    """Lead an agent along the reference paths, batch by batch, and record which words it attends to.

    Goals must be known; ``progress`` is called with (episodes done, episodes in all).
    """
    for rows in in_order(len(episodes), batch_size, progress):
        some, watcher = episodes.select(rows), _WordWatcher(agent.network)
        rollout = led(agent, some, watcher)
        words: dict[Stream, Tensor] = {}
        for stream in (stream for stream in STREAMS if stream in watcher.steps[0][1]):
            longest = watcher.steps[0][1][stream].shape[1]
            words[stream] = torch.zeros(*rollout.alive.shape, longest, device=rollout.alive.device)
            for step, (alive, weights) in enumerate(watcher.steps):
                words[stream][alive, step] = weights[stream].to(words[stream])
        tokens = agent.vocabulary.encode_batch(some.texts, agent.limits.max_words)[1].to(rollout.view.device)
        yield ReferenceAttention(some, rollout.viewpoint, rollout.alive, tokens, words)


@dataclass(frozen=True)
class WordAttention:
    """How one attention treats one kind of words of the current viewpoint; intervals are over paths."""

    stream: Stream
    words: Words
    mass: Estimate  # share of the attention on the labelled words
    chance: float  # share of the tokens that are labelled: what uniform attention puts there
    lift: Estimate  # mass / chance
    pointing: Estimate  # how often the token attended to most is labelled; by chance as often as ``chance``
    elsewhere: Estimate | None  # lift on words of that kind about other viewpoints; None without any


@dataclass(frozen=True)
class Coverage:
    """What became of the labels of the episodes, one per instruction, viewpoint and kind of words."""

    labels: int = 0
    measured: int = 0
    empty: int = 0  # name no word
    beyond: int = 0  # point past the end of their instruction
    cut: int = 0  # name a word past those the agent reads
    unvisited: int = 0  # belong to a viewpoint the agent was not led to


@dataclass(frozen=True)
class GroundingQuality:
    """What ``measure_grounding`` finds."""

    episodes: int  # with at least one measured label
    paths: int  # they belong to
    viewpoints: dict[Words, int]  # measured pairs of instruction and viewpoint
    coverage: Coverage
    attention: tuple[WordAttention, ...]
    own_minus_other: dict[Words, Estimate]  # mass of the right stream less that of the other stream


def measure_grounding(
    agent: TrainedAgent, episodes: EpisodeSet, labels: LandmarkLabels, progress: Progress | None = None
) -> GroundingQuality:
    """Compare an agent's word attention with hand-made word labels, along the reference paths.

    Goals must be known; ``progress`` is called with (episodes done, episodes in all).

    Raises:
        UserError: no label fits any of the episodes.
    """
    fates, sums, paths = Counter[str](), list[_Sums](), list[Tensor]()
    for walked in attention_along_reference(agent, episodes, progress=progress):
        sums.append(_summed(walked, _marked(walked, labels, agent, fates)))
        paths.append(walked.episodes.record)
    if not fates["measured"]:
        raise UserError(f"no word label fits '{episodes.name}'; are they the labels of another split?")
    together = {name: torch.cat([batch[name] for batch in sums]) for name in sums[0]}
    coverage = Coverage(labels=sum(fates.values()), **fates)
    return _quality(together, torch.cat(paths), coverage)


def _marked(
    walked: ReferenceAttention, labels: LandmarkLabels, agent: TrainedAgent, fates: Counter[str]
) -> dict[Words, Tensor]:
    """Where the labelled tokens stand, (B, T, L) bool; ``fates`` counts what became of every label."""
    shape, names = next(iter(walked.words.values())).shape, agent.environment.world.viewpoints
    marked = {kind: torch.zeros(shape, dtype=torch.bool) for kind in KINDS}
    texts = zip(walked.episodes.instruction_ids, walked.episodes.texts, strict=True)
    for episode, (instruction_id, text) in enumerate(texts):
        stood = [names[place] for place in walked.viewpoint[episode, walked.alive[episode]].tolist()]
        for viewpoint, label in labels.get(instruction_id, {}).items():
            steps = [step for step, name in enumerate(stood) if name == viewpoint]
            for kind in KINDS:
                words: tuple[int, ...] | None = getattr(label, kind)
                if words is None:
                    continue
                fate = _fate(words, len(split_words(text)), agent.limits.max_words, visited=bool(steps))
                fates[fate] += 1
                if fate == "measured":
                    tokens = torch.tensor(words) + _FIRST_WORD
                    marked[kind][episode, torch.tensor(steps).unsqueeze(1), tokens] = True
    return {kind: mask.to(walked.tokens.device) for kind, mask in marked.items()}


def _fate(words: tuple[int, ...], length: int, max_words: int, *, visited: bool) -> str:
    """Whether a label can be measured; it counts whole or not at all."""
    last = max(words, default=-1)
    if last < 0:
        return "empty"
    if last >= length:
        return "beyond"
    if last >= max_words - _MARKS:
        return "cut"
    return "measured" if visited else "unvisited"


_Sums = dict[tuple[str, ...], Tensor]
"""(what, words) or (what, words, stream) -> a sum per episode (B,) or (N,); measures are ratios of them"""


def _summed(walked: ReferenceAttention, marked: Mapping[Words, Tensor]) -> _Sums:
    """marked: (B, T, L) bool"""
    sums: _Sums = {}
    tokens = walked.tokens.unsqueeze(1)
    for kind, here in marked.items():
        # measured at the same viewpoints, so that the two can be compared
        others = here.any(dim=1, keepdim=True) & ~here & here.any(dim=2, keepdim=True)
        for where, mask in (("", here), (" elsewhere", others)):
            size = mask.sum(2)
            sums["points" + where, kind] = (size > 0).sum(1)
            sums["chance" + where, kind] = (size.double() / tokens).sum(1)
            for stream, weights in walked.words.items():
                sums["mass" + where, kind, stream] = (weights.double() * mask).sum((1, 2))
        for stream, weights in walked.words.items():
            sums["hits", kind, stream] = here.gather(2, weights.argmax(2, keepdim=True)).sum((1, 2))
    return sums


def _quality(sums: _Sums, path: Tensor, coverage: Coverage) -> GroundingQuality:
    """path: (N,) which path each episode belongs to"""
    measured = torch.stack([sums["points", kind] for kind in KINDS]).any(dim=0)
    sums = {name: values[measured] for name, values in sums.items()}
    clusters = Clusters(path[measured], draws=_DRAWS, seed=0)
    points = {kind: int(sums["points", kind].sum()) for kind in KINDS}
    present = [kind for kind in KINDS if points[kind]]
    streams = [stream for stream in STREAMS if ("mass", "landmark", stream) in sums]
    own_minus_other = {}
    for kind in present if "perception" in streams else ():
        other = OWN["action" if kind == "landmark" else "landmark"]
        difference = sums["mass", kind, OWN[kind]] - sums["mass", kind, other]
        own_minus_other[kind] = clusters.ratio(difference, sums["points", kind])
    return GroundingQuality(
        episodes=int(measured.sum()),
        paths=clusters.count,
        viewpoints=points,
        coverage=coverage,
        attention=tuple(
            _word_attention(sums, clusters, stream, kind) for kind in present for stream in streams
        ),
        own_minus_other=own_minus_other,
    )


def _word_attention(sums: _Sums, clusters: Clusters, stream: Stream, kind: Words) -> WordAttention:
    points, chance, mass = sums["points", kind], sums["chance", kind], sums["mass", kind, stream]
    elsewhere = None
    if sums["points elsewhere", kind].any():
        elsewhere = clusters.ratio(sums["mass elsewhere", kind, stream], sums["chance elsewhere", kind])
    return WordAttention(
        stream=stream,
        words=kind,
        mass=clusters.ratio(mass, points),
        chance=float(chance.sum() / points.sum()),
        lift=clusters.ratio(mass, chance),
        pointing=clusters.ratio(sums["hits", kind, stream], points),
        elsewhere=elsewhere,
    )
