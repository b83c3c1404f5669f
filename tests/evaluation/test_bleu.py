"""BLEU: the paper's definition, and the controls beside it."""

from __future__ import annotations

import math
import sys

import pytest
import torch

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

# texts, all that was said about each path, and BLEU-4: precisions and the brevity penalty by hand
HAND: dict[str, tuple[list[str], list[list[str]], float]] = {
    "case and glued punctuation": (
        ["walk down the hall , then stop ."],
        [["Walk down the hall, then stop."]],
        1.0,
    ),
    "shorter than its nearest reference": (["a b c d"], [["a b c d e", "a b"]], math.exp(1 - 5 / 4)),
    "words count as often as in one reference, sums go over all texts": (
        ["a b c d", "a a a b c d"],
        [["a b c d"], ["x x x x x x", "a b c d e"]],
        (8 / 10 * 6 / 8 * 4 / 6 * 2 / 4) ** (1 / 4),
    ),
    "not smoothed": (["a b c x"], [["a b c d"]], 0.0),
    "empty texts": (["", ""], [["go to the left door"], ["go to the right door"]], 0.0),
}


@pytest.mark.parametrize("case", HAND)
def test_bleu_is_what_the_paper_says(case: str) -> None:
    texts, references, expected = HAND[case]
    assert corpus_bleu(texts, references) == pytest.approx(expected, abs=1e-9)


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


def test_retrieval_follows_the_features(environment: Environment, episodes: EpisodeSet) -> None:
    paths, told = paths_of(episodes), list[tuple[int, int]]()
    texts = retrieved_texts(environment, paths, paths, progress=lambda *done: told.append(done))
    assert texts == [group[0] for group in paths.references], "a known path retrieves its own"
    assert told[-1] == (len(paths), len(paths))
    half = len(paths) // 2
    known = PathSet(paths.episodes.select(range(half)), paths.references[:half])
    others = PathSet(paths.episodes.select(range(half, len(paths))), paths.references[half:])
    library, queries = (path_features(environment, part.episodes) for part in (known, others))
    for columns in (library[:, : environment.width], library[:, environment.width :]):
        torch.testing.assert_close(columns.norm(dim=1), torch.ones(half))
    nearest = torch.cdist(queries, library).argmin(dim=1).tolist()
    assert retrieved_texts(environment, others, known) == [known.references[near][0] for near in nearest]


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
