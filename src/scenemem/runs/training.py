"""Training runs of agents and speakers: what to train, on what, into which folder."""

from __future__ import annotations

import os
import platform
import shlex
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import torch

from scenemem import __version__
from scenemem.errors import UserError
from scenemem.evaluation.bleu import bleu_scorer, corpus_bleu, describe_paths, paths_of
from scenemem.evaluation.evaluate import walk_split
from scenemem.formats.decoding import file_digest
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import read_store_info
from scenemem.formats.folder import DataFolder, cache_folder
from scenemem.learning.augmentation import Augmentation, BackTranslation, StoredEpisodes
from scenemem.learning.distributed import SINGLE, ProcessGroup
from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.learning.trainer import Learner, Trainer
from scenemem.presets import NO_OVERLAYS, PRESETS, R2R_TRACKS, Overlays, Preset, overlaid
from scenemem.registry import Registry, load_plugin, loaded_plugins
from scenemem.runs.config import (
    NO_SOURCES,
    Sources,
    TrainingConfig,
    changed,
    differences,
    read_config,
    write_config,
)
from scenemem.runs.experiment import (
    SPEAKERS,
    Experiment,
    SpeakerExperiment,
    SpeakerPreset,
    begin_with,
    begun,
    new_experiment,
    new_speaker,
    speaker_beside,
)
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import WORTH_MEASURING, TrainingLoop, TrainingStatus, Validate, measured_cost
from scenemem.tasks.episode_set import bind_episodes
from scenemem.tasks.paths import path_pool

P = TypeVar("P", Preset[Any], SpeakerPreset)


@dataclass(frozen=True)
class Settings(Generic[P]):
    """What is to be trained."""

    name: str  # of its results: the row and its overlays
    preset: P
    seed: int = 0
    sources: Sources = field(default_factory=Sources)
    folder: str | None = None  # name of the data folder a configuration was written for
    row: str = ""  # the preset that was named; empty for one that was made otherwise
    overlays: Overlays = field(default_factory=Overlays)

    def run_folder(self, out: str | os.PathLike[str] | None) -> RunFolder:
        """Where the run is written: ``out``, or ``runs/NAME-SEED``."""
        return RunFolder(Path("runs") / f"{self.name}-{self.seed}" if out is None else Path(out))

    def check_folder(self, folder: DataFolder, *, named: bool) -> None:
        """Refuse the embedded houses, when no folder was named, for a configuration of other data."""
        if not named and self.folder not in (None, folder.root.name):
            raise UserError(
                f"this configuration was written for the data folder '{self.folder}'; name `data`"
            )


def choose_preset(
    presets: Registry[P],
    name: str | P | None,
    config: str | os.PathLike[str] | None,
    overlays: Overlays = NO_OVERLAYS,
    sources: Sources = NO_SOURCES,
    *,
    data: Callable[[], DataFolder] | None = None,
) -> Settings[P]:
    """The preset of a name with its overlays, changed as a configuration (a TOML file) says.

    Args:
        presets: those there are.
        name: of the preset, ``module:preset`` or ``path/file.py:preset`` for one of a plugin; or the preset
            itself, which is then called custom; None takes the ``base`` of the configuration.
        config: the file; its overlays and sources count where the arguments name nothing.
        overlays: what to lay over an agent's preset.
        sources: what the run builds on.
        data: opens the data folder, to look up the width of a feature store that is none of the tracks.
    """
    read = TrainingConfig() if config is None else read_config(config)
    if not isinstance(name, (str, type(None))) and config is not None:
        raise UserError("a configuration changes a preset by its name; leave out one of the two")
    if name is None and read.base is None:
        raise UserError(f'{config}: names no base; add base = "PRESET", or name the preset to change')
    if None not in (name, read.base) and name != read.base:
        raise UserError(f"{config}: changes the {presets.what} '{read.base}', not '{name}'; name one of them")
    row, preset = _found(presets, str(read.base) if name is None else name)
    overlays = read.changed_by(overlays)
    sources = Sources(*(getattr(sources, item) or getattr(read, item) for item in vars(sources)))
    plain = _overlaid(row, preset, overlays, NO_SOURCES, data)
    preset = _overlaid(row, preset, overlays, sources, data)
    results = row
    if isinstance(preset, Preset):
        results = overlays.results_name(row, described=preset != plain)
    preset = changed(preset, read.changes, config)
    if read.iterations is not None:
        preset = changed(preset, {"learning": {"iterations": read.iterations}}, config)
    return Settings(results, preset, read.seed or 0, sources, read.folder, row, overlays)


def _overlaid(
    row: str, preset: P, overlays: Overlays, sources: Sources, data: Callable[[], DataFolder] | None
) -> P:
    """A preset with overlays; those of a speaker name its data, and nothing else."""
    if isinstance(preset, SpeakerPreset):
        if overlays.recipe is not None:
            raise UserError("recipes are of agents; the published one of the speaker is 'speaker-paper'")
        named = {"features": overlays.features, "task": overlays.task}
        return changed(preset, {"data": {name: value for name, value in named.items() if value}})
    store = None
    if data is not None and overlays.features not in (None, *R2R_TRACKS):
        store = read_store_info(data().feature_file(str(overlays.features)))
    return overlaid(row, overlays, preset=preset, store=store, described=sources.described)


