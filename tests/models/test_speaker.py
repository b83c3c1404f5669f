from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from scenemem.models.speaker import EncodedPaths, PathViews, SpeakerConfig, SpeakerNetwork
from scenemem.tasks.vocabulary import BOS, EOS, PAD, UNK

WORDS, VISUAL, WIDTH = 12, 5, 8
LENGTHS = (3, 6, 1, 4)
ONES = torch.ones(VISUAL)


@pytest.fixture(scope="module")
def network() -> SpeakerNetwork:
    torch.manual_seed(0)
    return SpeakerNetwork(SpeakerConfig(word_width=6, width=WIDTH), WORDS, VISUAL).eval()


def _paths(*lengths: int, seed: int = 0) -> PathViews:
    """Random sights along paths of the given lengths."""
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


def _alone(paths: PathViews, row: int) -> PathViews:
    """One path of a batch without the padding."""
    own = torch.zeros_like(paths.mask)
    own[row] = paths.mask[row]
    length, picked = int(paths.mask[row].sum()), own[paths.mask]
    return PathViews(
        paths.mask[row : row + 1, :length],
        paths.chosen[row : row + 1, :length],
        paths.direction[row : row + 1, :length],
        paths.panoramas[picked],
        paths.angles[picked],
    )


def _close(seen: EncodedPaths, expected: EncodedPaths) -> None:
    """The same apart from what stands in the padding."""
    torch.testing.assert_close(seen.context[seen.mask], expected.context[expected.mask])
    torch.testing.assert_close(seen.state.hidden, expected.state.hidden)
    torch.testing.assert_close(seen.state.cell, expected.state.cell)


def test_each_path_is_encoded_as_if_alone(network: SpeakerNetwork) -> None:
    paths = _paths(*LENGTHS)
    encoded = network.encoder(paths, ONES)
    for row in range(len(LENGTHS)):
        _close(encoded.select(torch.tensor([row])), network.encoder(_alone(paths, row), ONES))


def test_both_directions_are_read(network: SpeakerNetwork) -> None:
    rows = torch.randn(1, 5, WIDTH)
    lstm = network.encoder.walk
    read = lstm(rows, torch.ones(1, 5, dtype=torch.bool))
    ahead, _ = lstm.forward_lstm(rows)
    back, _ = lstm.backward_lstm(rows.flip(1))
    torch.testing.assert_close(read, torch.cat([ahead, back.flip(1)], dim=-1))


def test_what_the_padding_holds_does_not_matter(network: SpeakerNetwork) -> None:
    paths = _paths(*LENGTHS)
    pads = ~paths.mask.unsqueeze(-1)
    garbage = replace(paths, chosen=paths.chosen + 9 * pads, direction=paths.direction - 7 * pads)
    _close(network.encoder(garbage, ONES), network.encoder(paths, ONES))


def test_a_feature_mask_masks_every_view(network: SpeakerNetwork) -> None:
    paths = _paths(*LENGTHS)
    feature_mask = torch.tensor([0.0, 1.25, 1.25, 0.0, 1.25])
    masked = replace(paths, chosen=paths.chosen * feature_mask, panoramas=paths.panoramas * feature_mask)
    _close(network.encoder(paths, feature_mask), network.encoder(masked, ONES))
    blind = replace(paths, chosen=torch.zeros_like(paths.chosen), panoramas=torch.zeros_like(paths.panoramas))
    _close(network.encoder(paths, torch.zeros(VISUAL)), network.encoder(blind, ONES))
    seeing = network.encoder(paths, ONES).context[paths.mask]
    assert not torch.allclose(seeing, network.encoder(blind, ONES).context[paths.mask])


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
    at_once = network.decoder.say(network.decoder(tokens, encoded))
    state = encoded.state
    for place in range(tokens.shape[1]):
        logits, state = network.decoder.step(tokens[:, place], state, encoded)
        torch.testing.assert_close(logits, at_once[:, place])


def test_the_likelihood_is_the_product_of_the_words_that_count(network: SpeakerNetwork) -> None:
    paths, tokens = _paths(*LENGTHS), _tokens()
    encoded = network.encoder(paths, ONES)
    chances = network.decoder.say(network.decoder(tokens, encoded)).log_softmax(dim=-1).detach()
    with torch.no_grad():
        likelihood = network.likelihood(paths, ONES, tokens)
    for row, counted in enumerate([[1, 2, 3, 4], [1, 3, 4, 5], [1], [3, 4]]):
        expected = sum(float(chances[row, place - 1, tokens[row, place]]) for place in counted)
        assert likelihood.words[row] == len(counted)
        assert float(likelihood.total[row]) == pytest.approx(expected, rel=1e-4)
        assert float(likelihood.per_word[row]) == pytest.approx(expected / len(counted), rel=1e-4)


def test_more_padding_changes_no_likelihood(network: SpeakerNetwork) -> None:
    paths, tokens = _paths(*LENGTHS), _tokens()
    wider = torch.nn.functional.pad(tokens, (0, 3), value=PAD)
    torch.testing.assert_close(
        network.likelihood(paths, ONES, wider).total, network.likelihood(paths, ONES, tokens).total
    )


def test_padding_unknown_and_begin_are_never_said(network: SpeakerNetwork) -> None:
    chances = network.decoder.say(torch.randn(50, WIDTH)).softmax(dim=-1)
    assert not chances[:, [PAD, UNK, BOS]].any()
    assert bool((chances[:, EOS] > 0).all())


def test_every_parameter_learns() -> None:
    torch.manual_seed(0)
    network = SpeakerNetwork(SpeakerConfig(word_width=6, width=WIDTH), WORDS, VISUAL)
    (-network.likelihood(_paths(*LENGTHS), ONES, _tokens()).total.sum()).backward()  # type: ignore[no-untyped-call]
    silent = [
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not parameter.grad.isfinite().all() or not parameter.grad.any()
    ]
    assert silent == []


def test_dropout_works_in_training_only(network: SpeakerNetwork) -> None:
    paths = _paths(*LENGTHS)
    network.train()
    noisy, again = network.encoder(paths, ONES), network.encoder(paths, ONES)
    network.eval()
    assert not torch.equal(noisy.context, again.context)
    _close(network.encoder(paths, ONES), network.encoder(paths, ONES))


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
