"""What is measured about a speaker: batches it describes or learns from, and agents that learn from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from scenemem.agents.policy import Sample
from scenemem.benchmarks.clock import now
from scenemem.benchmarks.speed import Work
from scenemem.benchmarks.workload import Case, Mode, Workload
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import Augmentation, BackTranslation
from scenemem.learning.speaker import Speaker
from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.learning.team import Team
from scenemem.models.speaker_decoding import Sayings
from scenemem.presets import DataConfig
from scenemem.runs.experiment import SPEAKERS, SpeakerExperiment, new_speaker
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.tasks.paths import PathPool, path_pool, shortest_paths
from scenemem.tasks.vocabulary import EOS
from scenemem.world.graph import HEADINGS, STEP

Kind = Literal["greedy", "sampled", "beam", "training"]

_STILL = 1e-12  # a learning rate that leaves the network as it is, so that all repetitions do the same
_SELDOM = -30.0  # added to the score of the end mark, so that a fresh speaker does not stop by itself
_LONGER_THAN = 0.9  # share of the instructions that are no longer than what a fresh speaker says


class SpeakerLoad:
    """A speaker whose next batches can be described, or learnt from, again and again.

    Args:
        speaking: the speaker on its data folder.
        batch: paths described at once; training has batches of its own size.
        beams: of the beam search.
    """

    kinds: tuple[Kind, ...] = get_args(Kind)

    def __init__(self, speaking: SpeakerExperiment, batch: int, beams: int) -> None:
        self.speaker = speaking.speaker
        self.words: dict[str, float] = {}  # of a description, by the last work of each kind
        self._batch = batch
        self._beams = beams
        self._pool = path_pool(speaking.environment.world, speaking.training_scans)
        config = replace(speaking.preset.learning, learning_rate=_STILL)
        self.trainer = SpeakerTrainer(self.speaker, speaking.episodes("train"), config, seed=0)
        self._batches = self.trainer.batches.state_dict()
        self._sampling = self.trainer.sampling.get_state()

    def work(self, kind: Kind, steps: int) -> Work:
        """``steps`` batches, the same ones on every call."""
        return lambda: self.run(kind, steps)

    def steps_within(self, kind: Kind, seconds: float) -> int:
        """How many steps fit, at least one; the step that tells also warms up."""
        begun = now()
        self.run(kind, 1)
        return max(1, round(seconds / (now() - begun)))

    def run(self, kind: Kind, steps: int) -> int:
        """Do the first ``steps`` batches again and return how many paths or pairs they had."""
        if kind == "training":
            return self._learn(steps)
        random, words = torch.Generator().manual_seed(0), 0
        for _ in range(steps):
            said = self._said(kind, *_random_walks(self.speaker, self._pool, self._batch, random), random)
            words += int((said.lengths - 2).sum())
        self.words[kind] = words / (steps * self._batch)
        return steps * self._batch

    def _said(self, kind: Kind, path: Tensor, heading: Tensor, random: torch.Generator) -> Sayings:
        if kind == "beam":
            return self.speaker.describe_best(path, heading, self._beams)
        if kind == "sampled":
            return self.speaker.describe(path, heading, choose=Sample(random))
        return self.speaker.describe(path, heading)

    def _learn(self, steps: int) -> int:
        self.trainer.batches.load_state_dict(self._batches)
        self.trainer.sampling.set_state(self._sampling)
        self.trainer.iteration = 0
        torch.manual_seed(0)
        return sum(self.trainer.step().episodes for _ in range(steps))


class AugmentedLoad(Workload):
    """Training steps of an agent that learns from described paths, and how long the speaker takes in them.

    Args:
        case: what to train.
        folder: what to train on.
        speaker: who describes paths of the training buildings.
    """

    def __init__(self, case: Case, folder: DataFolder, speaker: Speaker) -> None:
        learning = case.preset.learning
        alone = tuple(replace(stage, augmented=0.0) for stage in learning.stages)
        super().__init__(
            replace(case, preset=replace(case.preset, learning=replace(learning, stages=alone))), folder
        )
        if speaker.environment.store.info.sha256 != self.store.info.sha256:
            raise UserError("the speaker sees other features than the agent; name its store with --features")
        train = self.trainer.episodes
        scans = [train.scans[number] for number in sorted(set(train.scan.tolist()))]
        pool = path_pool(self.experiment.environment.world, scans)
        self._speaking = _TimedAugmentation(BackTranslation(speaker, pool, seed=0))
        self.trainer.augmentation = self._speaking
        self._stages = learning.stages
        self.shares: list[float] = []  # of the speaker in the time of each run so far

    def run(self, mode: Mode, steps: int) -> int:
        """Do the first ``steps`` steps of a training again and return the episodes walked."""
        self._speaking.seconds, begun = 0.0, now()
        episodes = super().run(mode, steps)
        self.shares.append(self._speaking.seconds / (now() - begun))
        return episodes


class _TimedAugmentation:
    """Sums up the time spent on describing."""

    def __init__(self, augmentation: Augmentation) -> None:
        self.seconds = 0.0
        self._augmentation = augmentation

    def draw(self, iteration: int, batch: int, feature_mask: Tensor, team: Team, /) -> EpisodeSet:
        """What the other draws."""
        begun = now()
        drawn = self._augmentation.draw(iteration, batch, feature_mask, team)
        self.seconds += now() - begun
        return drawn


def fresh_speaking(folder: DataFolder, features: str | None) -> SpeakerExperiment:
    """A speaker that has learnt nothing but how long texts are.

    It would stop anywhere, and the cost of a description is in its words. So it never ends a text by itself,
    and all are cut to the same length: nine of ten instructions have no more words.
    """
    speaking = new_speaker(replace(SPEAKERS["speaker"], data=DataConfig(features=features)), folder, seed=0)
    speaker, texts = speaking.speaker, speaking.episodes("train").texts
    _, lengths = speaker.vocabulary.encode_batch(texts, speaker.max_words)
    speaker.max_words = int(lengths.double().quantile(_LONGER_THAN))
    with torch.no_grad():
        speaker.network.decoder.words.bias[EOS] += _SELDOM
    return speaking


def _random_walks(
    speaker: Speaker, pool: PathPool, count: int, random: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Shortest paths of the pool with random headings  ->  (count, T) padded with -1, (count,) radians"""
    world = speaker.environment.world
    path, _ = shortest_paths(world, *pool.sample(count, random))
    heading = torch.randint(HEADINGS, (count,), generator=random).to(world.position) * STEP
    return path, heading
