"""Vectors for labels, captions and the words of instructions, from word vectors or from hashed words."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from scenemem.features.buildings import FloatArray, on_grid

_WORD = re.compile(r"[a-z]+")
_CHUNK = 4096  # texts whose word vectors are in memory at a time


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


def word_rarity(texts: Sequence[str], counts: npt.NDArray[np.int64]) -> dict[str, float]:
    """The rarity of each word of some texts: log((N + 1) / (n + 1)), n of the N texts hold the word.

    counts: (T,) how often each text occurs  ->  weight by word
    """
    holding: dict[str, int] = {}
    for text, count in zip(texts, counts.tolist(), strict=True):
        for word in set(label_words(text)):
            holding[word] = holding.get(word, 0) + count
    total = int(counts.sum())
    return {word: math.log((total + 1) / (count + 1)) for word, count in holding.items()}


def text_vectors(
    texts: Sequence[str],
    vectors: Mapping[str, npt.NDArray[np.float32]],
    rarity: Mapping[str, float],
) -> npt.NDArray[np.float32]:
    """Texts as bags of words: the sum of the unit vectors of their words by rarity, made a unit vector.

    Args:
        texts: T texts.
        vectors: word -> vector (D,); other words are passed over.
        rarity: word -> weight; a word that is not in there counts as the rarest.

    Returns:
        (T, D); a text without a known word is a row of zeros.
    """
    if not vectors:
        return np.zeros((len(texts), 1), dtype=np.float32)
    words = list(vectors)
    number = {word: index for index, word in enumerate(words)}
    rarest = max(rarity.values(), default=1.0)
    table = _unit(np.array([vectors[word] for word in words], dtype=np.float64))
    table *= np.array([rarity.get(word, rarest) for word in words])[:, None]
    result = np.zeros((len(texts), table.shape[1]), dtype=np.float32)
    for start in range(0, len(texts), _CHUNK):
        found = [
            [number[word] for word in label_words(text) if word in number]
            for text in texts[start : start + _CHUNK]
        ]
        lengths = np.array([len(one) for one in found])
        some = np.flatnonzero(lengths)
        if len(some):
            starts = np.cumsum(lengths[some]) - lengths[some]
            flat = np.array([index for one in found for index in one], dtype=np.int64)
            result[start + some] = _unit(np.add.reduceat(table[flat], starts, axis=0))
    return result


def hashed_word_vectors(texts: Sequence[str], width: int) -> dict[str, npt.NDArray[np.float32]]:
    """A vector of fixed random signs, drawn from its hash, for every word of some texts."""
    words = sorted({word for text in texts for word in label_words(text)})
    return {word: _signs(word, width).astype(np.float32) for word in words}


def reduced_vectors(
    vectors: npt.NDArray[np.float32], weight: FloatArray, width: int
) -> tuple[FloatArray, float]:
    """Vectors on the main axes of some of them.

    Args:
        vectors: (T, D).
        weight: (T,) how much each counts when the axes are chosen; 0 leaves it out.
        width: columns to keep.

    Returns:
        (T, width) on the grid of ``on_grid``, zeros where there are fewer axes; and the share of the squared
        length of the weighted vectors that is kept.
    """
    size = vectors.shape[1]
    gram = np.zeros((size, size))
    for start in range(0, len(vectors), _CHUNK):
        part = vectors[start : start + _CHUNK].astype(np.float64)
        gram += (part * weight[start : start + _CHUNK, None]).T @ part
    axes = _main_axes(gram, min(width, size))
    reduced = np.zeros((len(vectors), width))
    for start in range(0, len(vectors), _CHUNK):
        part = vectors[start : start + _CHUNK].astype(np.float64) @ axes.T
        reduced[start : start + _CHUNK, : len(axes)] = on_grid(part)
    kept = float(np.einsum("wd,de,we->", axes, gram, axes)) / max(float(np.trace(gram)), 1e-12)
    return reduced, kept


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