def run_training(
    settings: Settings[Any],
    folder: DataFolder,
    out: RunFolder,
    *,
    resume: bool = False,
    watch: Callable[[TrainingStatus], None] | None = None,
    announce: Callable[[str], None] | None = None,
    dry_run: bool = False,
    group: ProcessGroup = SINGLE,
) -> None:
    """Train an agent or a speaker into a run folder; a run that is there already is only resumed if asked.

    ``watch`` is called after every step, ``announce`` with the cost of the training before it begins; a dry
    run ends after that and writes nothing.
    """
    if settings.seed < 0:
        raise UserError(f"`seed` must be 0 or more, got {settings.seed}")
    experiment, trainer, validate = (
        _speaker_job(settings, folder)
        if isinstance(settings.preset, SpeakerPreset)
        else _agent_job(settings, folder, group)
    )
    inputs = {**experiment.inputs, **_source_digests(settings.sources)}
    metadata = {**experiment.metadata, "inputs": inputs, "seed": settings.seed, "name": settings.name}
    if dry_run:
        (announce or print)(measured_cost(trainer))
        return
    advice = _advice(settings, folder, out)
    loop = TrainingLoop(trainer, out, validate, settings.preset.selection, metadata, watch, advice)
    with out.locked() if group.is_main else nullcontext():
        if resume and out.has_checkpoint:
            loop.resume()
            if group.is_main and out.description.is_file():
                _continue(out, trainer.iteration, group)
        else:  # only now that everything could be opened
            begin = _begin_with(settings, experiment, out, resume=resume)
            if group.is_main:
                description, config = _described(settings, experiment, inputs, begin)
                conditions = _conditions(group)
                session = {"iteration": 0, **conditions}
                out.begin({**description, **conditions, "sessions": [session]}, config)
            if announce is not None and trainer.config.iterations >= WORTH_MEASURING:
                announce(measured_cost(trainer))
        loop.run()


def _source_digests(sources: Sources) -> dict[str, str]:
    """The sha256 of what augmented episodes come from."""
    found = {} if sources.augment is None else {"augment": file_digest(sources.augment)}
    if sources.speaker is not None:
        found["speaker"] = file_digest(RunFolder(sources.speaker).best)
    return found


def _begin_with(
    settings: Settings[Any], experiment: Experiment | SpeakerExperiment, out: RunFolder, *, resume: bool
) -> dict[str, str]:
    """Load the weights a new run begins with  ->  where they are and their sha256; empty without any.

    A run that was killed before its first checkpoint begins with what it was begun with.
    """
    if resume and any(True for _ in out.logged()):
        raise UserError(
            f"{out.root} has metrics but no checkpoint to continue from (neither '{out.last.name}' nor "
            f"'{out.previous.name}' in {out.last.parent}); put one back, or begin again in another `out`"
        )
    noted: dict[str, str] = {}
    if resume and out.description.is_file():
        noted = begun(out, type(settings.preset)).begin
    place = settings.sources.begin or noted.get("run")
    if place is None or not isinstance(experiment, Experiment):
        return {}
    run = RunFolder(Path(place))
    begin_with(experiment, run)
    digest = file_digest(run.last)
    if noted.get("sha256", digest) != digest:
        raise UserError(
            f"{out.root} was to begin with {run.root}, whose weights have changed since then; "
            "begin again in another `out`"
        )
    return {"run": str(place), "sha256": digest}


def _conditions(group: ProcessGroup) -> dict[str, dict[str, Any]]:
    """What numbers are computed with, which decides about their last bits."""
    precision = "full" if torch.get_float32_matmul_precision() == "highest" else "fast"
    return {
        "versions": _versions(),
        "computing": {
            "threads": torch.get_num_threads(),
            "precision": precision,
            "device": group.device if group.size == 1 else group.device.partition(":")[0],
            "processes": group.size,
        },
    }


