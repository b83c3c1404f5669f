"""Vectors for object labels and for the words of instructions, from word vectors or from hashed words."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scenemem.features.buildings import FloatArray, on_grid

_WORD = re.compile(r"[a-z]+")


def label_words(label: str) -> list[str]:
    """The lower-case words of a label: ``"tv_monitor"`` -> ``["tv", "monitor"]``."""
    return _WORD.findall(label.lower())


def reduced_label_vectors(
    labels: Sequence[tuple[str, ...]], vectors: Mapping[str, npt.NDArray[np.float32]], width: int
) -> FloatArray:
    """Label vectors on their ``width`` main axes.

    A label vector is the mean of the unit vectors of its words, made a unit vector again; the axes are the
    right singular vectors of the table of all labels.
    Numbers are rounded to the grid of ``on_grid``, so that the last bits of the decomposition do not matter.

    Args:
        labels: spellings of every label, best first; the first one with a known word counts.
        vectors: word -> vector.
        width: columns to keep.

    Returns:
        (L, width); a label without a known word is a row of zeros.
    """
    size = len(next(iter(vectors.values())))
    table = np.zeros((len(labels), size))
    for row, spellings in zip(table, labels, strict=True):
        known = ([vectors[word] for word in label_words(text) if word in vectors] for text in spellings)
        if found := next(filter(None, known), None):
            row[:] = _unit(_unit(np.array(found, dtype=np.float64)).mean(axis=0))
    axes = _main_axes(table, width)
    reduced = np.zeros((len(labels), width))
    reduced[:, : len(axes)] = table @ axes.T
    return on_grid(reduced)


def first_embeddings(
    words: Sequence[str], vectors: Mapping[str, npt.NDArray[np.float32]], width: int
) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Where the embeddings of a vocabulary may begin: the vectors of its words on their main axes.

    They are centred and made unit vectors first, and their numbers have variance 1 all together, as the
    random numbers that other embeddings begin with.

    Args:
        words: the vocabulary.
        vectors: word -> vector.
        width: columns to keep at most.

    Returns:
        the numbers of the words with a vector (n,), and their embeddings (n, <= width).
    """
    known = np.array([number for number, word in enumerate(words) if word in vectors], dtype=np.int64)
    if not len(known):
        return known, np.zeros((0, 0))
    table = np.array([vectors[words[number]] for number in known], dtype=np.float64)
    table = _unit(table - table.mean(axis=0))
    reduced = table @ _main_axes(table, width).T
    return known, reduced / max(float(reduced.std()), 1e-12)


def hashed_label_vectors(labels: Sequence[tuple[str, ...]], width: int) -> FloatArray:
    """Label vectors without word vectors: every word stands for fixed random signs drawn from its hash.

    Labels that share a word are alike, everything else is nearly orthogonal; meaning is not captured.

    labels: spellings of every label, the first one with a word counts  ->  (L, width)
    """
    table = np.zeros((len(labels), width))
    for row, spellings in zip(table, labels, strict=True):
        if words := next(filter(None, map(label_words, spellings)), None):
            row[:] = _unit(np.mean([_signs(word, width) for word in words], axis=0))
    return on_grid(table)


def _main_axes(table: FloatArray, width: int) -> FloatArray:
    """The right singular vectors, each turned so that its largest entry is positive  ->  (<= width, D)"""
    axes = np.linalg.svd(table, full_matrices=False)[2][:width]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return np.asarray(axes * np.sign(largest))


def _signs(word: str, width: int) -> FloatArray:
    digest = hashlib.shake_128(word.encode()).digest(-(-width // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8))[:width]
    return bits.astype(np.float64) * 2.0 - 1.0


def _unit(vectors: FloatArray) -> FloatArray:
    """vectors: (..., D)  ->  the same directions with length 1; zeros stay zeros"""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0))
