"""Corpus BLEU-4 of descriptions against all instructions of their paths, and two controls to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from scenemem.errors import UserError
from scenemem.features.store import Environment
from scenemem.learning.speaker import Speaker, steps_along, views_along
from scenemem.tasks.episode_set import EpisodeSet, in_order
from scenemem.tasks.vocabulary import split_words
from scenemem.world.build import Progress

_BATCH = 128  # paths at once
_MOVES = 12  # of a path whose directions count when paths are compared


@dataclass(frozen=True, eq=False)
class PathSet:
    """The distinct paths of a split and everything people said about each of them."""

    episodes: EpisodeSet  # P rows, the first instruction of every path
    references: tuple[tuple[str, ...], ...]  # P tuples of texts

    def __len__(self) -> int:
        return len(self.references)


def paths_of(episodes: EpisodeSet) -> PathSet:
    """The paths of a split, in the order of its file.

    Raises:
        UserError: the split is empty or keeps its paths secret.
    """
    if not len(episodes) or not episodes.has_goals:
        raise UserError(f"'{episodes.name}' shows no paths; name a split that does, such as val_unseen")
    rows_of: dict[int, list[int]] = {}
    for row, record in enumerate(episodes.record.tolist()):
        rows_of.setdefault(record, []).append(row)
    references = tuple(tuple(episodes.texts[row] for row in rows) for rows in rows_of.values())
    return PathSet(episodes.select([rows[0] for rows in rows_of.values()]), references)


def describe_paths(
    speaker: Speaker, paths: PathSet, *, beams: int = 1, progress: Progress | None = None
) -> list[str]:
    """A description of every path: greedily, or the best of several beams."""
    texts: list[str] = []
    for rows in in_order(len(paths), _BATCH, progress):
        path, heading = paths.episodes.path[rows], paths.episodes.heading[rows]
        texts += speaker.texts(speaker.describe_best(path, heading, beams).tokens)
    return texts


def corpus_bleu(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Corpus BLEU-4 in [0, 1], without smoothing; words are cut and lower-cased as for the vocabulary.

    ``references`` holds all that was said about every path; their number may differ from path to path.
    """
    # the library takes the first references of all paths, then all second ones, ...; None where there is none
    streams = zip_longest(*([_spaced(text) for text in group] for group in references))
    result = bleu_scorer().corpus_score(list(map(_spaced, texts)), list(map(list, streams)))
    return float(result.score) / 100.0


def bleu_scorer() -> Any:
    """The library's scorer; made early, it shows a missing library before the work is done.

    Raises:
        UserError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU  # an extra, and only needed here
    except ImportError as error:
        raise UserError("BLEU needs sacrebleu; install it with: pip install 'scenemem[speak]'") from error
    return BLEU(tokenize="none", smooth_method="none", force=True)


def other_paths(paths: int, seed: int) -> list[int]:
    """Another path for each of some paths, at random; none is its own."""
    if paths < 2:
        raise UserError(f"the shuffled control needs two paths or more, got {paths}")
    order = torch.randperm(paths, generator=torch.Generator().manual_seed(seed)).tolist()
    other = dict(zip(order, order[1:] + order[:1], strict=True))  # one big cycle: no path keeps its own
    return [other[number] for number in range(paths)]


def shuffled_bleu(texts: Sequence[str], references: Sequence[Sequence[str]], seed: int) -> float:
    """BLEU of the same texts, each against the references of some other path: what style alone earns."""
    return corpus_bleu(texts, [references[other] for other in other_paths(len(texts), seed)])


def retrieved_texts(
    environment: Environment, paths: PathSet, known: PathSet, *, progress: Progress | None = None
) -> list[str]:
    """The first instruction of the most similar known path: what a memory without grammar earns.

    Two paths are as similar as the inner product of their features, see ``path_features``.
    """
    library = path_features(environment, known.episodes)
    texts: list[str] = []
    for rows in in_order(len(paths), _BATCH, progress):
        nearest = (path_features(environment, paths.episodes.select(rows)) @ library.t()).argmax(dim=1)
        texts += [known.references[number][0] for number in nearest.tolist()]
    return texts


def path_features(environment: Environment, episodes: EpisodeSet) -> Tensor:
    """The mean view along a path, and the directions walked, both as unit vectors  ->  (B, D + 4 * moves)

    A direction is relative to where the walker looked before.
    """
    parts = []
    for rows in in_order(len(episodes), _BATCH):
        some = episodes.select(rows)
        views = views_along(environment, steps_along(environment.world, some.path, some.heading))
        look = views.chosen.sum(dim=1)  # a unit vector does not depend on the number of moves
        turns = functional.pad(views.direction, (0, 0, 0, _MOVES))[:, :_MOVES].flatten(1)
        parts.append(torch.cat([functional.normalize(part, dim=1) for part in (look, turns)], dim=1))
    return torch.cat(parts)


def _spaced(text: str) -> str:
    return " ".join(split_words(text))
