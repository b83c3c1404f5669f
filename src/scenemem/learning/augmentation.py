"""Further episodes to learn from: described by a speaker while training, or read from a file.

What is drawn depends on the seed, the iteration and the process alone, so there is nothing to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from scenemem.agents.walker import Sample
from scenemem.errors import UserError
from scenemem.learning.distributed import ProcessGroup
from scenemem.learning.speaker import Speaker
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.paths import PathPool, shortest_paths
from scenemem.world.graph import HEADINGS, STEP, World


class Augmentation(Protocol):
    """Where further episodes come from."""

    def draw(self, iteration: int, batch: int, feature_mask: Tensor, group: ProcessGroup, /) -> EpisodeSet:
        """This process's share of ``batch`` episodes; the agent will learn under ``feature_mask`` (D,)."""


class BackTranslation:
    """A speaker describes random paths of the training buildings as they look under the agent's own mask."""

    def __init__(self, speaker: Speaker, pool: PathPool, seed: int) -> None:
        self.speaker = speaker
        self._pool = pool
        self._seed = seed

    def draw(self, iteration: int, batch: int, feature_mask: Tensor, group: ProcessGroup, /) -> EpisodeSet:
        """The paths are the same for every group; every process describes its own."""
        world = self.speaker.environment.world
        shared = _randomness(self._seed, iteration)
        start, goal = (group.share(ends) for ends in self._pool.sample(batch, shared))
        steps = torch.randint(HEADINGS, (batch,), generator=shared)
        heading = group.share(steps).to(world.position) * STEP
        path, length = shortest_paths(world, start, goal)
        words = Sample(_randomness(self._seed, iteration, 1 + group.rank))
        said = self.speaker.describe(path, heading, feature_mask=feature_mask, choose=words)
        ids = [f"{iteration}_{number}" for number in range(len(path))]
        return described_episodes(world, path, length, heading, self.speaker.texts(said.tokens), ids)


def described_episodes(
    world: World, path: Tensor, length: Tensor, heading: Tensor, texts: Sequence[str], ids: Sequence[str]
) -> EpisodeSet:
    """Paths with one text each, as episodes.

    path: (B, T) viewpoints, padded with -1  length: (B,) viewpoints of each  heading: (B,) radians
    """
    return EpisodeSet(
        name="described",
        scans=world.scans,
        instruction_ids=tuple(ids),
        texts=tuple(texts),
        record=torch.arange(len(path), device=world.device),
        scan=world.scan_of[path[:, 0]],
        start=path[:, 0],
        goal=path.gather(1, (length - 1).unsqueeze(1)).squeeze(1),
        heading=heading,
        path=path,
        path_length=length,
    )


class StoredEpisodes:
    """Episodes of a file, for example written by ``scenemem speak augment`` or published by others."""

    def __init__(self, episodes: EpisodeSet, seed: int) -> None:
        if not len(episodes) or not episodes.has_goals:
            raise UserError(f"'{episodes.name}' has no episode with a goal; give a file with whole paths")
        self._episodes = episodes
        self._seed = seed

    def draw(self, iteration: int, batch: int, feature_mask: Tensor, group: ProcessGroup, /) -> EpisodeSet:
        """Random episodes, the same for every group."""
        del feature_mask
        rows = torch.randint(len(self._episodes), (batch,), generator=_randomness(self._seed, iteration))
        return self._episodes.select(group.share(rows))


def _randomness(*numbers: int) -> torch.Generator:
    mixed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(mixed)
