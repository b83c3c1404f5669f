"""Words <-> numbers: the tokenisation of R2R, its vocabulary of frequent words, padded batches."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scenemem.errors import DataError
from scenemem.formats.atomic import StrPath, atomic_file
from scenemem.formats.decoding import read_lines

PAD, UNK, EOS, BOS = range(4)
SPECIAL = ("<PAD>", "<UNK>", "<EOS>", "<BOS>")

MOST_WORDS = 1_000_000
"""Of a vocabulary."""

_RUN = re.compile(r"\w+|\W+")
_PUNCTUATION = frozenset(string.punctuation)
_CLOSING, _OPENING, _JOINING, _ENDING = ".,;:!?)]%", "([#", "'/-", ".!?"  # how marks stand in a sentence


def split_words(text: str) -> list[str]:
    """The tokens of a text, as the public R2R vocabularies cut it.

    Runs of word characters are lower-cased. A run of anything else is split into single characters when it is
    all ASCII punctuation, except that full stops stay together; a run with a space inside stays whole, which
    is why the public vocabulary holds the entry ``. .``.
    """
    words: list[str] = []
    for run in _RUN.findall(text):
        word = run.strip().lower().replace("\n", " ")  # vocabulary files hold one word per line
        if _PUNCTUATION.issuperset(word) and set(word) != {"."}:
            words.extend(word)
        else:
            words.append(word)
    return words


def as_sentences(text: str) -> str:
    """Tokens joined by spaces as a person would write them: ``turn left .`` becomes ``Turn left.``

    ``split_words`` finds the same tokens in the result, as long as there is a word between any two marks.
    """
    written, glued, begins = "", True, True  # the next token: without a space, with a capital letter
    for word in text.split():
        alone = glued or word[0] in _CLOSING or word[0] in _JOINING
        written += ("" if alone else " ") + (word[0].upper() + word[1:] if begins else word)
        glued = word[0] in _OPENING or word[0] in _JOINING
        begins = word[-1] in _ENDING or (begins and not word[-1].isalnum())
    return written


@dataclass(frozen=True)
class Vocabulary:
    """The known words in index order; the four marks of ``SPECIAL`` come first."""

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise ValueError(f"a vocabulary begins with {SPECIAL}, got {self.words[: len(SPECIAL)]}")
        if len(self._index) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"the word '{twice}' stands in the vocabulary twice")

    @classmethod
    def build(cls, texts: Iterable[str], *, min_count: int = 5) -> Vocabulary:
        """All words seen at least ``min_count`` times, most frequent first, ties in alphabetical order."""
        counts = Counter(word for text in texts for word in split_words(text))
        frequent = (word for word, count in counts.items() if count >= min_count)
        return cls(SPECIAL + tuple(sorted(frequent, key=lambda word: (-counts[word], word))))

    @classmethod
    def load(cls, file: StrPath) -> Vocabulary:
        """Read one word per line; public files without ``<BOS>`` get it as their fourth word."""
        words = tuple(islice(read_lines(file), MOST_WORDS + 1))
        if len(words) > MOST_WORDS:
            raise DataError(file, f"holds more than {MOST_WORDS:,} words; is it a vocabulary?")
        if words[3:4] != (SPECIAL[BOS],):
            words = (*words[:3], SPECIAL[BOS], *words[3:])
        try:
            return cls(words)
        except ValueError as error:
            raise DataError(file, str(error)) from error

    def save(self, file: StrPath) -> None:
        """Write one word per line."""
        with atomic_file(file) as partial:
            partial.write_text("".join(f"{word}\n" for word in self.words), encoding="utf-8")

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, text: str, max_length: int) -> list[int]:
        """``<BOS> words <EOS>`` as numbers; too many words are cut off, the two marks always stay."""
        if max_length < 2:
            raise ValueError(f"max_length must be 2 or more to hold <BOS> and <EOS>, got {max_length}")
        words = split_words(text)[: max_length - 2]
        return [BOS, *(self._index.get(word, UNK) for word in words), EOS]

    def encode_batch(self, texts: Sequence[str], max_length: int) -> tuple[Tensor, Tensor]:
        """B texts  ->  numbers (B, L) int64 padded with ``PAD``, lengths (B,) int64; L is the longest"""
        rows = [torch.tensor(self.encode(text, max_length)) for text in texts]
        lengths = torch.tensor([len(row) for row in rows])
        return pad_sequence(rows, batch_first=True, padding_value=PAD), lengths

    def decode(self, numbers: Iterable[int]) -> str:
        """The words up to ``<EOS>``, joined by spaces; padding and ``<BOS>`` are left out."""
        words: list[str] = []
        for number in numbers:
            if number == EOS:
                break
            if number not in (PAD, BOS):
                words.append(self.words[number])
        return " ".join(words)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}
