"""From a data folder to a navigation game: world, split, token numbers and view features."""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor
from torch.nn.functional import pad

from scenemem.features.store import open_store
from scenemem.formats.episodes import read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.simulator.game import NavigationGame, Reward, progress_reward
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import PAD, Vocabulary
from scenemem.world.build import load_world


def open_game(
    data: str | os.PathLike[str] | None = None,
    *,
    task: str = "r2r",
    split: str = "train",
    features: str | None = None,
    max_steps: int = 30,
    max_tokens: int = 80,
    reward: Reward = progress_reward,
) -> NavigationGame:
    """Load everything a game needs.

    Args:
        data: data folder; None for the embedded houses, which are built at the first call.
        task: sub-folder of the episodes, for example ``r2r`` or ``r4r``.
        split: for example ``train`` or ``val_unseen``.
        features: name of a feature store whose 36 views are observed; None for no view features.
        max_steps: actions after which an episode is cut off.
        max_tokens: longest instruction in token numbers; the rest of longer ones is cut off.
        reward: maps a ``Transition`` of B plays to B numbers.

    Raises:
        UserError: something is missing or broken in the data folder, or the goals of the split are secret.
    """
    folder = DataFolder(_embedded_houses() if data is None else Path(data))
    world = load_world(folder.connectivity)
    episodes = load_split(folder, world, task, split)
    # every task of a folder shares the words of its R2R training split; R4R only joins those texts
    spoken = read_episodes(folder.episodes("r2r", "train"))
    vocabulary = Vocabulary.build(text for episode in spoken for text in episode.instructions)
    return NavigationGame(
        world=world,
        episodes=episodes,
        tokens=_tokens(vocabulary, episodes, max_tokens),
        words=len(vocabulary),
        features=None if features is None else open_store(folder.feature_file(features), world),
        max_steps=max_steps,
        reward=reward,
    )


def _embedded_houses() -> Path:
    from scenemem.houses.build import default_houses  # only needed without a data folder

    return default_houses()


def _tokens(vocabulary: Vocabulary, episodes: EpisodeSet, length: int) -> Tensor:
    """(N, length), padded to the full length so that all splits share one observation space"""
    numbers, _ = vocabulary.encode_batch(episodes.texts, length)
    return pad(numbers, (0, length - numbers.shape[1]), value=PAD)
