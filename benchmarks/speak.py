"""Speed of a speaker, and its share of augmented training: python -m benchmarks.speak --data DIR"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import torch
import tyro

from benchmarks.machine import Case, Options, command
from benchmarks.measure import Amount, measure, repeatable
from benchmarks.workload import STILL, Workload, rewind
from scenemem.agents.walker import Sample
from scenemem.errors import UserError
from scenemem.learning.augmentation import BackTranslation
from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.presets import DataConfig, overlaid
from scenemem.runs.experiment import SPEAKERS, SpeakerExperiment, new_speaker
from scenemem.runs.speakers import open_speaker
from scenemem.runs.weights import find_run
from scenemem.tasks.paths import path_pool, shortest_paths
from scenemem.tasks.vocabulary import EOS
from scenemem.world.graph import HEADINGS, STEP

KINDS = ("greedy", "sampled", "beam", "training")
SHARE_GOAL = 0.35
"""The speaker's part of an augmented training step should stay below this."""
_SELDOM = -30.0  # added to the score of the end mark, so that a fresh speaker does not stop by itself
_LONGER_THAN = 0.9  # share of the instructions that are no longer than what a fresh speaker says


@dataclass(frozen=True)
class SpeakOptions(Options):
    """Measure how fast a speaker describes and learns, and what it costs agents that learn from it."""

    presets: Annotated[tuple[str, ...], tyro.conf.Positional] = ("basic", "ssm")
    """agents, which learn from described paths as well"""
    speaker: str | None = None
    """run of a trained speaker; without it a fresh one says texts of one usual length"""
    beam: int = 5
    """texts kept at once in beam search"""
    device: tyro.conf.Suppress[str] = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beam < 2:
            raise UserError(f"--beam must be 2 or more, got {self.beam}")


class SpeakerWorkload:
    """A speaker whose next batches can be described, or learnt from, again and again."""

    def __init__(self, opened: SpeakerExperiment, batch: int, beam: int) -> None:
        self.speaker = opened.speaker
        self.pool = path_pool(opened.environment.world, opened.training_scans)
        self.words: dict[str, float] = {}  # of a description, by the last work of each kind
        self._batch, self._beam = batch, beam
        learning = replace(opened.preset.learning, learning_rate=STILL)
        self._trainer = SpeakerTrainer(self.speaker, opened.episodes("train"), learning, seed=0)

    def run(self, kind: str, steps: int) -> Amount:
        """Describe (greedy, sampled or beam) or learn from (training) the first batches again."""
        if kind == "training":
            rewind(self._trainer)
            return Amount(sum(self._trainer.step().episodes for _ in range(steps)), steps)
        random, words, world = torch.Generator().manual_seed(0), 0, self.speaker.environment.world
        for _ in range(steps):
            path, _ = shortest_paths(world, *self.pool.sample(self._batch, random))
            heading = torch.randint(HEADINGS, (self._batch,), generator=random).to(world.position) * STEP
            if kind == "beam":
                described = self.speaker.describe_best(path, heading, self._beam)
            elif kind == "sampled":
                described = self.speaker.describe(path, heading, choose=Sample(random))
            else:
                described = self.speaker.describe(path, heading)
            words += int((described.lengths - 2).sum())  # without the marks
        self.words[kind] = words / (steps * self._batch)
        return Amount(steps * self._batch, steps)


def fresh_speaker(options: Options) -> SpeakerExperiment:
    """A speaker that has learnt nothing but how long texts are.

    The cost of a description is in its words, so a fresh speaker never ends a text by itself, and all are cut
    to the same length: nine of ten instructions have no more words.
    """
    preset = replace(SPEAKERS["speaker"], data=DataConfig(features=options.features))
    opened = new_speaker(preset, options.folder, seed=0)
    speaker = opened.speaker
    _, lengths = speaker.vocabulary.encode_batch(opened.episodes("train").texts, speaker.max_words)
    speaker.max_words = int(lengths.double().quantile(_LONGER_THAN))
    with torch.no_grad():
        speaker.network.decoder.words.bias[EOS] += _SELDOM
    return opened


def measure_speaking(options: SpeakOptions) -> list[Case]:
    """The speaker alone, where an "episode" is a path or a pair of path and instruction; then the agents."""
    run = options.speaker
    opened = fresh_speaker(options) if run is None else open_speaker(find_run(run), options.folder)
    load = SpeakerWorkload(opened, options.batch, options.beam)
    works = {kind: repeatable(partial(load.run, kind), options) for kind in KINDS}
    modes = msgspec.to_builtins(measure(works, opened.network, options))
    for kind, words in load.words.items():
        modes[kind]["words"] = words
    speaker = "fresh, texts of one length" if run is None else Path(run).name
    facts = {"speaker": speaker, "batch": options.batch, "feature_columns": opened.environment.width}
    cases: list[Case] = [{**facts, "beam": options.beam, "modes": modes}]
    options = replace(options, features=options.features or opened.preset.data.features)
    for name in options.presets:
        augmentation = BackTranslation(opened.speaker, load.pool, seed=0)
        trained = Workload(overlaid(name, described=True), options, augmentation=augmentation)
        agent = trained.agent
        if opened.environment.store.info.sha256 != agent.environment.store.info.sha256:
            raise UserError("the speaker sees other features than the agent; name its store with --features")
        speed = measure({"mixed": trained.work("mixed")}, agent.network, options)["mixed"]
        share = speed.parts["speaker"]
        told = {"speaker_share": share, "share_goal": SHARE_GOAL, "below_goal": share < SHARE_GOAL}
        cases.append({"preset": name, **facts, "modes": {"mixed": {**told, **msgspec.to_builtins(speed)}}})
    return cases


if __name__ == "__main__":
    command(SpeakOptions, measure_speaking)
