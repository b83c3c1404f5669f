"""Vectors for labels, captions and the words of instructions, from word vectors or from hashed words.

Shape letters: L labels, T texts, W columns kept, D columns of a vector.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

_WORD = re.compile(r"[a-z]+")
_CHUNK = 4096  # texts whose word vectors are in memory at a time
_GRID = 4096.0  # steps per unit


def on_grid(values: FloatArray) -> FloatArray:
    """Round to multiples of 1/4096.

    Sums of products of such numbers are exact in float64, so neither the order of the sum nor the number of
    threads changes a feature. The last bit of a sine, which may differ on another machine, matters only on
    the edge between two multiples.
    """
    return np.round(values * _GRID) / _GRID


def label_words(label: str) -> list[str]:
    """The lower-case words of a label: ``"tv_monitor"`` -> ``["tv", "monitor"]``."""
    return _WORD.findall(label.lower())


def hashed_word_vectors(texts: Sequence[str], width: int) -> dict[str, Vectors]:
    """A vector of fixed random signs, drawn from its hash, for every word of some texts."""
    words = sorted({word for text in texts for word in label_words(text)})
    return {word: _signs(word, width) for word in words}


def hashed_label_vectors(labels: Sequence[tuple[str, ...]], width: int) -> FloatArray:
    """Label vectors (L, W) of hashed words: those that share a word are alike, others nearly orthogonal."""
    vectors = hashed_word_vectors([text for spellings in labels for text in spellings], width)
    return on_grid(_label_table(labels, vectors, width))


def reduced_label_vectors(
    labels: Sequence[tuple[str, ...]], vectors: Mapping[str, Vectors], width: int
) -> FloatArray:
    """Label vectors (L, W) on their main axes; a label without a known word is a row of zeros."""
    table = _label_table(labels, vectors, len(next(iter(vectors.values()))))
    axes = _main_axes(table, width)
    reduced = np.zeros((len(labels), width))
    reduced[:, : len(axes)] = table @ axes.T
    return on_grid(reduced)


def _label_table(labels: Sequence[tuple[str, ...]], vectors: Mapping[str, Vectors], size: int) -> FloatArray:
    """The mean of the unit vectors of each label's words, made a unit vector again (L, D).

    ``labels`` holds the spellings of every label, best first; the first one with a known word counts.
    """
    table = np.zeros((len(labels), size))
    for row, spellings in zip(table, labels, strict=True):
        known = ([vectors[word] for word in label_words(text) if word in vectors] for text in spellings)
        if found := next(filter(None, known), None):
            row[:] = _unit(_unit(np.array(found, dtype=np.float64)).mean(axis=0))
    return table


def first_embeddings(
    words: Sequence[str], vectors: Mapping[str, Vectors], width: int
) -> tuple[IntArray, FloatArray]:
    """Numbers of the words of a vocabulary with a vector (n,), and embeddings to begin with (n, <= width).

    These are the centred unit vectors on their main axes. All numbers together have variance 1, as the random
    numbers that other embeddings begin with.
    """
    known = np.array([number for number, word in enumerate(words) if word in vectors], dtype=np.int64)
    if not len(known):
        return known, np.zeros((0, 0))
    table = np.array([vectors[words[number]] for number in known], dtype=np.float64)
    table = _unit(table - table.mean(axis=0))
    reduced = table @ _main_axes(table, width).T
    return known, reduced / max(float(reduced.std()), 1e-12)


def word_rarity(texts: Sequence[str], counts: IntArray) -> dict[str, float]:
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
    texts: Sequence[str], vectors: Mapping[str, Vectors], rarity: Mapping[str, float]
) -> Vectors:
    """Texts as bags of words (T, D): the unit vectors of their words, summed by rarity, made unit vectors.

    Words without a vector are passed over, and a text without a known word is a row of zeros; a word without
    a rarity counts as the rarest.
    """
    if not vectors:
        return np.zeros((len(texts), 1), dtype=np.float32)
    number = {word: index for index, word in enumerate(vectors)}
    rarest = max(rarity.values(), default=1.0)
    table = _unit(np.array(list(vectors.values()), dtype=np.float64))
    table *= np.array([rarity.get(word, rarest) for word in vectors])[:, None]
    result = np.zeros((len(texts), table.shape[1]), dtype=np.float32)
    for start in range(0, len(texts), _CHUNK):
        part = texts[start : start + _CHUNK]
        found = [[number[word] for word in label_words(text) if word in number] for text in part]
        lengths = np.array([len(one) for one in found])
        some = np.flatnonzero(lengths)
        if len(some):
            starts = np.cumsum(lengths[some]) - lengths[some]
            flat = np.array([index for one in found for index in one], dtype=np.int64)
            result[start + some] = _unit(np.add.reduceat(table[flat], starts, axis=0))
    return result


def reduced_vectors(vectors: Vectors, weight: FloatArray, width: int) -> FloatArray:
    """Vectors on their main axes, zeros where there are fewer axes.

    vectors: (T, D)  weight: (T,) how much each counts when the axes are chosen, or 0  ->  (T, W)
    """
    size = vectors.shape[1]
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(vectors), _CHUNK)]
    gram = np.zeros((size, size))
    for chunk in chunks:
        part = vectors[chunk].astype(np.float64)
        gram += (part * weight[chunk, None]).T @ part
    axes = _main_axes(gram, min(width, size))
    reduced = np.zeros((len(vectors), width))
    for chunk in chunks:
        reduced[chunk, : len(axes)] = on_grid(vectors[chunk].astype(np.float64) @ axes.T)
    return reduced


def _main_axes(table: FloatArray, width: int) -> FloatArray:
    """The right singular vectors, each turned so that its largest entry is positive  ->  (<= width, D)"""
    axes = np.linalg.svd(table, full_matrices=False)[2][:width]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return np.asarray(axes * np.sign(largest))


def _signs(word: str, width: int) -> Vectors:
    digest = hashlib.shake_128(word.encode()).digest(-(-width // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8))[:width]
    return bits.astype(np.float32) * 2 - 1


def _unit(vectors: FloatArray) -> FloatArray:
    """vectors: (..., D)  ->  the same directions with length 1; zeros stay zeros"""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0))
