"""Speaker runs at work: BLEU beside two controls, descriptions of any path, and augmented episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from scenemem.agents.walker import Sample, TrainedAgent, take_best
from scenemem.errors import UserError
from scenemem.evaluation.bleu import (
    PathSet,
    bleu_scorer,
    corpus_bleu,
    describe_paths,
    other_paths,
    paths_of,
    retrieved_texts,
    shuffled_bleu,
)
from scenemem.evaluation.evaluate import walk_split
from scenemem.evaluation.following import path_likelihood
from scenemem.formats.episodes import Episode
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import described_episodes
from scenemem.learning.speaker import Speaker
from scenemem.models.speaker import Choose, Descriptions
from scenemem.runs.experiment import Progress, SpeakerExperiment, silent, stored_speaker
from scenemem.runs.folder import RunFolder, Which
from scenemem.tasks.episode_set import Batches, EpisodeSet
from scenemem.tasks.paths import PathPool, shortest_paths
from scenemem.tasks.vocabulary import as_sentences, split_words
from scenemem.world.graph import HEADINGS, NONE, STEP, World

FIRST_PATH_ID = 10_000_000
"""Path ids of augmented episodes count from here, so that they meet none of the public data sets'."""

FOLLOWED = ("sr", "spl", "ndtw")
"""The metrics of how well an agent follows descriptions."""

_AT_ONCE = 128  # paths


def open_speaker(run: RunFolder, folder: DataFolder, checkpoint: Which = "best") -> SpeakerExperiment:
    """The speaker of a run, on a data folder."""
    run.describe()
    return stored_speaker(run.checkpoint(checkpoint), folder)


def evaluate_speaker(
    opened: SpeakerExperiment,
    split: str,
    beams: int,
    seed: int,
    progress: Progress = silent,
    agent: TrainedAgent | None = None,
) -> dict[str, Any]:
    """Corpus BLEU-4 of the descriptions of a split, of a retrieval baseline and of a shuffled control.

    With an ``agent`` also how well it follows the descriptions.
    """
    bleu_scorer()  # before the descriptions
    episodes = opened.episodes(split)
    paths = paths_of(episodes)
    with progress(f"describing {split}") as advance:
        texts = describe_paths(opened.speaker, paths, beams=beams, progress=advance)
    known = paths_of(opened.episodes("train"))
    retrieved = retrieved_texts(opened.environment, paths, known)
    return {
        "split": split,
        "n": len(paths),
        "beam": beams,
        "words": sum(len(split_words(text)) for text in texts) / len(texts),
        "bleu": corpus_bleu(texts, paths.references),
        "retrieval": corpus_bleu(retrieved, paths.references),
        "shuffled": shuffled_bleu(texts, paths.references, seed),
        **({} if agent is None else {"followed": _followed(agent, episodes, paths, texts, seed, progress)}),
    }


def _followed(
    agent: TrainedAgent,
    episodes: EpisodeSet,
    paths: PathSet,
    texts: Sequence[str],
    seed: int,
    progress: Progress,
) -> dict[str, dict[str, float]]:
    """Means of metrics of one agent that walks the paths by different texts.

    By the speaker's ``descriptions``, by the instructions of ``people``, and by descriptions of other paths
    (``shuffled``): what it reaches in these buildings without information about the path.
    """
    others = tuple(texts[other] for other in other_paths(len(texts), seed))
    sources = {
        "descriptions": replace(paths.episodes, texts=tuple(texts)),
        "people": episodes,
        "shuffled": replace(paths.episodes, texts=others),
    }
    found = {}
    for name, said in sources.items():
        with progress(f"walking by {name}") as advance:
            metrics = walk_split(agent, said, progress=advance).measured(agent.environment.world)
        found[name] = {key: float(getattr(metrics, key).mean()) for key in FOLLOWED}
    return found


@dataclass(frozen=True)
class PathsToDescribe:
    """B paths, and what people said about them where that is known."""

    path: Tensor  # (B, T) int64, padded with -1
    heading: Tensor  # (B,) radians
    references: tuple[tuple[str, ...], ...]


def random_paths(opened: SpeakerExperiment, split: str, count: int, seed: int) -> PathsToDescribe:
    """``count`` paths of a split."""
    paths = paths_of(opened.episodes(split))
    if not 1 <= count <= len(paths):
        raise UserError(f"--count must be in 1..{len(paths)}, the paths of {split}, got {count}")
    rows = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))[:count]
    references = tuple(paths.references[row] for row in rows.tolist())
    return PathsToDescribe(paths.episodes.path[rows], paths.episodes.heading[rows], references)


def one_path(
    world: World, scan: str | None, names: list[str], degrees: float | None, *, shortest: bool = False
) -> PathsToDescribe:
    """The path over these viewpoints, or the ``shortest`` one between two, as (1, T).

    Without a heading the walker looks where it will go.
    """
    path = _viewpoints(world, scan, names)
    if shortest:
        path = shortest_paths(world, path[:1], path[1:])[0].squeeze(0)
    heading = torch.tensor(math.radians(degrees or 0.0), dtype=torch.float64)
    if degrees is None and len(path) > 1:
        slot = world.slot_of(path[0], path[1])
        heading = world.neighbour_heading[path[0], slot.clamp_min(0)].double()
    return PathsToDescribe(path.unsqueeze(0), heading.unsqueeze(0).to(path.device), ((),))


