"""Tokenisation and vocabulary: the public words exactly, lossless files, padded batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenemem.formats.episodes import read_episodes
from scenemem.tasks.vocabulary import BOS, EOS, PAD, SPECIAL, UNK, Vocabulary, as_sentences, split_words
from tests.formats.helpers import put, refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Walk  LEFT.", ["walk", "left", "."]),
        ("Stop!? Now", ["stop", "!", "?", "now"]),
        ("wait...", ["wait", "..."]),
        ("wait.. . go", ["wait", ".. .", "go"]),
        ("stop. . Go", ["stop", ". .", "go"]),
        ("left,.", ["left", ",", "."]),
        ("left, .", ["left", ", ."]),
        ("don't", ["don", "'", "t"]),
        ("2nd-floor", ["2nd", "-", "floor"]),
        ("a.\n.b", ["a", ". .", "b"]),
        ("snake_case _", ["snake_case", "_"]),
        ("", []),
        (" \t\n", []),
    ],
)
def test_how_a_text_is_cut(text: str, words: list[str]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("turn left . stop by the door .", "Turn left. Stop by the door."),
        ("go in , then wait", "Go in, then wait"),
        ("don ' t use the t - shaped stairs", "Don't use the t-shaped stairs"),
        ("walk up / down ( or wait ) !", "Walk up/down (or wait)!"),
        ("wait ... go to room # 5 & stop", "Wait... Go to room #5 & stop"),
        ("", ""),
    ],
)
def test_tokens_are_written_as_people_write(tokens: str, text: str) -> None:
    assert as_sentences(tokens) == text


_WORDS = st.text("abcxyz019", min_size=1, max_size=5)
_MARKS = st.sampled_from([".", ",", "!", "?", "'", "-", "/", "(", ")", "#", "&", ";", ":", '"', "..."])


@given(st.lists(st.tuples(_WORDS, _MARKS | st.none())))
def test_what_people_read_has_the_same_tokens(pairs: list[tuple[str, str | None]]) -> None:
    tokens = [token for pair in pairs for token in pair if token is not None]
    assert split_words(as_sentences(" ".join(tokens))) == tokens


def test_words_come_by_frequency_then_alphabet() -> None:
    vocabulary = Vocabulary.build(["b b a a c", "zebra zebra zebra"], min_count=2)
    assert vocabulary.words == (*SPECIAL, "zebra", "a", "b")
    assert len(vocabulary) == 7
    assert Vocabulary.build(["zebra " * 3, "c a b a b"], min_count=2) == vocabulary


def test_encoding_marks_both_ends_and_decoding_stops_there() -> None:
    vocabulary = Vocabulary.build(["go left left"], min_count=1)
    left, go = 4, 5
    assert vocabulary.encode("Go left now", 10) == [BOS, go, left, UNK, EOS]
    assert vocabulary.encode("Go left now", 4) == [BOS, go, left, EOS], "it is cut in between"
    assert vocabulary.encode("", 2) == [BOS, EOS]
    with pytest.raises(ValueError, match="max_length must be 2 or more to hold <BOS> and <EOS>, got 1"):
        vocabulary.encode("go", 1)
    numbers, lengths = vocabulary.encode_batch(["go", "go left left", "left"], 80)
    padded = [[BOS, go, EOS, PAD, PAD], [BOS, go, left, left, EOS], [BOS, left, EOS, PAD, PAD]]
    assert (numbers.tolist(), lengths.tolist()) == (padded, [3, 5, 3])
    assert vocabulary.decode([BOS, go, PAD, left, EOS, left]) == "go left"
    assert vocabulary.decode(vocabulary.encode("Go right", 9)) == "go <UNK>"


@given(texts=st.lists(st.text(max_size=30), max_size=5))
@settings(max_examples=50, deadline=None)
def test_any_vocabulary_survives_its_file(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    vocabulary = Vocabulary.build(texts, min_count=1)
    file = tmp_path_factory.mktemp("vocabulary") / "words.txt"
    vocabulary.save(file)
    assert Vocabulary.load(file) == vocabulary


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("the\nand\n", "a vocabulary begins with ('<PAD>', '<UNK>', '<EOS>', '<BOS>'), got"),
        ("", "a vocabulary begins with"),
        ("<PAD>\n<UNK>\n<EOS>\nthe\nthe\n", "the word 'the' stands in the vocabulary twice"),
    ],
)
def test_bad_vocabulary_files_are_refused(tmp_path: Path, lines: str, message: str) -> None:
    assert refused(Vocabulary.load, put(tmp_path / "words.txt", lines)).startswith(message)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("file", "splits", "size"),
    [
        ("train_vocab.txt", ("train",), 992),
        ("trainval_vocab.txt", ("train", "val_seen", "val_unseen"), 1083),
    ],
)
def test_the_public_words_come_out(real_data: Path, file: str, splits: tuple[str, ...], size: int) -> None:
    texts = [
        text
        for split in splits
        for episode in read_episodes(real_data / "r2r" / f"R2R_{split}.json")
        for text in episode.instructions
    ]
    built, public = Vocabulary.build(texts), Vocabulary.load(real_data / "r2r" / file)
    assert len(built) == size
    assert set(built.words) == set(public.words)
    assert ". ." in built.words
    counts = Counter(word for text in texts for word in split_words(text))
    assert [counts[word] for word in built.words[4:]] == [counts[word] for word in public.words[4:]]
