from __future__ import annotations

import numpy as np
import pytest

from scenemem.features.words import (
    first_embeddings,
    hashed_label_vectors,
    label_words,
    reduced_label_vectors,
)


def _vectors(*words: str) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    random = np.random.default_rng(0)
    return {word: random.normal(size=20).astype(np.float32) for word in words}


def test_labels_are_split_into_words() -> None:
    assert label_words("TV_monitor / wall-lamp 2") == ["tv", "monitor", "wall", "lamp"]


def test_few_labels_keep_all_their_similarities() -> None:
    vectors = _vectors("bed", "lamp", "side", "table")
    labels = [("bed", ""), ("side table", ""), ("table", ""), ("lamp", "")]
    reduced = reduced_label_vectors(labels, vectors, 8)
    assert reduced.shape == (4, 8)
    np.testing.assert_allclose(np.linalg.norm(reduced, axis=1), 1, atol=1e-3)
    bed, lamp = (vectors[word] / np.linalg.norm(vectors[word]) for word in ("bed", "lamp"))
    assert reduced[0] @ reduced[3] == pytest.approx(bed @ lamp, abs=2e-3)
    assert (reduced[:, 4:] == 0).all(), "four labels span four axes"


def test_the_first_spelling_with_a_known_word_counts() -> None:
    vectors = _vectors("bed", "lamp")
    labels = [("bed", "lamp"), ("lampe", "bed"), ("lampe bed", "lamp"), ("lampe", "")]
    reduced = reduced_label_vectors(labels, vectors, 4)
    np.testing.assert_array_equal(reduced[1], reduced[0])
    np.testing.assert_array_equal(reduced[2], reduced[0])
    assert (reduced[3] == 0).all()


def test_the_axes_are_turned_so_that_nothing_depends_on_their_sign() -> None:
    labels = [("bed",), ("lamp",), ("sofa",)]
    vectors = _vectors("bed", "lamp", "sofa")
    plain = reduced_label_vectors(labels, vectors, 3)
    shuffled = reduced_label_vectors(labels[::-1], vectors, 3)[::-1]
    np.testing.assert_allclose(shuffled, plain, atol=1e-3)


def test_numbers_lie_on_the_grid() -> None:
    for table in (
        reduced_label_vectors([("bed",), ("lamp",)], _vectors("bed", "lamp"), 5),
        hashed_label_vectors([("bed",), ("bed lamp",)], 12),
    ):
        np.testing.assert_array_equal(table * 4096, np.round(table * 4096))


def test_hashed_labels_that_share_a_word_are_alike() -> None:
    bed, side_table, table, nothing = hashed_label_vectors(
        [("bed", ""), ("side table", ""), ("table", ""), ("--", "")], 128
    )
    assert np.linalg.norm(bed) == pytest.approx(1, abs=0.01)
    assert side_table @ table > 0.5
    assert abs(bed @ table) < 0.3
    assert (nothing == 0).all()
    again = hashed_label_vectors([("bed", "")], 128)[0]
    np.testing.assert_array_equal(bed, again)


def test_embeddings_begin_where_their_words_have_vectors() -> None:
    vectors = _vectors("bed", "lamp", "side", "table", "chair")
    known, begin = first_embeddings(["<PAD>", "lamp", "xyz", "bed", "chair"], vectors, 16)
    assert known.tolist() == [1, 3, 4]
    assert begin.std() == pytest.approx(1.0)
    table = np.array([vectors[word] for word in ("lamp", "bed", "chair")], dtype=np.float64)
    table -= table.mean(axis=0)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    begin /= np.linalg.norm(begin, axis=1, keepdims=True)
    np.testing.assert_allclose(begin @ begin.T, table @ table.T, atol=1e-9)


def test_embeddings_keep_no_more_columns_than_asked_for() -> None:
    words = ["bed", "lamp", "side", "table", "chair"]
    assert first_embeddings(words, _vectors(*words), 3)[1].shape == (5, 3)


def test_without_a_known_word_nothing_begins() -> None:
    known, begin = first_embeddings(["bed"], _vectors("lamp"), 3)
    assert known.shape == (0,)
    assert begin.shape[0] == 0
