"""The track captions: captions of every view, and the free space around the viewpoint.

Shape letters: V viewpoints, C captions of one (36 views, or NavGPT's 24 directions), M detections, T texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np

from scenemem.errors import DataError, SettingError, UserError
from scenemem.features.objects import SPACE_GROUP, BoolArray, Building, space, unannotated
from scenemem.features.store import CAPTIONS, column_groups
from scenemem.features.words import (
    FloatArray,
    IntArray,
    Vectors,
    hashed_word_vectors,
    on_grid,
    reduced_vectors,
    text_vectors,
    word_rarity,
)
from scenemem.formats.annotations import (
    NAVGPT_HEADINGS,
    NAVGPT_ROWS,
    PUBLISHED,
    Captioner,
    CaptionFiles,
    find_captions,
    read_captions,
    read_word_vectors,
)
from scenemem.formats.connectivity import connectivity_files, read_scan
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import Column, StoreInfo, write_store
from scenemem.formats.folder import DataFolder
from scenemem.world.build import Progress
from scenemem.world.graph import HEADINGS, ROWS, VIEWS

HASHED_WIDTH = 300  # of the vectors of words when there are no word vectors


@dataclass(frozen=True)
class CaptionConfig:
    """Whose captions are read and how they become numbers."""

    captioner: Literal["langnav", "navgpt", "both"] = "langnav"
    """BLIP captions and DETR detections of 36 views, BLIP-2 captions of 24 directions, or both"""
    caption_columns: int = 128
    """columns for the caption of a view, per captioner"""
    detection_columns: int = 96
    """columns for the captions of the detected objects in a view"""

    def __post_init__(self) -> None:
        for name in ("caption_columns", "detection_columns"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} must be 0 or more, got {getattr(self, name)}; 0 leaves them out")


@dataclass(frozen=True, eq=False)
class CaptionTable:
    """The captions of all viewpoints as numbers: every different text stands there once."""

    captioner: Captioner
    texts: tuple[str, ...]  # all different captions, sorted
    caption: IntArray  # (V, C) index into texts
    detection_view: IntArray  # (M,) 36 * viewpoint + view, ascending
    detection_text: IntArray  # (M,) index into texts
    detection_weight: FloatArray  # (M,) confidence x (share of the picture) ^ 1/4, in [0, 1]


@dataclass(frozen=True, eq=False)
class EncodedCaptions:
    """A table and what its texts became; looking up a viewpoint needs nothing of the others."""

    table: CaptionTable
    captions: FloatArray  # (T, caption columns)
    detections: FloatArray  # (T, detection columns)


def build_caption_features(
    data: DataFolder,
    target: Path,
    config: CaptionConfig | None = None,
    progress: Progress | None = None,
) -> StoreInfo:
    """Build the store of the track ``captions``.

    Everything that is fitted - how rare words are, main axes - is fitted on the buildings of R2R's
    training split; on all buildings when there is no such file. ``progress`` is called with (buildings done,
    in all), where a building counts once per captioner and once when it is written.

    Raises:
        UserError: there are no captions, or the target cannot be written.
        DataError: a file is broken, or its viewpoints are not those of the connectivity files.
    """
    config = config or CaptionConfig()
    captioners = ("langnav", "navgpt") if config.captioner == "both" else (config.captioner,)
    files = [_found(data, cast(Captioner, captioner)) for captioner in captioners]
    scans = [read_scan(file) for file in connectivity_files(data.connectivity)]
    known = {scan.name: {viewpoint.image_id for viewpoint in scan.viewpoints} for scan in scans}
    buildings = [unannotated(scan) for scan in scans]
    keys = [key for building in buildings for key in building.keys]
    trained = _training_scans(data) & set(known) or set(known)
    named = zip(known, buildings, strict=True)
    training = np.array([scan in trained for scan, building in named for _ in building.keys])

    def stage(number: int) -> Progress:
        """One progress bar for all stages, counted in buildings."""
        each = len(buildings)

        def advance(done: int, total: int) -> None:
            if progress is not None:
                progress(number * each + each * done // total, (len(files) + 1) * each)

        return advance

    parts = []
    for number, one in enumerate(files):
        table = caption_table(one, keys, known, stage(number))
        parts.append(encode_captions(table, training, _word_vectors(data, table.texts), config))

    columns = caption_columns(parts)
    glove = data.word_vectors
    words = f"glove/{glove.name} bags" if glove.is_file() else "hashed words (no glove/)"
    fitted = f"{len(trained)} training buildings" if trained != set(known) else "all buildings"
    widths = " + ".join(str(table.shape[1]) for part in parts for table in (part.captions, part.detections))
    return write_store(
        target,
        keys,
        _rows(parts, buildings, stage(len(files))),
        width=columns[-1].stop,
        source="; ".join(one.origin for one in files),
        encoder=f"{config.captioner} captions, {words} reduced to {widths} on {fitted}",
        columns=columns,
        **CAPTIONS.about,
    )


def _rows(
    parts: Sequence[EncodedCaptions], buildings: Sequence[Building], progress: Progress
) -> Iterator[FloatArray]:
    """The rows of the store (36, D), building by building."""
    first = 0
    for done, building in enumerate(buildings, start=1):
        last = first + len(building.keys)
        columns = [caption_features(part, first, last) for part in parts]
        yield from np.concatenate([*columns, space(building)], axis=-1)
        first = last
        progress(done, len(buildings))


def _found(data: DataFolder, captioner: Captioner) -> CaptionFiles:
    files = find_captions(data.captions, captioner)
    if files is None:
        published = PUBLISHED[captioner]
        names = f"the archive {published.archives}.tar.gz or the folder {published.folder}"
        reason = f"no captions of {captioner}; put {names} there, see docs/features.md"
        raise UserError(f"{data.captions}: {reason}")
    return files


def _training_scans(data: DataFolder) -> set[str]:
    file = data.episodes("r2r", "train")
    return {episode.scan for episode in read_episodes(file)} if file.is_file() else set()


def caption_table(
    files: CaptionFiles, keys: Sequence[str], known: dict[str, set[str]], progress: Progress
) -> CaptionTable:
    """Read the captions of the viewpoints ``keys``, named ``<scan>_<viewpoint>``.

    ``known`` has all viewpoints of every scan, those that are not wanted too; other scans are passed over.

    Raises:
        DataError: a file is broken, names a viewpoint that is not known, or lacks one that is wanted.
    """
    row = {key: number for number, key in enumerate(keys)}
    size = VIEWS if files.captioner == "langnav" else NAVGPT_HEADINGS * len(NAVGPT_ROWS)
    texts, seen = dict[str, int](), set[str]()
    caption = np.full((len(keys), size), -1, dtype=np.int64)
    found: list[tuple[int, int, float]] = []
    for record in read_captions(files):
        if record.scan not in known:
            continue
        if record.scan not in seen:
            seen.add(record.scan)
            progress(len(seen), max(len(known), len(seen)))
        if record.viewpoint not in known[record.scan]:
            reason = "is not in the connectivity file of its scan; are both of the same data set?"
            raise DataError(files.place, reason, record=record.place)
        here = row.get(f"{record.scan}_{record.viewpoint}")
        if here is None:  # not included
            continue
        caption[here] = [texts.setdefault(text, len(texts)) for text in record.captions]
        for view, entries in enumerate(record.detections):
            for entry in entries:
                text = texts.setdefault(entry.caption, len(texts))
                found.append((here * VIEWS + view, text, entry.confidence * entry.share**0.25))
    if missing := np.flatnonzero(caption[:, 0] < 0).tolist():
        lacks = f"{len(missing)} of the {len(keys)} viewpoints of the connectivity files"
        advice = "get the complete files, or use connectivity files of fewer scans"
        raise DataError(files.place, f"lacks {lacks}, first '{keys[missing[0]]}'; {advice}")
    # in an order that does not depend on the order of the files
    order, new = sorted(texts), np.zeros(len(texts), dtype=np.int64)
    new[[texts[text] for text in order]] = np.arange(len(order))
    columns = np.array(found, dtype=np.float64).reshape(-1, 3)
    columns = columns[np.argsort(columns[:, 0], kind="stable")]
    view, text = columns[:, :2].astype(np.int64).T
    return CaptionTable(files.captioner, tuple(order), new[caption], view, new[text], columns[:, 2])


def encode_captions(
    table: CaptionTable, training: BoolArray, known: Mapping[str, Vectors], config: CaptionConfig
) -> EncodedCaptions:
    """Turn texts into bags of known words; everything fitted is fitted on the training viewpoints (V,)."""
    count = len(table.texts)
    in_training = training[table.detection_view // VIEWS]
    said = np.bincount(table.caption[training].ravel(), minlength=count)
    described = table.detection_text[in_training]
    amount = table.detection_weight[in_training] ** 2
    rarity = word_rarity(table.texts, said + np.bincount(described, minlength=count))
    vectors = text_vectors(table.texts, known, rarity)
    captions = reduced_vectors(vectors, np.asarray(said, np.float64), config.caption_columns)
    width = config.detection_columns if len(table.detection_text) else 0
    weight = np.bincount(described, weights=amount, minlength=count)
    detections = reduced_vectors(vectors, np.asarray(weight, np.float64), width)
    return EncodedCaptions(table, captions, detections)


def caption_features(encoded: EncodedCaptions, first: int, last: int) -> FloatArray:
    """The features of viewpoints ``first`` up to ``last``: captions, then detections (n, 36, D)."""
    table, count = encoded.table, last - first
    said = _spreading(table.captioner) @ encoded.captions[table.caption[first:last]]
    begin, end = np.searchsorted(table.detection_view, (first * VIEWS, last * VIEWS))
    view = table.detection_view[begin:end] - first * VIEWS
    weight = on_grid(table.detection_weight[begin:end])
    words = np.zeros((count * VIEWS, encoded.detections.shape[1]))
    np.add.at(words, view, weight[:, None] * encoded.detections[table.detection_text[begin:end]])
    square = np.bincount(view, weights=weight * weight, minlength=count * VIEWS)
    words /= np.sqrt(np.maximum(square, 1.0))[:, None]
    return np.concatenate([said, words.reshape(count, VIEWS, words.shape[1])], axis=-1)


def caption_columns(parts: Sequence[EncodedCaptions]) -> tuple[Column, ...]:
    """The columns of a store of these captions."""
    groups = []
    for one in parts:
        name, detected = one.table.captioner, "the captions of detected objects, summed by weight"
        groups += [
            (f"{name} captions", one.captions.shape[1], "the caption of the view"),
            (f"{name} detections", one.detections.shape[1], detected),
        ]
    return column_groups([*groups, SPACE_GROUP])


def _spreading(captioner: Captioner) -> FloatArray:
    """How much each caption of a viewpoint counts in each view (36, C).

    LangNav captions the views themselves. NavGPT's headings are 45 degrees apart: a view between two of them
    takes from both, linearly by angle.
    """
    if captioner == "langnav":
        return np.eye(VIEWS)
    heading = np.arange(HEADINGS) * NAVGPT_HEADINGS / HEADINGS  # in steps of 45 degrees
    below = np.floor(heading).astype(np.int64)
    share = np.zeros((HEADINGS, NAVGPT_HEADINGS))
    share[np.arange(HEADINGS), below] = 1.0 - (heading - below)
    share[np.arange(HEADINGS), (below + 1) % NAVGPT_HEADINGS] += heading - below
    return np.asarray(np.kron(np.eye(ROWS), on_grid(share)), np.float64)


def _word_vectors(data: DataFolder, texts: Sequence[str]) -> Mapping[str, Vectors]:
    """Those of the data folder, else hashed words."""
    if not data.word_vectors.is_file():
        return hashed_word_vectors(texts, HASHED_WIDTH)
    return dict(zip(*read_word_vectors(data.word_vectors), strict=True))
