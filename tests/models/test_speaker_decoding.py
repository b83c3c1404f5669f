from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from scenemem.models.speaker_decoding import Sayings, beam_search, speak
from torch import Tensor

from scenemem.models.speaker import DecoderState, EncodedPaths, WordDecoder
from scenemem.tasks.vocabulary import BOS, EOS, PAD, UNK

WORDS, WIDTH = 9, 6


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _decoder(seed: int) -> WordDecoder:
    torch.manual_seed(seed)
    decoder = WordDecoder(WORDS, 5, WIDTH, dropout=0.0).eval()
    decoder.words.weight *= 6  # so that texts differ from path to path
    return decoder


def _paths(count: int, seed: int = 0) -> EncodedPaths:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (count, 1), generator=generator)
    context = torch.randn(count, 5, WIDTH, generator=generator)
    hidden, cell = torch.randn(2, count, WIDTH, generator=generator).unbind(0)
    return EncodedPaths(context, torch.arange(5) < lengths, DecoderState(hidden, cell))


def _best(chances: Tensor) -> Tensor:
    return chances.argmax(dim=-1)


def _greedy(decoder: WordDecoder, paths: EncodedPaths, longest: int = 10) -> Sayings:
    return speak(decoder, paths, _best, longest)


def _log_likelihood(decoder: WordDecoder, paths: EncodedPaths, tokens: Tensor) -> Tensor:
    """By teacher forcing, all words at once."""
    chances = decoder.say(decoder(tokens[:, :-1], paths)).log_softmax(dim=-1)
    picked = chances.gather(2, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    return picked.masked_fill(tokens[:, 1:] == PAD, 0.0).sum(dim=1)


@pytest.mark.parametrize("seed", range(3))
def test_every_text_begins_ends_and_says_only_words(seed: int) -> None:
    decoder, paths = _decoder(seed), _paths(20, seed)
    sampled = speak(decoder, paths, lambda c: torch.multinomial(c.exp(), 1).squeeze(1), 10)
    for sayings in (_greedy(decoder, paths), sampled, beam_search(decoder, paths, 4, 10)):
        assert sayings.tokens.shape == (20, int(sayings.lengths.max()))
        assert int(sayings.lengths.max()) <= 10
        for row, length in zip(sayings.tokens.tolist(), sayings.lengths.tolist(), strict=True):
            assert row[0] == BOS
            assert row[length - 1] == EOS
            assert set(row[length:]) <= {PAD}
            assert not {PAD, UNK, BOS, EOS} & set(row[1 : length - 1])


@pytest.mark.parametrize("seed", range(3))
def test_a_path_is_described_as_if_alone(seed: int) -> None:
    decoder, paths = _decoder(seed), _paths(20, seed)
    together, beams = _greedy(decoder, paths), beam_search(decoder, paths, 3, 10)
    assert len(together.lengths.unique()) > 1, "texts of different lengths, or nothing is shown"  # type: ignore[no-untyped-call]
    for row in range(20):
        single = paths.select(torch.tensor([row]))
        for whole, alone in (
            (together, _greedy(decoder, single)),
            (beams, beam_search(decoder, single, 3, 10)),
        ):
            assert whole.tokens[row, : whole.lengths[row]].tolist() == alone.tokens[0].tolist()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_said_is_as_likely_as_it_claims(seed: int) -> None:
    decoder, paths = _decoder(seed), _paths(20, seed)
    for sayings in (_greedy(decoder, paths), beam_search(decoder, paths, 4, 10)):
        expected = _log_likelihood(decoder, paths, sayings.tokens)
        torch.testing.assert_close(sayings.log_likelihood, expected)
        torch.testing.assert_close(sayings.per_word, expected / (sayings.lengths - 1))


@pytest.mark.parametrize("seed", range(3))
def test_one_beam_is_greedy(seed: int) -> None:
    decoder, paths = _decoder(seed), _paths(20, seed)
    greedy, beam = _greedy(decoder, paths), beam_search(decoder, paths, 1, 10)
    assert torch.equal(greedy.tokens, beam.tokens)
    torch.testing.assert_close(greedy.log_likelihood, beam.log_likelihood)


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("beams", [2, 3, 8])
def test_beams_never_do_worse_than_greedy(beams: int, power: float) -> None:
    decoder, paths = _decoder(7), _paths(60, 7)
    greedy, beam = _greedy(decoder, paths), beam_search(decoder, paths, beams, 10, power)
    gain = beam.log_likelihood / (beam.lengths - 1) ** power
    gain = gain - greedy.log_likelihood / (greedy.lengths - 1) ** power
    assert float(gain.min()) > -1e-5
    assert float(gain.max()) > 1e-3, "and sometimes better, or the search does nothing"


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
def test_enough_beams_find_the_best_of_all_texts(power: float) -> None:
    decoder, paths, longest = _decoder(3), _paths(6, 3), 4
    sayable = [word for word in range(WORDS) if word not in (PAD, UNK, BOS, EOS)]
    texts = [words for count in range(longest - 1) for words in product(sayable, repeat=count)]
    ranks = []
    for words in texts:
        tokens = torch.tensor([BOS, *words, EOS]).expand(6, -1)
        ranks.append(_log_likelihood(decoder, paths, tokens) / (len(words) + 1) ** power)
    found = beam_search(decoder, paths, len(texts), longest, power)
    rank = found.log_likelihood / (found.lengths - 1) ** power
    torch.testing.assert_close(rank, torch.stack(ranks).amax(dim=0))


def test_words_are_drawn_by_their_probability_and_by_the_seed() -> None:
    decoder, path = _decoder(0), _paths(1)

    def drawn(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        many = path.select(torch.zeros(4000, dtype=torch.int64))
        return speak(
            decoder, many, lambda c: torch.multinomial(c.exp(), 1, generator=generator).squeeze(1), 10
        ).tokens

    first = drawn(0)
    assert torch.equal(first, drawn(0))
    assert not torch.equal(first, drawn(1))
    logits, _ = decoder.step(torch.tensor([BOS]), path.state, path)
    seen = torch.bincount(first[:, 1], minlength=WORDS) / len(first)
    torch.testing.assert_close(seen, logits.softmax(dim=-1).squeeze(0), atol=0.03, rtol=0)
