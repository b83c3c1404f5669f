"""A speaker ready to describe paths and to judge texts: network, eyes and vocabulary together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from scenemem.agents.walker import take_best
from scenemem.errors import SettingError, UserError
from scenemem.features.store import Environment
from scenemem.learning.speaker_paths import steps_along, views_along
from scenemem.models.speaker import (
    Choose,
    Descriptions,
    EncodedPaths,
    Likelihood,
    SpeakerNetwork,
    beam_search,
    speak,
)
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import UNK, Vocabulary


class Speaker:
    """Puts paths into words, in evaluation mode and without gradients.

    Args:
        network: the parameters.
        environment: the world and the features of its views.
        vocabulary: the words it knows.
        max_words: tokens of the longest text, both marks included.
    """

    def __init__(
        self, network: SpeakerNetwork, environment: Environment, vocabulary: Vocabulary, *, max_words: int
    ) -> None:
        self.network = network
        self.environment = environment
        self.vocabulary = vocabulary
        self.max_words = max_words

    def describe(
        self,
        path: Tensor,
        heading: Tensor,
        *,
        feature_mask: Tensor | None = None,
        choose: Choose = take_best,
    ) -> Descriptions:
        """Describe paths, word by word.

        Args:
            path: (B, T) int64 viewpoints, padded with -1.
            heading: (B,) radians at the start.
            feature_mask: (D,) environment dropout, the mask an agent will learn under; None drops nothing.
            choose: picks the next word: ``take_best``, or ``Sample(generator)`` of ``agents.policy``.

        Raises:
            UserError: a path is impossible, or the features hold something that is not a number.
        """
        with self._at_rest():
            encoded = self._encoded(path, heading, feature_mask)
            return speak(self.network.decoder, encoded, choose, self.max_words)

    def describe_best(
        self, path: Tensor, heading: Tensor, beams: int, *, feature_mask: Tensor | None = None
    ) -> Descriptions:
        """Describe paths by beam search, which never ends up with worse than the greedy text.

        path: (B, T)  heading: (B,)  feature_mask: (D,)
        """
        if beams < 1:
            raise SettingError(f"the number of beams must be 1 or more, got {beams}")
        if beams == 1:
            return self.describe(path, heading, feature_mask=feature_mask)
        with self._at_rest():
            encoded = self._encoded(path, heading, feature_mask)
            return beam_search(self.network.decoder, encoded, beams, self.max_words)

    def score(
        self, path: Tensor, heading: Tensor, tokens: Tensor, *, feature_mask: Tensor | None = None
    ) -> Likelihood:
        """How likely texts are, each given its path.

        path: (B, T)  heading: (B,)  tokens: (B, L) in this speaker's vocabulary, padded  feature_mask: (D,)
        """
        with self._at_rest():
            views = views_along(self.environment, steps_along(self.environment.world, path, heading))
            return self.network.likelihood(views, self._mask(feature_mask), tokens)

    def score_routes(self, episodes: EpisodeSet, route: Tensor, /) -> Tensor:
        """How likely a word of each instruction is on average, given a route; for re-ranking.

        route: (B, T) viewpoints from the start of each episode on, padded with -1  ->  (B,)
        """
        return self.score(route, episodes.heading, self.tokens(episodes.texts)).per_word

    def texts(self, tokens: Tensor) -> list[str]:
        """tokens: (B, L)  ->  B texts"""
        return [self.vocabulary.decode(row) for row in tokens.tolist()]

    def tokens(self, texts: Sequence[str]) -> Tensor:
        """B texts  ->  (B, L) in this speaker's vocabulary, cut where it would stop, padded"""
        return self.vocabulary.encode_batch(texts, self.max_words)[0].to(self.environment.world.device)

    def word_numbers_in(self, vocabulary: Vocabulary) -> Tensor:
        """The number of each of this speaker's words in another vocabulary: ``table[tokens]`` translates.

        ->  (words,) int64
        """
        numbers = {word: number for number, word in enumerate(vocabulary.words)}
        return torch.tensor([numbers.get(word, UNK) for word in self.vocabulary.words])

    def _encoded(self, path: Tensor, heading: Tensor, feature_mask: Tensor | None) -> EncodedPaths:
        views = views_along(self.environment, steps_along(self.environment.world, path, heading))
        encoded: EncodedPaths = self.network.encoder(views, self._mask(feature_mask))
        if not bool(encoded.state.cell.isfinite().all()):
            raise UserError("what the speaker sees is not a number; look for broken features")
        return encoded

    def _mask(self, feature_mask: Tensor | None) -> Tensor:
        width = self.network.visual
        if feature_mask is None:
            return torch.ones(width, device=self.environment.world.device)
        if feature_mask.shape != (width,):
            raise SettingError(
                f"the feature mask has shape {tuple(feature_mask.shape)}, expected ({width},): one number "
                "per column of the speaker's features; do agent and speaker use the same feature store?"
            )
        return feature_mask

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        was_training = self.network.training
        self.network.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.network.train(was_training)
