"""Speaker runs at work: BLEU beside two controls, descriptions of any path, and augmented episodes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
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
from scenemem.formats.episodes import EpisodeRecord, write_episodes
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import described_episodes
from scenemem.learning.speaker import Speaker
from scenemem.runs.experiment import Progress, SpeakerExperiment, silent, stored_speaker
from scenemem.runs.folder import RunFolder, Which
from scenemem.tasks.episode_set import Batches, EpisodeSet
from scenemem.tasks.paths import PathPool, path_pool, shortest_paths
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


class LoadedSpeaker:
    """A trained speaker on a data folder; made by ``scenemem.load_speaker``."""

    def __init__(self, opened: SpeakerExperiment) -> None:
        self.experiment = opened  # network, environment, vocabulary, episodes: to go deeper
        self.speaker: Speaker = opened.speaker
        self.world: World = opened.environment.world

    def evaluate(
        self,
        split: str = "val_unseen",
        *,
        agent: TrainedAgent | None = None,
        beam: int = 1,
        seed: int = 0,
        progress: Progress = silent,
    ) -> dict[str, Any]:
        """Corpus BLEU-4 of the descriptions of a split, of a retrieval baseline and of a shuffled control.

        With an ``agent`` also how well it follows them; ``seed`` is that of the shuffled controls.
        """
        bleu_scorer()  # before the descriptions
        episodes = self.experiment.episodes(split)
        paths = paths_of(episodes)
        with progress(f"describing {split}") as advance:
            texts = describe_paths(self.speaker, paths, beams=beam, progress=advance)
        known = paths_of(self.experiment.episodes("train"))
        retrieved = retrieved_texts(self.experiment.environment, paths, known)
        found = {
            "split": split,
            "n": len(paths),
            "beam": beam,
            "words": sum(len(split_words(text)) for text in texts) / len(texts),
            "bleu": corpus_bleu(texts, paths.references),
            "retrieval": corpus_bleu(retrieved, paths.references),
            "shuffled": shuffled_bleu(texts, paths.references, seed),
        }
        if agent is not None:
            found["followed"] = self._followed(agent, episodes, paths, texts, seed, progress)
        return found

    def _followed(
        self,
        agent: TrainedAgent,
        episodes: EpisodeSet,
        paths: PathSet,
        texts: Sequence[str],
        seed: int,
        progress: Progress,
    ) -> dict[str, dict[str, float]]:
        """Means of metrics of one agent that walks the paths by different texts.

        By the speaker's ``descriptions``, by the instructions of ``people``, and by descriptions of other
        paths (``shuffled``): what it reaches in these buildings without information about the path.
        """
        shuffled = tuple(texts[other] for other in other_paths(len(texts), seed))
        sources = {
            "descriptions": replace(paths.episodes, texts=tuple(texts)),
            "people": episodes,
            "shuffled": replace(paths.episodes, texts=shuffled),
        }
        found = {}
        for name, said in sources.items():
            with progress(f"walking by {name}") as advance:
                means = walk_split(agent, said, progress=advance).measured(self.world).means()
            found[name] = {key: means[key] for key in FOLLOWED}
        return found

    def describe(
        self,
        path: Sequence[str] | None = None,
        *,
        scan: str | None = None,
        start: str | None = None,
        goal: str | None = None,
        heading: float | None = None,
        count: int | None = None,
        split: str = "val_unseen",
        seed: int = 0,
        beam: int = 1,
    ) -> list[dict[str, Any]]:
        """Describe a path, the shortest one from ``start`` to ``goal``, or ``count`` random ones of a split.

        Args:
            path: viewpoints, in order.
            scan: where they are; only needed when their names occur in several scans.
            heading: where the walker looks at the start, degrees clockwise from +y; along the path when left
                out.
            seed: chooses the random paths.
        """
        if (path is not None) + (start is not None or goal is not None) + (count is not None) != 1:
            raise UserError("say what to describe: `path`, `start` and `goal`, or `count`")
        references: Sequence[tuple[str, ...]] = ((),)
        if count is not None:
            viewpoints, headings, references = self._random_paths(split, count, seed)
        else:
            if path is not None:
                viewpoints = _viewpoints(self.world, scan, path).unsqueeze(0)
            elif start is None or goal is None:
                raise UserError("a shortest path needs both ends: `start` and `goal`")
            else:
                ends = _viewpoints(self.world, scan, [start, goal])
                viewpoints = shortest_paths(self.world, ends[:1], ends[1:])[0]
            headings = self._first_heading(viewpoints, heading)
        found = self.speaker.describe_best(viewpoints, headings, beam)
        columns = zip(
            viewpoints.tolist(),
            headings.tolist(),
            map(as_sentences, self.speaker.texts(found.tokens)),
            found.log_likelihood.tolist(),
            references,
            strict=True,
        )
        return [
            {
                "scan": self.world.scans[int(self.world.scan_of[walked[0]])],
                "path": self._names(walked),
                "heading": angle,
                "text": text,
                "log_likelihood": log_likelihood,
                "references": by_people,
            }
            for walked, angle, text, log_likelihood, by_people in columns
        ]

    def augment(self, out: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
        """Write ``described_paths`` as an episode file, gzipped when its name ends in .gz  ->  a summary"""
        started = time.perf_counter()
        written = write_episodes(Path(out), self.described_paths(**options))
        speed = round(written / (time.perf_counter() - started))
        return {"out": str(out), "count": written, "pool": len(self._pool), "paths_per_second": speed}

    def described_paths(
        self,
        count: int = 10_000,
        *,
        seed: int = 0,
        sample: bool = False,
        descriptions: int = 1,
        keep: float = 1.0,
        agent: TrainedAgent | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[EpisodeRecord]:
        """Descriptions of random shortest paths of the training buildings, as episodes.

        Args:
            count: number of paths.
            seed: of paths, headings and words.
            sample: draw words by their probability instead of taking the most likely ones.
            descriptions: drawn per path; the one with the best score, its log-likelihood per word, is taken.
            keep: the share of paths to keep, those with the best scores.
            agent: its likelihood of walking the path by a description is part of the score.
            progress: called with (paths described, paths in all).
        """
        if descriptions < 1:
            raise UserError(f"`descriptions` must be 1 or more, got {descriptions}")
        if descriptions > 1 and not sample:
            raise UserError("`descriptions` compares texts that differ; add `sample=True`")
        if not 0 < keep <= 1:
            raise UserError(f"`keep` must be above 0 and at most 1, got {keep}")
        randomness = torch.Generator().manual_seed(seed)
        choose = Sample(randomness) if sample else take_best
        batches, done = Batches(len(self._pool), _AT_ONCE, seed), 0
        while done < count:
            wanted = math.ceil(min(_AT_ONCE, (count - done) / keep))
            rows = next(batches)[:wanted].to(self.world.device)
            path, length = shortest_paths(self.world, self._pool.start[rows], self._pool.goal[rows])
            heading = torch.randint(HEADINGS, (len(rows),), generator=randomness).to(path.device) * STEP
            path, length, heading = (
                path.repeat(descriptions, 1),
                length.repeat(descriptions),
                heading.repeat(descriptions),
            )
            said = self.speaker.describe(path, heading, choose=choose)
            ids, texts = [str(number) for number in range(len(path))], self.speaker.texts(said.tokens)
            found = described_episodes(self.world, path, length, heading, texts, ids)
            if descriptions > 1 or keep < 1:
                score = said.per_word if agent is None else said.per_word + path_likelihood(agent, found)
                found = found.select(_best(score.view(descriptions, -1), keep, count - done))
            yield from self._records(found, FIRST_PATH_ID + done)
            done += len(found)
            if progress is not None:
                progress(done, count)

    @cached_property
    def _pool(self) -> PathPool:
        return path_pool(self.world, self.experiment.training_scans)

    def _records(self, episodes: EpisodeSet, first: int) -> Iterator[EpisodeRecord]:
        metres = self.world.geodesic(episodes.start, episodes.goal).tolist()
        columns = zip(episodes.path.tolist(), episodes.heading.tolist(), metres, episodes.texts, strict=True)
        for number, (viewpoints, heading, distance, text) in enumerate(columns, start=first):
            yield EpisodeRecord(
                scan=self.world.scans[int(self.world.scan_of[viewpoints[0]])],
                path_id=number,
                path=tuple(self._names(viewpoints)),
                heading=heading,
                instructions=(text,),
                instruction_ids=(f"{number}_0",),
                distance=distance,
            )

    def _names(self, viewpoints: Sequence[int]) -> list[str]:
        return [self.world.viewpoints[viewpoint] for viewpoint in viewpoints if viewpoint != NONE]

    def _random_paths(
        self, split: str, count: int, seed: int
    ) -> tuple[Tensor, Tensor, list[tuple[str, ...]]]:
        """Paths of a split (B, T), their headings (B,), and the instructions of people."""
        paths = paths_of(self.experiment.episodes(split))
        if not 1 <= count <= len(paths):
            raise UserError(f"`count` must be in 1..{len(paths)}, the paths of {split}, got {count}")
        rows = torch.randperm(len(paths), generator=torch.Generator().manual_seed(seed))[:count]
        references = [paths.references[row] for row in rows.tolist()]
        return paths.episodes.path[rows], paths.episodes.heading[rows], references

    def _first_heading(self, path: Tensor, degrees: float | None) -> Tensor:
        """path: (1, T)  ->  (1,) radians: as told, else along the first edge"""
        if degrees is not None or path.shape[1] == 1:
            return torch.tensor([math.radians(degrees or 0.0)], dtype=torch.float64, device=path.device)
        slot = self.world.slot_of(path[:, 0], path[:, 1])
        return self.world.neighbour_heading[path[:, 0], slot.clamp_min(0)].double()


def _best(score: Tensor, keep: float, most: int) -> Tensor:
    """Rows of the best description of the best paths, at most ``most``, in their order.

    score: (descriptions, B)  ->  (K,) into descriptions x B
    """
    best, which = score.max(dim=0)
    kept = best.topk(min(most, math.ceil(keep * len(best)))).indices.sort().values
    return which[kept] * len(best) + kept


def _viewpoints(world: World, scan: str | None, names: Sequence[str]) -> Tensor:
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
        raise UserError(f"several scans have a viewpoint '{viewpoint}' ({names}); name one with `scan`")
    return world.scans[found[0]]
