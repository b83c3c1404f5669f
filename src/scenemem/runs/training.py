"""Training runs of agents and speakers: what to train, on what, into which folder; one or several at once."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch

from scenemem.errors import UserError
from scenemem.evaluation.bleu import bleu_scorer, corpus_bleu, describe_paths, paths_of
from scenemem.evaluation.evaluate import walk_split
from scenemem.formats.episodes import read_episodes
from scenemem.formats.folder import DataFolder
from scenemem.learning.augmentation import Augmentation, BackTranslation, StoredEpisodes
from scenemem.learning.distributed import SINGLE, ProcessGroup
from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.learning.trainer import Trainer
from scenemem.presets import PRESETS, Preset
from scenemem.registry import Registry, load_plugin, loaded_plugins
from scenemem.runs.config import TrainingConfig, changed, differences, read_config, write_config
from scenemem.runs.experiment import (
    SPEAKERS,
    Begun,
    Experiment,
    SpeakerExperiment,
    SpeakerPreset,
    begin_with,
    new_experiment,
    new_speaker,
    read_preset,
    speaker_beside,
    versions,
)
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import Learner, Schedule, TrainingLoop, TrainingStatus, Validate
from scenemem.tasks.episode_set import bind_episodes
from scenemem.tasks.paths import path_pool

P = TypeVar("P", Preset[Any], SpeakerPreset)
Watch = Callable[[TrainingStatus], None]


@dataclass(frozen=True)
class Sources:
    """What a run builds on: the weights of another run, and where augmented episodes come from."""

    begin: Path | None = None
    """a run whose trained weights to begin with"""
    speaker: Path | None = None
    """the run of a speaker that describes paths"""
    augment: Path | None = None
    """a file of augmented episodes"""

    def __post_init__(self) -> None:
        if self.speaker is not None and self.augment is not None:
            raise UserError("--speaker and --augment both say where augmented episodes come from; name one")

    @classmethod
    def named(
        cls, begin: str | None = None, speaker: str | None = None, augment: str | None = None
    ) -> Sources:
        """Sources by their places."""
        return cls(*(None if place is None else Path(place) for place in (begin, speaker, augment)))

    def places(self, *names: str) -> dict[str, str]:
        """The sources of these names, where there are any."""
        return {name: str(getattr(self, name)) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class Settings(Generic[P]):
    """What is to be trained."""

    name: str
    preset: P
    seed: int = 0
    sources: Sources = field(default_factory=Sources)
    folder: str | None = None  # name of the data folder a configuration was written for

    def check_folder(self, folder: DataFolder, *, named: bool) -> None:
        """Refuse the embedded houses where a configuration was written for other data.

        Raises:
            UserError: no folder was named, and the houses are not what the configuration was written for.
        """
        if not named and self.folder not in (None, folder.root.name):
            raise UserError(
                f"this configuration was written for the data folder '{self.folder}'; name --data"
            )


def choose_preset(
    presets: Registry[P], name: str | None, config: str | os.PathLike[str] | None
) -> Settings[P]:
    """The preset of a name, changed as a configuration says.

    Args:
        presets: where to look for it.
        name: of a preset, or ``module:preset`` or ``path/file.py:preset`` for one of a plugin; may be left
            out when the configuration has a ``base``.
        config: a TOML file.

    Raises:
        UserError: no such preset, or the configuration changes what is not there.
    """
    read = TrainingConfig() if config is None else read_config(config)
    if name is None and read.base is None:
        raise UserError(f'{config}: names no base; add base = "PRESET", or name the preset to change')
    if None not in (name, read.base) and name != read.base:
        raise UserError(f"{config}: changes the {presets.what} '{read.base}', not '{name}'; name one of them")
    name, preset = _found(presets, str(name or read.base))
    preset = changed(preset, read.changes, config)
    if read.iterations is not None:
        preset = changed(preset, {"learning": {"iterations": read.iterations}}, config)
    sources = Sources.named(read.begin, read.speaker, read.augment)
    return Settings(name, preset, read.seed or 0, sources, read.folder)


def settings_of(run: Begun[P]) -> Settings[P]:
    """What a run was begun with, to resume it."""
    return Settings(run.name, run.preset, run.seed, Sources.named(**run.augmentation))


def default_out(name: str, seed: int) -> RunFolder:
    """Where a run is written when nothing else is said."""
    return RunFolder(Path("runs") / f"{name}-{seed}")


def run_training(
    name: str,
    preset: Preset[Any] | SpeakerPreset,
    folder: DataFolder,
    out: RunFolder,
    *,
    seed: int,
    resume: bool = False,
    watch: Watch | None = None,
    group: ProcessGroup = SINGLE,
    sources: Sources | None = None,
) -> None:
    """Train an agent or a speaker into a run folder, from the start or where it was left.

    Args:
        name: of the preset.
        preset: what is trained, and how.
        folder: the data.
        out: where the run is written.
        seed: of weights, batches, dropout and sampling.
        resume: continue the run in ``out``, if it has begun.
        watch: told about every step.
        group: the processes that train together.
        sources: what the run builds on.

    Raises:
        UserError: settings or data do not fit, or ``out`` holds a run that is not to be resumed.
    """
    if seed < 0:
        raise UserError(f"--seed must be 0 or more, got {seed}")
    sources = sources or Sources()
    if isinstance(preset, SpeakerPreset):
        job = _speaker_job(preset, folder, seed)
    else:
        job = _agent_job(preset, folder, seed, group, sources)
    selection = preset.selection
    schedule = Schedule(selection.save_every, selection.every, selection.metric)
    metadata = {**job.experiment.metadata, "seed": seed, "name": name}
    loop = TrainingLoop(job.trainer, out, job.validate, schedule, metadata, watch)
    if resume and out.last.exists():
        loop.resume()
    else:  # only now that everything could be opened
        if sources.begin is not None and isinstance(job.experiment, Experiment):
            begin_with(job.experiment, RunFolder(sources.begin))
        if group.is_main:
            out.begin(
                _description(name, seed, job.experiment, sources),
                _config(name, seed, job.experiment, sources),
            )
    loop.run()


def train_side_by_side(
    presets: Mapping[str, Preset[Any]],
    folder: Path,
    out: Path,
    seed: int,
    watch: Callable[[str, TrainingStatus], None],
) -> dict[str, RunFolder]:
    """Train every preset in a process of its own; runs that exist already are continued.

    Args:
        presets: by name.
        folder: the data.
        out: where the runs are written, ``NAME-SEED`` each.
        seed: of all runs.
        watch: told the name and the status after every step.

    Raises:
        UserError: a training failed; its message is passed on.
    """
    context = multiprocessing.get_context("spawn")
    news: Queue[_News] = context.Queue()
    runs = {name: RunFolder(out / f"{name}-{seed}") for name in presets}
    processes = {
        name: context.Process(
            target=_train,
            args=(loaded_plugins(), name, msgspec.to_builtins(preset), folder, runs[name].root, seed, news),
            daemon=True,
        )
        for name, preset in presets.items()
    }
    for process in processes.values():
        process.start()
    try:
        _follow(processes, news, watch)
    finally:
        for process in processes.values():
            process.kill()  # harmless when it has ended
            process.join()
    return runs


@dataclass(frozen=True)
class _Job:
    """What the loop needs to know about an agent or a speaker."""

    experiment: Experiment | SpeakerExperiment
    trainer: Learner
    validate: Validate


def _agent_job(
    preset: Preset[Any], folder: DataFolder, seed: int, group: ProcessGroup, sources: Sources
) -> _Job:
    experiment = new_experiment(preset, folder, seed, group.device)
    episodes, world = experiment.episodes(preset.selection.split), experiment.environment.world
    own = episodes.select(group.share(torch.arange(len(episodes))))

    def validate() -> dict[str, float]:
        walks = walk_split(experiment.agent, own)
        means = {**walks.measured(world).means(), "jumps": float(walks.jumps.double().mean())}
        share = len(own) / len(episodes) * group.size  # shares may differ by one episode
        return group.means({name: value * share for name, value in means.items()})

    augmentation = _augmentation(sources, experiment, seed)
    train = experiment.episodes("train")
    trainer = Trainer(experiment.agent, train, preset.learning, seed, group, augmentation)
    return _Job(experiment, trainer, validate)


def _speaker_job(preset: SpeakerPreset, folder: DataFolder, seed: int) -> _Job:
    experiment = new_speaker(preset, folder, seed)
    bleu_scorer()  # before hours of work that could not be judged
    paths = paths_of(experiment.episodes(preset.selection.split))

    def validate() -> dict[str, float]:
        return {"bleu": corpus_bleu(describe_paths(experiment.speaker, paths), paths.references)}

    trainer = SpeakerTrainer(experiment.speaker, experiment.episodes("train"), preset.learning, seed)
    return _Job(experiment, trainer, validate)


def _augmentation(sources: Sources, experiment: Experiment, seed: int) -> Augmentation | None:
    world = experiment.environment.world
    if sources.augment is not None:
        file = sources.augment
        return StoredEpisodes(bind_episodes(world, read_episodes(file), file, name=file.name), seed)
    if sources.speaker is None:
        return None
    speaker = speaker_beside(RunFolder(sources.speaker), experiment)
    return BackTranslation(speaker, path_pool(world, experiment.training_scans), seed)


def _found(presets: Registry[P], name: str) -> tuple[str, P]:
    """A preset and its own name; one of a plugin is registered, or stands in its module under that name."""
    plugin, colon, own = name.rpartition(":")
    if not colon:
        return name, presets.get(name)
    module = load_plugin(plugin)
    defined = getattr(module, own, None)
    if own not in presets and isinstance(defined, (Preset, SpeakerPreset)):
        presets.register(own, defined)  # type: ignore[arg-type]
    return own, presets.get(own)


def _description(
    name: str, seed: int, experiment: Experiment | SpeakerExperiment, sources: Sources
) -> dict[str, Any]:
    info = experiment.environment.store.info
    return {
        "name": name,
        "seed": seed,
        "preset": msgspec.to_builtins(experiment.preset),
        "data": {"folder": experiment.folder.root.name, "features": info.encoder, "sha256": info.sha256},
        "versions": versions(),
        "augmentation": sources.places("speaker", "augment"),
        "plugins": loaded_plugins(),
    }


def _config(name: str, seed: int, experiment: Experiment | SpeakerExperiment, sources: Sources) -> str:
    """The configuration that repeats a run."""
    preset = experiment.preset
    known: Registry[Any] = SPEAKERS if isinstance(preset, SpeakerPreset) else PRESETS
    # a preset that was never registered is told as a change of the one that is most like it
    base = (
        name if name in known else min(known, key=lambda other: len(str(differences(known[other], preset))))
    )
    changes = differences(known[base], preset)
    changes.get("learning", {}).pop("iterations", None)  # which stands at the top
    config = TrainingConfig(
        base=base,
        seed=seed,
        iterations=preset.learning.iterations,
        folder=experiment.folder.root.name,
        plugins=loaded_plugins(),
        changes={table: values for table, values in changes.items() if values != {}},
        **sources.places("begin", "speaker", "augment"),
    )
    command = "speak train" if isinstance(preset, SpeakerPreset) else "train"
    made_with = ", ".join(f"{what} {version}" for what, version in versions().items())
    return write_config(
        config, f"'scenemem {command} --config FILE' repeats this run (made with {made_with})"
    )


@dataclass(frozen=True)
class _News:
    """What a training process tells: a step, its end, or what went wrong."""

    name: str
    status: TrainingStatus | None = None
    error: str | None = None


def _train(
    plugins: tuple[str, ...],
    name: str,
    preset: dict[str, Any],  # as plain values, because only plugins know the classes of their presets
    folder: Path,
    out: Path,
    seed: int,
    news: Queue[_News],
) -> None:
    torch.set_num_threads(1)
    run = RunFolder(out)
    try:
        for plugin in plugins:
            load_plugin(plugin)
        run_training(
            name,
            read_preset(preset, Preset, run.description, plugins),
            DataFolder(folder),
            run,
            seed=seed,
            resume=run.last.exists(),
            watch=lambda status: news.put(_News(name, status)),
        )
        news.put(_News(name))
    except UserError as error:
        news.put(_News(name, error=str(error)))


def _follow(
    processes: Mapping[str, BaseProcess], news: Queue[_News], watch: Callable[[str, TrainingStatus], None]
) -> None:
    """Pass on what the processes tell until every one has said that it is done."""
    running = set(processes)
    while running:
        try:
            item = news.get(timeout=1.0)
        except queue.Empty:
            _check_alive(processes, running)
            continue
        if item.error is not None:
            raise UserError(f"training '{item.name}' failed: {item.error}")
        if item.status is None:
            running.discard(item.name)
        else:
            watch(item.name, item.status)


def _check_alive(processes: Mapping[str, BaseProcess], running: set[str]) -> None:
    for name in sorted(running):
        if not processes[name].is_alive():
            raise UserError(
                f"training '{name}' ended with exit code {processes[name].exitcode}; "
                "is there enough memory? Start again to continue it"
            )