def describe(opened: SpeakerExperiment, paths: PathsToDescribe, beams: int) -> list[dict[str, Any]]:
    """The text of every path, and its log-likelihood."""
    speaker, world = opened.speaker, opened.environment.world
    descriptions = speaker.describe_best(paths.path, paths.heading, beams)
    columns = (
        paths.path.tolist(),
        paths.heading.tolist(),
        map(as_sentences, speaker.texts(descriptions.tokens)),
        descriptions.log_likelihood.tolist(),
        paths.references,
    )
    return [
        {
            "scan": world.scans[int(world.scan_of[path[0]])],
            "path": [world.viewpoints[viewpoint] for viewpoint in path if viewpoint != NONE],
            "heading": heading,
            "text": text,
            "log_likelihood": log_likelihood,
            "references": references,
        }
        for path, heading, text, log_likelihood, references in zip(*columns, strict=True)
    ]


@dataclass(frozen=True)
class Filter:
    """Which descriptions are worth learning from."""

    descriptions: int = 1
    """sampled per path; the one with the best score is taken"""
    keep: float = 1.0
    """share of the paths, those with the best scores"""
    agent: TrainedAgent | None = None
    """its likelihood of walking the path by the description counts beside the speaker's of saying it"""

    def __post_init__(self) -> None:
        if self.descriptions < 1:
            raise UserError(f"--descriptions must be 1 or more, got {self.descriptions}")
        if not 0 < self.keep <= 1:
            raise UserError(f"--keep must be above 0 and at most 1, got {self.keep}")

    def score(self, said: Descriptions, episodes: EpisodeSet) -> Tensor:
        """(B,) log-likelihood per word, and per decision where there is an agent; the higher the better"""
        if self.agent is None:
            return said.per_word
        return said.per_word + path_likelihood(self.agent, episodes)


def augmented_episodes(
    speaker: Speaker,
    pool: PathPool,
    count: int,
    seed: int,
    *,
    sample: bool = False,
    choice: Filter | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Episode]:
    """Descriptions of ``count`` paths of a pool, their words likely or sampled, as episodes."""
    choice = choice or Filter()
    randomness = torch.Generator().manual_seed(seed)
    choose = Sample(randomness) if sample else take_best
    world, done = speaker.environment.world, 0
    batches = Batches(len(pool), _AT_ONCE, seed)
    while done < count:
        wanted = math.ceil(min(_AT_ONCE, (count - done) / choice.keep))
        rows = next(batches)[:wanted].to(world.device)
        path, length = shortest_paths(world, pool.start[rows], pool.goal[rows])
        heading = torch.randint(HEADINGS, (len(rows),), generator=randomness).to(world.device) * STEP
        described = _best_described(speaker, path, length, heading, choose, choice, count - done)
        metres = world.geodesic(described.start, described.goal)
        columns = zip(
            described.path.tolist(), described.heading.tolist(), metres.tolist(), described.texts, strict=True
        )
        for number, (viewpoints, angle, far, text) in enumerate(columns, start=FIRST_PATH_ID + done):
            yield Episode(
                scan=world.scans[int(world.scan_of[viewpoints[0]])],
                path_id=number,
                path=tuple(world.viewpoints[viewpoint] for viewpoint in viewpoints if viewpoint != NONE),
                heading=angle,
                instructions=(text,),
                instruction_ids=(f"{number}_0",),
                distance=far,
            )
        done += len(described)
        if progress is not None:
            progress(done, count)


def _best_described(
    speaker: Speaker, path: Tensor, length: Tensor, heading: Tensor, choose: Choose, choice: Filter, most: int
) -> EpisodeSet:
    """At most ``most`` of the paths (B, T), in their order, with the best of their descriptions."""
    times = choice.descriptions
    path, length, heading = path.repeat(times, 1), length.repeat(times), heading.repeat(times)
    said = speaker.describe(path, heading, choose=choose)
    ids = [str(number) for number in range(len(path))]
    episodes = described_episodes(
        speaker.environment.world, path, length, heading, speaker.texts(said.tokens), ids
    )
    if times == 1 and choice.keep == 1:
        return episodes
    score, best = choice.score(said, episodes).view(times, -1).max(dim=0)
    kept = score.topk(min(most, math.ceil(choice.keep * len(score)))).indices.sort().values
    return episodes.select(best[kept] * len(score) + kept)


def _viewpoints(world: World, scan: str | None, names: list[str]) -> Tensor:
    """(T,) int64"""
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise UserError("the path is empty, expected viewpoints separated by commas")
    scan = _scan_of(world, names[0]) if scan is None else scan
    return torch.tensor([world.index_of(scan, name) for name in names], device=world.device)


def _scan_of(world: World, viewpoint: str) -> str:
    found = [int(world.scan_of[number]) for number, name in enumerate(world.viewpoints) if name == viewpoint]
    if not found:
        raise UserError(f"no scan has an included viewpoint '{viewpoint}'")
    if len(found) > 1:
        names = ", ".join(world.scans[number] for number in found)
        raise UserError(f"several scans have a viewpoint '{viewpoint}' ({names}); name one with --scan")
    return world.scans[found[0]]
