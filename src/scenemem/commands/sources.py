"""What a training run builds on: the weights of another run, a speaker, a file of augmented episodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scenemem.errors import UserError
from scenemem.experiment import Experiment
from scenemem.formats.episodes import read_episodes
from scenemem.learning.augmentation import Augmentation, BackTranslation, StoredEpisodes
from scenemem.learning.checkpoint import load_network, read_checkpoint
from scenemem.learning.run_folder import RunFolder
from scenemem.speaking import speaker_beside
from scenemem.tasks.episode_set import bind_episodes
from scenemem.tasks.paths import path_pool


@dataclass(frozen=True)
class Sources:
    """Where augmented episodes come from; one of the two, or none."""

    speaker: Path | None = None
    """the run of a speaker"""
    augment: Path | None = None
    """a file of episodes"""

    def __post_init__(self) -> None:
        if self.speaker is not None and self.augment is not None:
            raise UserError("--speaker and --augment both say where augmented episodes come from; name one")

    def described(self) -> dict[str, str]:
        """For the description of a run."""
        named = {"speaker": self.speaker, "augment": self.augment}
        return {name: str(file) for name, file in named.items() if file is not None}


def open_augmentation(sources: Sources, experiment: Experiment, seed: int) -> Augmentation | None:
    """Open what was named.

    Raises:
        UserError: a speaker that sees other features than the agent.
        DataError: a file that is not what it should be.
    """
    world = experiment.sight.world
    if sources.augment is not None:
        episodes = read_episodes(sources.augment)
        name = sources.augment.name
        return StoredEpisodes(bind_episodes(world, episodes, sources.augment, name=name), seed)
    if sources.speaker is None:
        return None
    speaker = speaker_beside(RunFolder(sources.speaker), experiment)
    train = experiment.episodes("train")
    scans = [train.scans[number] for number in sorted(set(train.scan.tolist()))]
    return BackTranslation(speaker, path_pool(world, scans), seed)


def begin_with(experiment: Experiment, run: RunFolder) -> None:
    """Load the trained weights of another run into a new experiment.

    Raises:
        UserError: the other run knows other words or sees other features.
        DataError: its network has another shape.
    """
    checkpoint = read_checkpoint(run.last)
    for name in ("vocabulary", "features"):
        if checkpoint.facts.get(name) != experiment.facts[name]:
            raise UserError(
                f"{run.root} has another {name}; begin with a run on the same data and held-out buildings"
            )
    load_network(experiment.agent.network, checkpoint, run.last)
