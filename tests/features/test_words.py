from __future__ import annotations

import math

import numpy as np
import pytest

from scenemem.features.words import (
    Vectors,
    first_embeddings,
    hashed_label_vectors,
    hashed_word_vectors,
    label_words,
    on_grid,
    reduced_label_vectors,
    reduced_vectors,
    text_vectors,
    word_rarity,
)


def _vectors(*words: str) -> dict[str, Vectors]:
    random = np.random.default_rng(0)
    return {word: random.normal(size=20).astype(np.float32) for word in words}


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
    assert label_words("TV_monitor / wall-lamp 2") == ["tv", "monitor", "wall", "lamp"]
    labels = [("bed", "lamp"), ("lampe", "bed"), ("lampe bed", "lamp"), ("lampe", "")]
    reduced = reduced_label_vectors(labels, _vectors("bed", "lamp"), 4)
    np.testing.assert_array_equal(reduced[1], reduced[0])
    np.testing.assert_array_equal(reduced[2], reduced[0])
    assert (reduced[3] == 0).all()


def test_the_axes_are_turned_so_that_nothing_depends_on_their_sign() -> None:
    labels = [("bed",), ("lamp",), ("sofa",)]
    vectors = _vectors("bed", "lamp", "sofa")
    plain = reduced_label_vectors(labels, vectors, 3)
    shuffled = reduced_label_vectors(labels[::-1], vectors, 3)[::-1]
    np.testing.assert_allclose(shuffled, plain, atol=1e-3)


def test_grid_numbers_add_up_exactly_in_any_order() -> None:
    values = on_grid(np.random.default_rng(0).normal(size=(500, 2)))
    products = values[:, 0] * values[:, 1]
    assert products.sum() == products[::-1].cumsum()[-1] == math.fsum(products)
    for table in (
        reduced_label_vectors([("bed",), ("lamp",)], _vectors("bed", "lamp"), 5),
        hashed_label_vectors([("bed",), ("bed lamp",)], 12),
        reduced_vectors(np.array(list(_vectors("bed", "lamp").values())), np.ones(2), 3),
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
    np.testing.assert_array_equal(bed, hashed_label_vectors([("bed", "")], 128)[0])


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
    assert first_embeddings(list(vectors), vectors, 3)[1].shape == (5, 3), "no more columns than wanted"
    known, begin = first_embeddings(["bed"], _vectors("lamp"), 3)
    assert (known.shape, begin.shape[0]) == ((0,), 0), "no known word"


def test_a_word_that_many_texts_hold_tells_little() -> None:
    rarity = word_rarity(["a bed", "a lamp, a lamp", "never said"], np.array([6, 3, 0]))
    assert rarity["a"] == pytest.approx(math.log(10 / 10))
    assert rarity["bed"] == pytest.approx(math.log(10 / 7))
    assert rarity["lamp"] == pytest.approx(math.log(10 / 4)), "twice in a text counts once"
    assert rarity["never"] == pytest.approx(math.log(10 / 1))


def test_a_text_is_the_sum_of_its_words_by_rarity() -> None:
    vectors = _vectors("bed", "lamp", "a")
    bed, lamp = (vectors[word] / np.linalg.norm(vectors[word]) for word in ("bed", "lamp"))
    texts = ["a bed", "xyz", "Bed lamp", "", "lamp"]
    rows = text_vectors(texts, vectors, {"a": 0.0, "bed": 2.0, "lamp": 1.0})
    both = 2 * bed + lamp
    np.testing.assert_allclose(rows[0], bed, atol=1e-6)
    np.testing.assert_allclose(rows[2], both / np.linalg.norm(both), atol=1e-6)
    np.testing.assert_allclose(rows[4], lamp, atol=1e-6)
    assert not rows[[1, 3]].any(), "no known word"
    lacking = text_vectors(["bed lamp"], vectors, {"bed": 1.0})
    expected = text_vectors(["bed lamp"], vectors, {"bed": 1.0, "lamp": 1.0})
    np.testing.assert_array_equal(lacking, expected, "what training lacks is the rarest")
    assert not text_vectors(["bed", "!"], {}, {}).any()
    hashed = hashed_word_vectors(["a bed", "Bed 7"], 16)
    assert list(hashed) == ["a", "bed"]
    assert set(np.abs(hashed["bed"]).tolist()) == {1.0}


def test_the_main_axes_are_those_of_the_weighted_vectors() -> None:
    random = np.random.default_rng(0)
    plane, other = random.normal(size=(30, 2)), random.normal(size=(5, 6))
    vectors = np.concatenate([plane @ random.normal(size=(2, 6)), other]).astype(np.float32)
    weight = np.array([1.0] * 30 + [0.0] * 5)
    reduced = reduced_vectors(vectors, weight, 2)
    np.testing.assert_allclose(
        np.linalg.norm(reduced[:30], axis=1), np.linalg.norm(vectors[:30], axis=1), atol=1e-3
    )
    assert (np.linalg.norm(reduced[30:], axis=1) < np.linalg.norm(vectors[30:], axis=1)).all()
    wide = reduced_vectors(vectors, weight, 9)
    np.testing.assert_allclose(wide[:, :2], reduced, atol=1e-3)
    assert not wide[:, 6:].any(), "six numbers have six axes"
