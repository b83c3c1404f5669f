from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from scenemem.models.speaker import (
    DecoderState,
    Descriptions,
    EncodedPaths,
    PanoramaAttention,
    PathViews,
    SpeakerConfig,
    SpeakerNetwork,
    WordDecoder,
    beam_search,
    speak,
)
from scenemem.tasks.vocabulary import BOS, EOS, PAD, UNK

WORDS, VISUAL, WIDTH = 12, 5, 8
LENGTHS = (3, 6, 1, 4)
ONES = torch.ones(VISUAL)


@pytest.fixture(scope="module")
def network() -> SpeakerNetwork:
    torch.manual_seed(0)
    return SpeakerNetwork(SpeakerConfig(word_width=6, width=WIDTH), WORDS, VISUAL).eval()


def _paths(*lengths: int, seed: int = 0) -> PathViews:
    """Random views along paths of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    rows, places = mask.shape
    return PathViews(
        mask=mask,
        chosen=torch.randn(rows, places, VISUAL, generator=generator) * mask.unsqueeze(-1),
        direction=torch.randn(rows, places, 4, generator=generator) * mask.unsqueeze(-1),
        panoramas=torch.randn(int(mask.sum()), 36, VISUAL, generator=generator),
        angles=torch.randn(int(mask.sum()), 36, 4, generator=generator),
    )


def _only(paths: PathViews, row: int) -> PathViews:
    """One path of a batch without the padding."""
    own = torch.zeros_like(paths.mask)
    own[row] = paths.mask[row]
    length, kept = int(paths.mask[row].sum()), own[paths.mask]
    return PathViews(
        paths.mask[row : row + 1, :length],
        paths.chosen[row : row + 1, :length],
        paths.direction[row : row + 1, :length],
        paths.panoramas[kept],
        paths.angles[kept],
    )


def _assert_close(found: EncodedPaths, expected: EncodedPaths) -> None:
    """The same apart from what stands in the padding."""
    torch.testing.assert_close(found.context[found.mask], expected.context[expected.mask])
    torch.testing.assert_close(found.state.hidden, expected.state.hidden)
    torch.testing.assert_close(found.state.cell, expected.state.cell)


def test_each_path_is_encoded_by_itself_whatever_the_padding_holds(network: SpeakerNetwork) -> None:
    paths = _paths(*LENGTHS)
    pads = ~paths.mask.unsqueeze(-1)
    garbage = replace(paths, chosen=paths.chosen + 9 * pads, direction=paths.direction - 7 * pads)
    encoded = network.encoder(garbage, ONES)
    for row in range(len(LENGTHS)):
        _assert_close(encoded.select(torch.tensor([row])), network.encoder(_only(paths, row), ONES))


def test_both_directions_are_read(network: SpeakerNetwork) -> None:
    rows = torch.randn(1, 5, WIDTH)
    lstm = network.encoder.walk
    read = lstm(rows, torch.ones(1, 5, dtype=torch.bool))
    ahead, _ = lstm.forward_lstm(rows)
    back, _ = lstm.backward_lstm(rows.flip(1))
    torch.testing.assert_close(read, torch.cat([ahead, back.flip(1)], dim=-1))


def test_a_feature_mask_masks_every_view(network: SpeakerNetwork) -> None:
    paths = _paths(*LENGTHS)
    feature_mask = torch.tensor([0.0, 1.25, 1.25, 0.0, 1.25])
    masked = replace(paths, chosen=paths.chosen * feature_mask, panoramas=paths.panoramas * feature_mask)
    _assert_close(network.encoder(paths, feature_mask), network.encoder(masked, ONES))
    blind = replace(paths, chosen=torch.zeros_like(paths.chosen), panoramas=torch.zeros_like(paths.panoramas))
    _assert_close(network.encoder(paths, torch.zeros(VISUAL)), network.encoder(blind, ONES))
    sighted = network.encoder(paths, ONES).context[paths.mask]
    assert not torch.allclose(sighted, network.encoder(blind, ONES).context[paths.mask])


def _tokens() -> Tensor:
    return torch.tensor(
        [
            [BOS, 5, 7, 5, EOS, PAD],
            [BOS, 11, UNK, 4, 6, EOS],
            [BOS, EOS, PAD, PAD, PAD, PAD],
            [BOS, UNK, UNK, 9, EOS, PAD],
        ]
    )


def test_all_words_at_once_are_the_words_one_by_one(network: SpeakerNetwork) -> None:
    encoded, tokens = network.encoder(_paths(*LENGTHS), ONES), _tokens()
    at_once = network.decoder.word_logits(network.decoder(tokens, encoded))
    state = encoded.state
    for place in range(tokens.shape[1]):
        logits, state = network.decoder.step(tokens[:, place], state, encoded)
        torch.testing.assert_close(logits, at_once[:, place])


def test_the_likelihood_is_the_product_of_the_words_that_count(network: SpeakerNetwork) -> None:
    """Whatever other texts there are beside them, and however long these are."""
    paths, tokens = _paths(*LENGTHS), torch.nn.functional.pad(_tokens(), (0, 3), value=PAD)
    encoded = network.encoder(paths, ONES)
    chances = network.decoder.word_logits(network.decoder(tokens, encoded)).log_softmax(dim=-1).detach()
    with torch.no_grad():
        likelihood = network.likelihood(paths, ONES, tokens)
    for row, counted in enumerate([[1, 2, 3, 4], [1, 3, 4, 5], [1], [3, 4]]):
        expected = sum(float(chances[row, place - 1, tokens[row, place]]) for place in counted)
        assert likelihood.words[row] == len(counted)
        assert float(likelihood.total[row]) == pytest.approx(expected, rel=1e-4)
        assert float(likelihood.per_word[row]) == pytest.approx(expected / len(counted), rel=1e-4)
        alone = network.likelihood(_only(paths, row), ONES, tokens[row : row + 1, :-3])
        torch.testing.assert_close(alone.total[0].detach(), likelihood.total[row])


def test_padding_unknown_word_and_begin_mark_are_never_said(network: SpeakerNetwork) -> None:
    chances = network.decoder.word_logits(torch.randn(50, WIDTH)).softmax(dim=-1)
    assert not chances[:, [PAD, UNK, BOS]].any()
    assert bool((chances[:, EOS] > 0).all())


def test_every_parameter_learns() -> None:
    torch.manual_seed(0)
    network = SpeakerNetwork(SpeakerConfig(word_width=6, width=WIDTH), WORDS, VISUAL)
    (-network.likelihood(_paths(*LENGTHS), ONES, _tokens()).total.sum()).backward()  # type: ignore[no-untyped-call]
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_dropout_works_in_training_only(network: SpeakerNetwork) -> None:
    paths = _paths(*LENGTHS)
    network.train()
    first, second = network.encoder(paths, ONES), network.encoder(paths, ONES)
    network.eval()
    assert not torch.equal(first.context, second.context)
    _assert_close(network.encoder(paths, ONES), network.encoder(paths, ONES))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 7}, "width must be even and positive, got 7"),
        ({"word_width": 0}, "word_width must be 1 or more, got 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"feature_dropout": -0.1}, r"feature_dropout must be in \[0, 1\), got -0.1"),
    ],
)
def test_impossible_settings_say_what_is_wrong(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeakerConfig(**settings)


def test_every_step_attends_to_its_own_views() -> None:
    """View by view: what it shows and where it lies are scored together, and attended to alike."""
    attention, paths = PanoramaAttention(VISUAL, WIDTH), _paths(*LENGTHS)
    mask, query = torch.tensor([0.0, 1.25, 1.25, 0.0, 1.25]), torch.randn(sum(LENGTHS), WIDTH)
    visual, direction = attention(query, paths, mask)
    for row in range(sum(LENGTHS)):
        views, angles = paths.panoramas[row] * mask, paths.angles[row]
        by_view = views @ attention.query_visual.weight @ query[row]
        by_direction = angles @ attention.query_direction.weight @ query[row]
        share = (by_view + by_direction).softmax(0)
        torch.testing.assert_close(visual[row], share @ views)
        torch.testing.assert_close(direction[row], share @ angles)


DECODED_WORDS, DECODED_WIDTH = 9, 6


@pytest.fixture
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


decoding = pytest.mark.usefixtures("_without_gradients")


def _decoder(seed: int) -> WordDecoder:
    torch.manual_seed(seed)
    decoder = WordDecoder(DECODED_WORDS, 5, DECODED_WIDTH, dropout=0.0).eval()
    decoder.words.weight *= 6  # so that texts differ from path to path
    return decoder


def _encoded(count: int, seed: int = 0) -> EncodedPaths:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (count, 1), generator=generator)
    context = torch.randn(count, 5, DECODED_WIDTH, generator=generator)
    hidden, cell = torch.randn(2, count, DECODED_WIDTH, generator=generator).unbind(0)
    return EncodedPaths(context, torch.arange(5) < lengths, DecoderState(hidden, cell))


def _greedy(decoder: WordDecoder, paths: EncodedPaths, longest: int = 10) -> Descriptions:
    return speak(decoder, paths, lambda chances: chances.argmax(dim=-1), longest)


def _log_likelihood(decoder: WordDecoder, paths: EncodedPaths, tokens: Tensor) -> Tensor:
    """By teacher forcing, all words at once."""
    chances = decoder.word_logits(decoder(tokens[:, :-1], paths)).log_softmax(dim=-1)
    chosen = chances.gather(2, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(tokens[:, 1:] == PAD, 0.0).sum(dim=1)


@decoding
@pytest.mark.parametrize("seed", range(3))
def test_every_text_has_its_marks_only_words_and_its_likelihood(seed: int) -> None:
    decoder, paths = _decoder(seed), _encoded(20, seed)
    sampled = speak(decoder, paths, lambda c: torch.multinomial(c.exp(), 1).squeeze(1), 10)
    for texts in (
        _greedy(decoder, paths),
        _greedy(decoder, paths, 3),
        sampled,
        beam_search(decoder, paths, 4, 10),
    ):
        assert texts.tokens.shape == (20, int(texts.lengths.max()))
        assert int(texts.lengths.max()) <= 10
        for row, length in zip(texts.tokens.tolist(), texts.lengths.tolist(), strict=True):
            assert row[0] == BOS
            assert row[length - 1] == EOS
            assert set(row[length:]) <= {PAD}
            assert not {PAD, UNK, BOS, EOS} & set(row[1 : length - 1])
        expected = _log_likelihood(decoder, paths, texts.tokens)
        torch.testing.assert_close(texts.log_likelihood, expected)
        torch.testing.assert_close(texts.per_word, expected / (texts.lengths - 1))


def _plain_beam(
    decoder: WordDecoder, path: EncodedPaths, beams: int, longest: int, power: float
) -> list[int]:
    """The best text of one path by keeping lists of words; every text is scored from its beginning."""

    def rank(text: list[int]) -> float:
        total = _log_likelihood(decoder, path, torch.tensor([text])).item()
        return total / math.pow(len(text) - 1, power)

    held = [[BOS]]
    words = [word for word in range(DECODED_WORDS) if word not in (PAD, UNK, BOS)]
    for place in range(1, longest):
        ended = [text for text in held if text[-1] == EOS]
        said = [EOS] if place == longest - 1 else words
        grown = [[*text, word] for text in held if text[-1] != EOS for word in said]
        held = sorted(ended + grown, key=rank, reverse=True)[:beams]
    greedy = _greedy(decoder, path, longest).tokens[0].tolist()
    return max([*held, greedy], key=rank)


@decoding
@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("beams", [1, 2, 3])
def test_beams_are_those_of_a_search_with_lists(beams: int, power: float) -> None:
    decoder, paths = _decoder(5), _encoded(12, 5)
    found = beam_search(decoder, paths, beams, 7, power)
    for row, length in enumerate(found.lengths.tolist()):
        plain = _plain_beam(decoder, paths.select(torch.tensor([row])), beams, 7, power)
        assert found.tokens[row, :length].tolist() == plain
