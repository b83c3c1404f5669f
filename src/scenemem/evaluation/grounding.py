"""Grounding quality: how much attention falls on the words about the place where the agent stands.

The agent is led along the reference paths, and its word attention is compared with hand-made labels. Shape
letters: B episodes of a batch, N of all, T steps of a walk, L tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace, Agent, Observations
from scenemem.agents.walker import Decided, TrainedAgent
from scenemem.errors import UserError
from scenemem.evaluation.bootstrap import Clusters, Estimate
from scenemem.evaluation.following import led
from scenemem.formats.annotations import LandmarkLabels
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


@dataclass(frozen=True, eq=False)
class ReferenceAttention:
    """Word attention along the reference paths of a batch."""

    episodes: EpisodeSet
    viewpoint: Tensor  # (B, T) where the agent stood
    alive: Tensor  # (B, T) bool, false after the end of the walk
    tokens: Tensor  # (B,) tokens it could attend to, marks and punctuation included
    words: dict[Stream, Tensor]  # (B, T, L) each, 1 in all over the tokens


def attention_along_reference(
    agent: TrainedAgent, episodes: EpisodeSet, *, batch_size: int = 256, progress: Progress | None = None
) -> Iterator[ReferenceAttention]:
    """Lead an agent along the reference paths (teacher forcing) and record which words it attends to.

    Goals must be known; ``progress`` is called with (episodes done, episodes in all).
    """
    for rows in in_order(len(episodes), batch_size, progress):
        yield _attention(agent, episodes.select(rows))


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


@torch.no_grad()
def _attention(agent: TrainedAgent, episodes: EpisodeSet) -> ReferenceAttention:
    watcher = _WordWatcher(agent.network)
    rollout = led(agent, episodes, watcher)
    words: dict[Stream, Tensor] = {}
    for stream in (stream for stream in STREAMS if stream in watcher.steps[0][1]):
        longest = watcher.steps[0][1][stream].shape[1]
        words[stream] = torch.zeros(*rollout.alive.shape, longest, device=rollout.alive.device)
        for step, (rows, weights) in enumerate(watcher.steps):
            words[stream][rows, step] = weights[stream].to(words[stream])
    tokens = agent.vocabulary.encode_batch(episodes.texts, agent.limits.max_words)[1]
    return ReferenceAttention(
        episodes, rollout.viewpoint, rollout.alive, tokens.to(rollout.view.device), words
    )


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
    agent: TrainedAgent,
    episodes: EpisodeSet,
    labels: LandmarkLabels,
    *,
    draws: int = 2000,
    seed: int = 0,
    progress: Progress | None = None,
) -> GroundingQuality:
    """Compare an agent's word attention with hand-made word labels, along the reference paths.

    The goals of the episodes must be known; ``draws`` and ``seed`` are those of the bootstrap, and
    ``progress`` is called with (episodes done, episodes in all).

    Raises:
        UserError: no label fits any of the episodes.
    """
    fates: Counter[str] = Counter()
    sums: list[_Sums] = []
    paths: list[Tensor] = []
    for walked in attention_along_reference(agent, episodes, progress=progress):
        sums.append(_summed(walked, _marked(walked, labels, agent, fates)))
        paths.append(walked.episodes.record)
    if not fates["measured"]:
        raise UserError(f"no word label fits '{episodes.name}'; are they the labels of another split?")
    together = {column: torch.cat([batch[column] for batch in sums]) for column in sums[0]}
    coverage = Coverage(labels=sum(fates.values()), **fates)
    return _quality(together, torch.cat(paths), coverage, draws=draws, seed=seed)


def _marked(
    walked: ReferenceAttention, labels: LandmarkLabels, agent: TrainedAgent, fates: Counter[str]
) -> dict[Words, Tensor]:
    """Where the labelled tokens stand  ->  kind: (B, T, L) bool

    ``fates`` counts what became of every label.
    """
    places: dict[Words, list[tuple[int, int, int]]] = {kind: [] for kind in KINDS}
    texts = zip(walked.episodes.instruction_ids, walked.episodes.texts, strict=True)
    for episode, (instruction_id, text) in enumerate(texts):
        length, steps = len(split_words(text)), _steps_at(walked, episode, agent.environment.world.viewpoints)
        for viewpoint, label in labels.get(instruction_id, {}).items():
            for kind in KINDS:
                words: tuple[int, ...] | None = getattr(label, kind)
                if words is None:
                    continue
                fate = _fate(words, length, agent.limits.max_words, visited=viewpoint in steps)
                fates[fate] += 1
                if fate == "measured":
                    places[kind] += [
                        (episode, step, _FIRST_WORD + w) for step in steps[viewpoint] for w in words
                    ]
    shape = next(iter(walked.words.values())).shape
    return {kind: _mask(shape, places[kind]).to(walked.tokens.device) for kind in KINDS}


def _steps_at(walked: ReferenceAttention, episode: int, names: Sequence[str]) -> dict[str, list[int]]:
    """When the agent stood at each viewpoint."""
    steps: dict[str, list[int]] = {}
    for step, place in enumerate(walked.viewpoint[episode, walked.alive[episode]].tolist()):
        steps.setdefault(names[place], []).append(step)
    return steps


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


def _mask(shape: Sequence[int], places: list[tuple[int, int, int]]) -> Tensor:
    mask = torch.zeros(tuple(shape), dtype=torch.bool)
    mask[tuple(torch.tensor(places, dtype=torch.int64).view(-1, 3).T)] = True
    return mask


class _Column(NamedTuple):
    """One sum per episode; every measure is a ratio of two of them."""

    what: Literal["points", "chance", "mass", "hits"]
    words: Words
    stream: Stream | None = None
    elsewhere: bool = False  # over words about other viewpoints of the path


_Sums = dict[_Column, Tensor]  # (B,) or (N,) each


def _summed(walked: ReferenceAttention, marked: Mapping[Words, Tensor]) -> _Sums:
    """marked: (B, T, L) bool"""
    sums: _Sums = {}
    tokens = walked.tokens.unsqueeze(1)
    for kind, here in marked.items():
        # measured at the same viewpoints, so that the two can be compared
        others = here.any(dim=1, keepdim=True) & ~here & here.any(dim=2, keepdim=True)
        for elsewhere, mask in ((False, here), (True, others)):
            size = mask.sum(2)
            sums[_Column("points", kind, None, elsewhere)] = (size > 0).sum(1)
            sums[_Column("chance", kind, None, elsewhere)] = (size.double() / tokens).sum(1)
            for stream, weights in walked.words.items():
                sums[_Column("mass", kind, stream, elsewhere)] = (weights.double() * mask).sum((1, 2))
        for stream, weights in walked.words.items():
            hit = here.gather(2, weights.argmax(2, keepdim=True))
            sums[_Column("hits", kind, stream)] = hit.sum((1, 2))
    return sums


def _quality(sums: _Sums, path: Tensor, coverage: Coverage, *, draws: int, seed: int) -> GroundingQuality:
    """path: (N,) which path each episode belongs to"""
    measured = torch.stack([sums[_Column("points", kind)] for kind in KINDS]).any(dim=0)
    sums = {column: values[measured] for column, values in sums.items()}
    clusters = Clusters(path[measured], draws=draws, seed=seed)
    points = {kind: int(sums[_Column("points", kind)].sum()) for kind in KINDS}
    present = [kind for kind in KINDS if points[kind]]
    streams = [stream for stream in STREAMS if _Column("mass", "landmark", stream) in sums]
    return GroundingQuality(
        episodes=int(measured.sum()),
        paths=clusters.count,
        viewpoints=points,
        coverage=coverage,
        attention=tuple(
            _word_attention(sums, clusters, stream, kind) for kind in present for stream in streams
        ),
        own_minus_other={
            kind: _own_minus_other(sums, clusters, kind) for kind in present if "perception" in streams
        },
    )


def _word_attention(sums: _Sums, clusters: Clusters, stream: Stream, kind: Words) -> WordAttention:
    points, chance = sums[_Column("points", kind)], sums[_Column("chance", kind)]
    mass = sums[_Column("mass", kind, stream)]
    elsewhere = None
    if sums[_Column("points", kind, None, True)].any():
        elsewhere = clusters.ratio(
            sums[_Column("mass", kind, stream, True)], sums[_Column("chance", kind, None, True)]
        )
    return WordAttention(
        stream=stream,
        words=kind,
        mass=clusters.ratio(mass, points),
        chance=float(chance.sum() / points.sum()),
        lift=clusters.ratio(mass, chance),
        pointing=clusters.ratio(sums[_Column("hits", kind, stream)], points),
        elsewhere=elsewhere,
    )


def _own_minus_other(sums: _Sums, clusters: Clusters, kind: Words) -> Estimate:
    own, other = OWN[kind], OWN["action" if kind == "landmark" else "landmark"]
    difference = sums[_Column("mass", kind, own)] - sums[_Column("mass", kind, other)]
    return clusters.ratio(difference, sums[_Column("points", kind)])