def _versions() -> dict[str, str]:
    return {"scenemem": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def _continue(out: RunFolder, iteration: int, group: ProcessGroup) -> None:
    """Note how a resumed run goes on, with a warning when that differs from before."""
    now = _conditions(group)
    before = out.add_session({"iteration": iteration, **now})
    changed = [
        f"{name} {before.get(part, {}).get(name)} -> {value}"
        for part, values in now.items()
        for name, value in values.items()
        if before.get(part, {}).get(name) != value
    ]
    if changed:
        warnings.warn(
            f"{out.root} goes on under other conditions ({', '.join(changed)}); "
            "it may not end bit for bit as it would have, and preset.json notes that",
            stacklevel=3,
        )


def _advice(settings: Settings[Any], folder: DataFolder, out: RunFolder) -> str:
    """The command that continues a run."""
    command = ["scenemem", *(word for plugin in loaded_plugins() for word in ("--plugin", plugin))]
    command += ["speak", "train"] if isinstance(settings.preset, SpeakerPreset) else ["train"]
    if folder.root.parent != cache_folder():  # where the embedded houses are, which need no name
        command += ["--data", str(folder.root)]
    return f"continue with: {shlex.join([*command, '--out', str(out.root), '--resume'])}"


_Job = tuple[Experiment | SpeakerExperiment, Learner, Validate]


def _agent_job(settings: Settings[Preset[Any]], folder: DataFolder, group: ProcessGroup) -> _Job:
    preset, seed = settings.preset, settings.seed
    experiment = new_experiment(preset, folder, seed, group.device)
    episodes, world = experiment.episodes(preset.selection.split), experiment.environment.world
    own = episodes.select(group.share(torch.arange(len(episodes))))

    def validate() -> dict[str, float]:
        walks = walk_split(experiment.agent, own)
        means = {**walks.measured(world).means(), "jumps": float(walks.jumps.double().mean())}
        share = len(own) / len(episodes) * group.size  # shares may differ by one episode
        return group.means({name: value * share for name, value in means.items()})

    augmentation = _augmentation(settings, experiment)
    train = experiment.episodes("train")
    trainer = Trainer(experiment.agent, train, preset.learning, seed, group, augmentation)
    return experiment, trainer, validate


def _speaker_job(settings: Settings[SpeakerPreset], folder: DataFolder) -> _Job:
    preset, seed = settings.preset, settings.seed
    experiment = new_speaker(preset, folder, seed)
    bleu_scorer()  # before hours of work that could not be judged
    paths = paths_of(experiment.episodes(preset.selection.split))

    def validate() -> dict[str, float]:
        return {"bleu": corpus_bleu(describe_paths(experiment.speaker, paths), paths.references)}

    trainer = SpeakerTrainer(experiment.speaker, experiment.episodes("train"), preset.learning, seed)
    return experiment, trainer, validate


def _augmentation(settings: Settings[Preset[Any]], experiment: Experiment) -> Augmentation | None:
    world, seed, file = experiment.environment.world, settings.seed, settings.sources.augment
    if file is not None:
        return StoredEpisodes(bind_episodes(world, read_episodes(file), file, name=file.name), seed)
    if settings.sources.speaker is None:
        return None
    speaker = speaker_beside(RunFolder(settings.sources.speaker), experiment)
    return BackTranslation(speaker, path_pool(world, experiment.training_scans), seed)


def _found(presets: Registry[P], name: str | P) -> tuple[str, P]:
    """A preset and its own name; one of a plugin is registered, or stands in its module under that name."""
    if not isinstance(name, str):
        return "custom", name
    plugin, colon, own = name.rpartition(":")
    if colon:
        defined = getattr(load_plugin(plugin), own, None)
        if own not in presets and isinstance(defined, (Preset, SpeakerPreset)):
            presets.register(own, defined)  # type: ignore[arg-type]
    return own, presets[own]


def _described(
    settings: Settings[Any],
    experiment: Experiment | SpeakerExperiment,
    inputs: Mapping[str, str],
    begin: Mapping[str, str],
) -> tuple[dict[str, Any], str]:
    """What a run trains, as its folder says it, and the configuration that repeats it."""
    name, seed, sources = settings.name, settings.seed, settings.sources
    preset, info, folder = experiment.preset, experiment.environment.store.info, experiment.folder.root.name
    augmentation = {"speaker": sources.speaker, "augment": sources.augment}
    description = {
        "name": name,
        "seed": seed,
        "preset": msgspec.to_builtins(preset),
        "data": {"folder": folder, "features": info.encoder, "sha256": info.sha256, "track": info.track},
        "augmentation": {what: str(place) for what, place in augmentation.items() if place is not None},
        "plugins": loaded_plugins(),
        "inputs": dict(inputs),
        "begin": dict(begin) or None,
    }
    known: Registry[Any] = SPEAKERS if isinstance(preset, SpeakerPreset) else PRESETS
    # a preset that was never registered is written as a change of the one that is most like it
    row = next((one for one in (settings.row, name) if one in known), None)
    base = row or min(known, key=lambda other: len(str(differences(known[other], preset))))
    overlays = settings.overlays if base == settings.row else NO_OVERLAYS
    changes = differences(_overlaid(base, known[base], overlays, sources, lambda: experiment.folder), preset)
    changes.get("learning", {}).pop("iterations", None)  # which stands at the top
    config = TrainingConfig(
        begin=Path(begin["run"]) if begin else None,
        speaker=sources.speaker,
        augment=sources.augment,
        features=overlays.features,
        task=overlays.task,
        recipe=overlays.recipe,
        base=base,
        seed=seed,
        iterations=preset.learning.iterations,
        folder=folder,
        plugins=loaded_plugins(),
        changes={table: values for table, values in changes.items() if values != {}},
    )
    command = "speak train" if isinstance(preset, SpeakerPreset) else "train"
    made_with = ", ".join(f"{what} {version}" for what, version in _versions().items())
    comment = f"'scenemem {command} --config FILE' repeats this run (made with {made_with})"
    return description, write_config(config, comment)
