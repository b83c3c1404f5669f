"""Speed of a speaker: describing, learning, and its share of an augmented training step; ``bench speak``."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import date

from scenemem.benchmarks.speaking_load import AugmentedLoad, SpeakerLoad
from scenemem.benchmarks.speed import Progress, Speed, Work, measure_speeds
from scenemem.benchmarks.workload import Case, preset_named
from scenemem.errors import UserError
from scenemem.presets import PRESETS
from scenemem.runs.experiment import SpeakerExperiment
from scenemem.benchmarks.machine import Machine, this_machine

SHARE_GOAL = 0.35
"""The speaker's part of an augmented training step should stay below this."""


@dataclass(frozen=True)
class SpeakRequest:
    """What to measure, and how long."""

    presets: tuple[str, ...] = ("basic-augmented", "ssm-augmented")
    batch: int = 64
    beams: int = 5
    features: str | None = None  # name of the folder's store
    seconds: float = 2.0  # a repetition of each work lasts about so long, one batch at least
    repeats: int = 3

    def __post_init__(self) -> None:
        augmented = [name for name, row in PRESETS.items() if any(s.augmented for s in row.learning.stages)]
        for name in self.presets:
            preset_named(name)
            if name not in augmented:
                raise UserError(
                    f"preset '{name}' learns from no described paths; there are: {', '.join(augmented)}"
                )
        if not self.presets:
            raise UserError("--presets needs at least one value")
        if min(self.batch, self.repeats) < 1 or self.beams < 2:
            raise UserError(
                f"--batch and --repeats must be 1 or more and --beam 2 or more, got {self.batch}, "
                f"{self.repeats} and {self.beams}"
            )


@dataclass(frozen=True)
class Rate:
    """How fast one kind of thing is done."""

    count: int  # in one repetition
    per_second: float  # median over the repetitions
    normalised_per_second: float  # on a machine whose square product reaches 68 GFLOP/s
    gigaflops_each: float  # counted
    square_gigaflops_per_second: float  # of a large square product, measured between the repetitions
    utilisation_of_square: float
    cpus: float  # processors in use meanwhile; below 1 others had them
    repeats: int
    peak_megabytes: float | None


@dataclass(frozen=True)
class Describing:
    """One way to find the words."""

    paths: Rate
    words: float  # of a description, without the marks; the cost depends on them


@dataclass(frozen=True)
class AugmentedSteps:
    """Training steps of an agent that learns from described paths."""

    preset: str
    batch: int  # episodes of its own, and as many described ones
    steps_per_second: float
    episodes: Rate  # walked and learnt from
    speaker_share: float  # of the time of a step: drawing paths and describing them; median
    below_goal: bool


@dataclass(frozen=True)
class SpeakReport:
    """Everything ``scenemem bench speak`` prints."""

    date: str
    machine: Machine
    speaker: str  # a run, or "fresh"
    trained: bool  # a fresh one says texts of one length, see docs
    parameters: int
    vocabulary: int
    feature_columns: int
    features: str  # what the features come from
    batch: int
    beams: int
    describing: dict[str, Describing]
    training_batch: int
    training: Rate  # pairs of path and instruction
    share_goal: float
    augmented: list[AugmentedSteps]


def measure_speaking(
    request: SpeakRequest, speaking: SpeakerExperiment, *, name: str | None, progress: Progress | None = None
) -> SpeakReport:
    """Measure a speaker at work and inside the training of agents.

    Args:
        request: what to measure.
        speaking: the speaker on its data folder.
        name: of its run; None for fresh weights.
        progress: called with (done, in all).
    """
    load = SpeakerLoad(speaking, request.batch, request.beams)
    loads = {
        preset: AugmentedLoad(
            Case(PRESETS[preset], request.batch, features=request.features), speaking.folder, speaking.speaker
        )
        for preset in request.presets
    }
    pieces = 1 + len(loads)
    works: dict[str, Work] = {
        kind: load.work(kind, load.steps_within(kind, request.seconds)) for kind in load.kinds
    }
    bystander = next(iter(loads.values())).trainer.agent  # no part of an agent runs while paths are described
    speeds = measure_speeds(works, bystander, repeats=request.repeats, progress=_piece(progress, 0, pieces))
    augmented = [
        _augmented(preset, trained, request, _piece(progress, number, pieces))
        for number, (preset, trained) in enumerate(loads.items(), start=1)
    ]
    store = speaking.environment.store
    return SpeakReport(
        date=date.today().isoformat(),
        machine=this_machine(),
        speaker=name or "fresh",
        trained=name is not None,
        parameters=sum(weights.numel() for weights in speaking.speaker.network.parameters()),
        vocabulary=len(speaking.speaker.vocabulary),
        feature_columns=store.width,
        features=store.info.encoder,
        batch=request.batch,
        beams=request.beams,
        describing={
            kind: Describing(_rate(speeds[kind]), load.words[kind])
            for kind in load.kinds
            if kind != "training"
        },
        training_batch=load.trainer.config.batch,
        training=_rate(speeds["training"]),
        share_goal=SHARE_GOAL,
        augmented=augmented,
    )


def _augmented(preset: str, load: AugmentedLoad, request: SpeakRequest, progress: Progress) -> AugmentedSteps:
    steps = load.steps_within("mixed", request.seconds)
    load.shares.clear()
    speed = measure_speeds(
        {"step": load.work("mixed", steps)},
        load.trainer.agent,
        load.trainer.optimiser,
        repeats=request.repeats,
        progress=progress,
    )["step"]
    share = statistics.median(load.shares[: request.repeats])  # later ones were slowed down by counting
    return AugmentedSteps(
        preset=preset,
        batch=request.batch,
        steps_per_second=speed.episodes_per_second * steps / speed.episodes,
        episodes=_rate(speed),
        speaker_share=share,
        below_goal=share < SHARE_GOAL,
    )


def _rate(speed: Speed) -> Rate:
    return Rate(
        count=speed.episodes,
        per_second=speed.episodes_per_second,
        normalised_per_second=speed.normalised_episodes_per_second,
        gigaflops_each=speed.gigaflops_per_episode,
        square_gigaflops_per_second=speed.square_gigaflops_per_second,
        utilisation_of_square=speed.utilisation_of_square,
        cpus=speed.cpus,
        repeats=speed.repeats,
        peak_megabytes=speed.peak_megabytes,
    )


def _piece(progress: Progress | None, number: int, of: int) -> Progress:
    """The progress of one of several pieces, as progress of the whole in per cent."""

    def advance(done: int, total: int) -> None:
        if progress is not None:
            progress(round(100 * (number + done / total) / of), 100)

    return advance
