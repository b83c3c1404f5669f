"""A speaker ready to describe paths and to score texts, and paths as a speaker sees them.

Shape letters: B paths, T viewpoints of the longest, M viewpoints of all paths together, D visual columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from scenemem.agents.walker import evaluating, take_best
from scenemem.errors import SettingError, UserError
from scenemem.features.store import Environment
from scenemem.models.speaker import (
    Choose,
    Descriptions,
    EncodedPaths,
    Likelihood,
    PathViews,
    SpeakerNetwork,
    beam_search,
    speak,
)
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.graph import (
    NONE,
    STOP,
    VIEWS,
    Simulator,
    World,
    angle_feature,
    rotated,
    view_elevation,
    view_heading,
)


class Speaker:
    """Puts paths into words, in evaluation mode and without gradients.

    Its longest text has ``max_words`` tokens, both marks included.
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
        """Describe paths, word by word; ``choose`` picks the next one.

        path: (B, T) int64 viewpoints, padded with -1  heading: (B,) radians at the start
        feature_mask: (D,) environment dropout, the mask an agent will learn under; None drops nothing
        """
        with torch.no_grad(), evaluating(self.network):
            encoded = self._encoded(path, heading, feature_mask)
            return speak(self.network.decoder, encoded, choose, self.max_words)

    def describe_best(self, path: Tensor, heading: Tensor, beams: int) -> Descriptions:
        """Describe paths by beam search, which never ends up with worse than the greedy text.

        path: (B, T)  heading: (B,)
        """
        if beams < 1:
            raise SettingError(f"the number of beams must be 1 or more, got {beams}")
        if beams == 1:
            return self.describe(path, heading)
        with torch.no_grad(), evaluating(self.network):
            encoded = self._encoded(path, heading, None)
            return beam_search(self.network.decoder, encoded, beams, self.max_words)

    def score(self, path: Tensor, heading: Tensor, tokens: Tensor) -> Likelihood:
        """How likely texts are, each given its path.

        path: (B, T)  heading: (B,)  tokens: (B, L) in this speaker's vocabulary, padded
        """
        with torch.no_grad(), evaluating(self.network):
            views = views_along(self.environment, steps_along(self.environment.world, path, heading))
            return self.network.likelihood(views, self._mask(None), tokens)

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


@dataclass(frozen=True)
class Steps:
    """Walks along given paths, in the simulator's terms."""

    viewpoint: Tensor  # (B, T) int64, where the walker stands; -1 after the end
    view: Tensor  # (B, T) int64, the view it faces
    slot: Tensor  # (B, T) int64, the neighbour it goes to; STOP at the last viewpoint and after

    def select(self, rows: Tensor) -> Steps:
        """The given walks, in the given order, without columns that none of them reaches."""
        viewpoint = self.viewpoint[rows]
        longest = int((viewpoint != NONE).sum(dim=1).max())
        return Steps(viewpoint[:, :longest], self.view[rows, :longest], self.slot[rows, :longest])


def steps_along(world: World, path: Tensor, heading: Tensor) -> Steps:
    """How one walks along paths: after a hop the walker faces the view it walked along.

    path: (B, T) int64, padded with -1  heading: (B,) radians at the start
    """
    if path.shape[1] == 0 or bool((path[:, 0] == NONE).any()):
        raise UserError("a path is empty, expected at least one viewpoint")
    here, there = path[:, :-1].clamp_min(0), path[:, 1:]
    moves = there != NONE
    slot = world.slot_of(here, there).masked_fill(~moves, STOP)
    missing = moves & (slot == NONE)
    if bool(missing.any()):
        row, step = missing.nonzero()[0].tolist()
        source, target = (world.names[place] for place in path[row, step : step + 2].tolist())
        raise UserError(f"no edge leads from {source} to {target}; list every viewpoint walked through")
    begin = Simulator(world).reset(path[:, 0], heading).view.unsqueeze(1)
    walked_along = world.neighbour_view[here, slot.clamp_min(0)]
    return Steps(path, torch.cat([begin, walked_along], dim=1), functional.pad(slot, (0, 1), value=STOP))


def views_along(environment: Environment, steps: Steps) -> PathViews:
    """What is seen on the way."""
    world, mask = environment.world, steps.viewpoint != NONE
    here, facing, slot = steps.viewpoint[mask], steps.view[mask], steps.slot[mask]
    goes, slot = (slot != STOP).unsqueeze(-1), slot.clamp_min(0)
    heading = view_heading(facing)
    panoramas = environment.panorama(here).float()
    chosen = panoramas[torch.arange(len(here), device=here.device), world.neighbour_view[here, slot]]
    direction = angle_feature(world.neighbour_heading[here, slot], world.neighbour_elevation[here, slot], 4)
    views = torch.arange(VIEWS, device=here.device)
    angles = angle_feature(view_heading(views), view_elevation(views), width=4)
    return PathViews(
        mask=mask,
        chosen=_spread(chosen * goes, mask),
        direction=_spread(rotated(direction, heading) * goes, mask),
        panoramas=panoramas,
        angles=rotated(angles, heading.unsqueeze(-1)),
    )


def _spread(rows: Tensor, mask: Tensor) -> Tensor:
    """rows: (M, W)  mask: (B, T)  ->  (B, T, W), 0 where the mask is false"""
    table = rows.new_zeros(*mask.shape, rows.shape[1])
    table[mask] = rows
    return table
