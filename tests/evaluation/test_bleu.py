"""BLEU: the paper's definition, and the controls beside it."""

from __future__ import annotations

import math
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scenemem.errors import UserError
from scenemem.evaluation.bleu import (
    PathSet,
    corpus_bleu,
    path_features,
    paths_of,
    retrieved_texts,
    shuffled_bleu,
)
from scenemem.features.store import Environment
from scenemem.tasks.episode_set import EpisodeSet


def _ngrams(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def _reference_bleu(texts: list[str], references: list[list[str]]) -> float:
    """Papineni's definition, written down plainly."""
    matched, total = [0] * 4, [0] * 4
    said = wanted = 0
    for text, group in zip(texts, references, strict=True):
        words, others = text.split(), [reference.split() for reference in group]
        said += len(words)
        wanted += min((abs(len(other) - len(words)), len(other)) for other in others)[1]
        for order in range(1, 5):
            counts = _ngrams(words, order)
            most = Counter[tuple[str, ...]]()
            for other in others:
                most |= _ngrams(other, order)
            matched[order - 1] += (counts & most).total()
            total[order - 1] += counts.total()
    if min(matched) == 0:
        return 0.0
    precision = math.exp(sum(math.log(m / t) for m, t in zip(matched, total, strict=True)) / 4)
    return precision * min(1.0, math.exp(1 - wanted / said))


_TEXT = st.lists(st.sampled_from("abc"), min_size=4, max_size=12).map(" ".join)


@given(st.lists(st.tuples(_TEXT, st.lists(_TEXT, min_size=1, max_size=3)), min_size=1, max_size=5))
def test_bleu_is_what_the_paper_says(corpus: list[tuple[str, list[str]]]) -> None:
    texts, references = [text for text, _ in corpus], [group for _, group in corpus]
    assert corpus_bleu(texts, references) == pytest.approx(_reference_bleu(texts, references), abs=1e-9)


def test_case_and_glued_punctuation_do_not_matter_and_empty_texts_are_worth_nothing() -> None:
    text = ["walk down the hall , then stop ."]
    assert corpus_bleu(text, [["Walk down the hall, then stop."]]) == pytest.approx(1.0)
    assert corpus_bleu(["", ""], [["go to the left door"], ["go to the right door"]]) == 0.0


def test_shuffling_pairs_every_text_with_another_path() -> None:
    texts = [f"{letter} {letter} {letter} {letter} {letter}" for letter in "abcdefg"]
    references = [[text] for text in texts]
    assert corpus_bleu(texts, references) == pytest.approx(1.0)
    for seed in range(20):
        assert shuffled_bleu(texts, references, seed) == 0.0


def test_the_paths_of_a_split_keep_all_their_instructions(episodes: EpisodeSet) -> None:
    paths = paths_of(episodes)
    assert len(paths) == len(episodes) // 3
    assert [text for group in paths.references for text in group] == list(episodes.texts)
    assert torch.equal(paths.episodes.path, episodes.path[::3])
    shuffled = paths_of(episodes.select(torch.randperm(len(episodes)).tolist()))
    assert sorted(sorted(group) for group in shuffled.references) == sorted(map(sorted, paths.references))


def test_a_known_path_retrieves_its_own_instruction(environment: Environment, episodes: EpisodeSet) -> None:
    paths = paths_of(episodes)
    seen: list[tuple[int, int]] = []
    texts = retrieved_texts(environment, paths, paths, progress=lambda *done: seen.append(done))
    assert texts == [group[0] for group in paths.references]
    assert seen[-1] == (len(paths), len(paths))


def test_retrieval_follows_the_features(environment: Environment, episodes: EpisodeSet) -> None:
    paths = paths_of(episodes)
    half = len(paths) // 2
    known = PathSet(paths.episodes.select(range(half)), paths.references[:half])
    others = PathSet(paths.episodes.select(range(half, len(paths))), paths.references[half:])
    library, queries = path_features(environment, known.episodes), path_features(environment, others.episodes)
    width = environment.width
    for part in (library[:, :width], library[:, width:]):
        torch.testing.assert_close(part.norm(dim=1), torch.ones(half))
    for text, query in zip(retrieved_texts(environment, others, known), queries, strict=True):
        nearest = min(range(half), key=lambda number: float((library[number] - query).norm()))
        assert text == known.references[nearest][0]


def test_what_cannot_be_measured_is_refused(
    secret_episodes: EpisodeSet, episodes: EpisodeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for empty in (secret_episodes, episodes.select([])):
        with pytest.raises(UserError, match="shows no paths; name a split that does"):
            paths_of(empty)
    with pytest.raises(UserError, match="the shuffled control needs two paths or more, got 1"):
        shuffled_bleu(["go"], [["go"]], 0)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(UserError, match="BLEU needs sacrebleu; install it with: pip install"):
        corpus_bleu(["go"], [["go"]])
