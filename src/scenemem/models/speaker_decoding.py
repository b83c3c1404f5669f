"""From encoded paths to texts: word by word with a chooser, or by beam search.

Shape letters: B paths, K beams, L tokens, V words known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scenemem.models.speaker import EncodedPaths, WordDecoder
from scenemem.tasks.vocabulary import BOS, EOS, PAD

Choose = Callable[[Tensor], Tensor]
"""log-probabilities: (M, V)  ->  (M,) chosen words"""


@dataclass(frozen=True)
class Sayings:
    """Texts as token numbers, each ``<BOS> words <EOS>``."""

    tokens: Tensor  # (B, L) int64, padded with <PAD>
    lengths: Tensor  # (B,) int64, both marks included
    log_likelihood: Tensor  # (B,) of all words and the end mark

    @property
    def per_word(self) -> Tensor:
        """(B,) mean log-likelihood of a word, the end mark included."""
        return self.log_likelihood / (self.lengths - 1)


def speak(decoder: WordDecoder, paths: EncodedPaths, choose: Choose, longest: int) -> Sayings:
    """Describe paths word by word; a path that has got its end mark costs nothing any more.

    Args:
        decoder: says the words.
        paths: what to describe.
        choose: picks the next word from the log-probabilities.
        longest: tokens of a text, both marks included; a longer one is ended there.
    """
    tokens = paths.mask.new_full((len(paths.mask), longest), PAD, dtype=torch.int64)
    tokens[:, 0] = BOS
    total = torch.zeros_like(paths.context[:, 0, 0])
    lanes = torch.arange(len(tokens), device=tokens.device)
    state, word = paths.state, tokens[:, 0]
    for place in range(1, longest):
        logits, state = decoder.step(word, state, paths)
        chances = logits.log_softmax(dim=-1)
        word = torch.full_like(word, EOS) if place == longest - 1 else choose(chances)
        tokens[lanes, place] = word
        total[lanes] += chances.gather(1, word.unsqueeze(1)).squeeze(1)
        going = (word != EOS).nonzero().squeeze(1)
        if len(going) == 0:
            break
        if len(going) < len(lanes):
            lanes, word = lanes[going], word[going]
            state, paths = state.select(going), paths.select(going)
    return _trimmed(tokens, total)


def beam_search(
    decoder: WordDecoder, paths: EncodedPaths, beams: int, longest: int, length_power: float = 0.7
) -> Sayings:
    """The best text found while keeping the ``beams`` most promising ones per path, all paths at once.

    Texts are ranked by log-likelihood / tokens ** length_power: 0 prefers short texts, 1 takes the mean. A
    beam may lose the greedy text on its way to something worse, so the two are compared at the end.
    """
    found = _search(decoder, paths, beams, longest, length_power)
    greedy = speak(decoder, paths, lambda chances: chances.argmax(dim=-1), longest)
    better = _rank(greedy, length_power) > _rank(found, length_power)
    width = max(found.tokens.shape[1], greedy.tokens.shape[1])
    return _trimmed(
        torch.where(better.unsqueeze(1), _widened(greedy.tokens, width), _widened(found.tokens, width)),
        torch.where(better, greedy.log_likelihood, found.log_likelihood),
    )


@dataclass(frozen=True)
class _Beams:
    """K texts under way per path, and which of them have ended."""

    tokens: Tensor  # (B, K, L)
    total: Tensor  # (B, K) log-likelihood; -inf where there is no text yet
    said: Tensor  # (B, K) words and end mark so far
    ended: Tensor  # (B, K) bool

    def taken_from(self, origin: Tensor) -> _Beams:
        """Each beam a copy of the beam it goes on from.  origin: (B, K)"""
        rows = torch.arange(len(origin), device=origin.device).unsqueeze(1)
        return _Beams(
            self.tokens[rows, origin],
            self.total[rows, origin],
            self.said[rows, origin],
            self.ended[rows, origin],
        )


def _search(
    decoder: WordDecoder, paths: EncodedPaths, beams: int, longest: int, length_power: float
) -> Sayings:
    lanes, device = len(paths.mask), paths.mask.device
    first = torch.arange(lanes, device=device).unsqueeze(1) * beams  # row of every path's first beam
    paths = paths.select(torch.arange(lanes, device=device).repeat_interleave(beams))
    held = _begin(lanes, beams, longest, paths.context)
    state = paths.state
    for place in range(1, longest):
        logits, state = decoder.step(held.tokens[:, :, place - 1].flatten(), state, paths)
        chances = logits.log_softmax(dim=-1).view(lanes, beams, -1)
        held, origin = _grown(held, chances, place, length_power, last=place == longest - 1)
        state = state.select((first + origin).flatten())
        if bool(held.ended.all()):
            break
    rank = held.total / held.said**length_power
    best = held.taken_from(rank.argmax(dim=1, keepdim=True))
    return _trimmed(best.tokens.squeeze(1), best.total.squeeze(1))


def _begin(lanes: int, beams: int, longest: int, like: Tensor) -> _Beams:
    """One text per path, with nothing but the begin mark."""
    tokens = torch.full((lanes, beams, longest), PAD, device=like.device)
    tokens[:, :, 0] = BOS
    total = like.new_full((lanes, beams), -torch.inf)
    total[:, 0] = 0.0
    return _Beams(tokens, total, torch.zeros_like(tokens[:, :, 0]), torch.zeros_like(total, dtype=torch.bool))


def _grown(
    held: _Beams, chances: Tensor, place: int, length_power: float, *, last: bool
) -> tuple[_Beams, Tensor]:
    """The best K continuations of every path, and the beam each goes on from.

    chances: (B, K, V)  ->  beams, origin (B, K)
    """
    if last:
        chances = torch.full_like(chances, -torch.inf).index_copy(
            2, torch.tensor([EOS], device=chances.device), chances[:, :, EOS : EOS + 1]
        )
    # a text that has ended goes on with padding, for free
    stays = torch.full_like(chances, -torch.inf)
    stays[:, :, PAD] = 0.0
    total = held.total.unsqueeze(-1) + torch.where(held.ended.unsqueeze(-1), stays, chances)
    said = held.said + (~held.ended).long()
    rank = total / said.unsqueeze(-1) ** length_power
    best = rank.flatten(1).topk(held.total.shape[1], dim=1).indices
    origin, word = best.div(chances.shape[2], rounding_mode="floor"), best % chances.shape[2]
    grown = replace(held, said=said).taken_from(origin)
    grown.tokens[:, :, place] = word
    return replace(grown, total=total.flatten(1).gather(1, best), ended=grown.ended | (word == EOS)), origin


def _rank(sayings: Sayings, length_power: float) -> Tensor:
    return sayings.log_likelihood / (sayings.lengths - 1) ** length_power


def _trimmed(tokens: Tensor, total: Tensor) -> Sayings:
    lengths = (tokens != PAD).sum(dim=1)
    return Sayings(tokens[:, : int(lengths.max())], lengths, total)


def _widened(tokens: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]), value=PAD)
