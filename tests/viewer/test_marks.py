"""Which words are marked, and that captions quote exactly the strongest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scenemem.formats.traces import Trace, Word
from scenemem.viewer.captions import captions
from scenemem.viewer.marks import QUOTED, Marks, levels, marks, quoted

WORDS = (Word("Go"), *(Word(text, " ") for text in ("past", "the", "red", "sofa", ",")))
TEXTS = st.sampled_from(["Go", "past", "the", "sofa", "left", "wall", ",", ".", "after"])


def test_marks_grow_with_attention_and_leave_little_words_and_punctuation() -> None:
    assert levels(WORDS, (0.5, 0.2, 0.6, 0.1, 0.0, 0.9)) == (3, 2, 0, 1, 0, 0)
    assert quoted(WORDS, levels(WORDS, (0.5, 0.2, 0.6, 0.1, 0.0, 0.9))) == "“Go”"


def test_attention_on_no_word_in_particular_marks_nothing() -> None:
    assert levels(WORDS, (0.1, 0.0, 0.6, 0.0, 0.0, 0.3)) == (0,) * 6
    assert quoted(WORDS, (0,) * 6) is None
    assert levels((Word("!"),), (1.0,)) == (0,)
    assert levels((), ()) == ()


def test_neighbours_are_quoted_together_and_repeated_words_once() -> None:
    assert quoted(WORDS, (3, 0, 0, 3, 3, 0)) == "“Go” and “red sofa”"
    spoken = ("wall", "mirror", "then", "Wall", "mirror", "by", "sofa", "or", "go")
    many = tuple(Word(text, " ") for text in spoken)
    assert quoted(many, (3, 3, 0, 3, 3, 0, 3, 0, 3)) == "“wall mirror”, “sofa” and “go”"


@given(st.lists(st.tuples(TEXTS, st.floats(0.0, 1.0)), min_size=1, max_size=12))
def test_at_most_four_words_are_quoted_and_none_louder_is_left_out(heard: list[tuple[str, float]]) -> None:
    words, shares = [Word(text, " ") for text, _ in heard], [share for _, share in heard]
    found = levels(words, shares)
    strong = [share for share, level in zip(shares, found, strict=True) if level == QUOTED]
    others = [
        share
        for (text, share), level in zip(heard, found, strict=True)
        if level != QUOTED and text not in ("the", ",", ".", "after")
    ]
    assert len(strong) <= 4
    assert (quoted(words, found) is None) == (not strong)
    assert not strong or min(strong) >= max(others, default=0.0)


def test_every_decision_marks_the_words_its_sentence_quotes(turning_back: Trace) -> None:
    first, second = marks(turning_back)[2]
    assert first == Marks((0, 0, 0, 3, 0), (3, 2, 0, 0, 0))
    assert second == Marks((0, 3, 0, 0, 0), (0, 0, 0, 3, 0))
    for turn, told in zip(marks(turning_back), captions(turning_back, {}), strict=False):
        for mark, sentence in zip(turn, told.split("\n"), strict=True):
            assert mark is not None
            for words in (quoted(turning_back.task.words, kind) for kind in (mark.looks, mark.moves)):
                assert (words or "no word in particular") in sentence
