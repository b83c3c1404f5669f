"""``scenemem speak train``: train a speaker, resumable at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tyro

from scenemem.commands.console import open_data, print_json, training_bar, use_threads
from scenemem.errors import DataError, UserError
from scenemem.evaluation.bleu import bleu_scorer, corpus_bleu, describe_paths, paths_of
from scenemem.experiment import versions
from scenemem.learning.run_folder import RunFolder
from scenemem.learning.session import Glimpse, Rhythm, Session
from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.speaking import SPEAKERS, SpeakerPreset, Speaking, new_speaking

METRIC = "bleu"


@dataclass(frozen=True)
class SpeakTrainArguments:
    """Train a speaker on a data folder; every field of the preset can be changed by its flag."""

    folder: Annotated[Path | None, tyro.conf.arg(name="data")] = None
    """the data folder; the embedded houses when left out"""
    out: Path | None = None
    """where the run is written; runs/PRESET-SEED when left out"""
    seed: int = 0
    """of weights, batches, dropout and feature masks"""
    iterations: int | None = None
    """the same as --learning.iterations"""
    features: str | None = None
    """the same as --data.features: the name of the feature store"""
    resume: bool = False
    """continue the run in --out"""
    threads: int = 1
    """torch threads; more than one only pays on an otherwise idle machine"""
    json: bool = False
    """print one JSON object at the end"""
    preset: Annotated[SpeakerPreset, tyro.conf.arg(name="")] = field(default_factory=SpeakerPreset)


def parse(words: Sequence[str]) -> None:
    """Read the preset's name (``speaker`` when left out), then its flags, and train."""
    name, flags = ("speaker", words) if not words or words[0].startswith("-") else (words[0], words[1:])
    if name not in SPEAKERS:
        raise UserError(f"unknown speaker '{name}'; there are: {', '.join(SPEAKERS)}")
    default = SpeakTrainArguments(preset=SPEAKERS[name])
    arguments = _parsed(name, flags, default)
    if arguments.resume:
        arguments = _parsed(name, flags, _as_begun(default, _run_folder(name, arguments)))
    report = train(name, arguments)
    if arguments.json:
        print_json(report)


def _parsed(name: str, words: Sequence[str], default: SpeakTrainArguments) -> SpeakTrainArguments:
    return tyro.cli(
        SpeakTrainArguments, default=default, args=list(words), prog=f"scenemem speak train {name}"
    )


def _run_folder(name: str, arguments: SpeakTrainArguments) -> RunFolder:
    return RunFolder(arguments.out or Path("runs") / f"{name}-{arguments.seed}")


def _as_begun(default: SpeakTrainArguments, run: RunFolder) -> SpeakTrainArguments:
    """The settings a run was begun with, so that resuming needs no flag again."""
    begun = run.describe()
    try:
        preset = msgspec.convert(begun["preset"], SpeakerPreset)
        return replace(default, preset=preset, seed=int(begun["seed"]))
    except (KeyError, msgspec.ValidationError) as error:
        raise DataError(run.description, f"does not describe a run ({error})") from error


def train(name: str, arguments: SpeakTrainArguments) -> dict[str, Any]:
    """Train speaker ``name`` as the flags say, and return what came out."""
    use_threads(arguments.threads)
    if arguments.seed < 0:
        raise UserError(f"--seed must be 0 or more, got {arguments.seed}")
    out, folder = _run_folder(name, arguments), open_data(arguments.folder)
    speaking = new_speaking(_with_short_flags(arguments), folder, arguments.seed)
    with _live_view(name) as watch:
        run_training(name, speaking, out, seed=arguments.seed, resume=arguments.resume, watch=watch)
    last = list(out.logged())[-1]
    return {"run": str(out.root), "iteration": last["iteration"], "validation": last.get("validation")}


def run_training(
    name: str,
    speaking: Speaking,
    out: RunFolder,
    *,
    seed: int,
    resume: bool,
    watch: Callable[[Glimpse], None] | None = None,
) -> None:
    """Train a new speaker into a run folder, from the start or where it was left."""
    bleu_scorer()  # before hours of work that could not be judged
    preset, speaker = speaking.preset, speaking.speaker
    paths = paths_of(speaking.episodes(preset.selection.split))

    def validate() -> dict[str, float]:
        return {METRIC: corpus_bleu(describe_paths(speaker, paths), paths.references)}

    trainer = SpeakerTrainer(speaker, speaking.episodes("train"), preset.learning, seed)
    rhythm = Rhythm(preset.selection.save_every, preset.selection.every, METRIC)
    facts = {**speaking.facts, "seed": seed, "name": name}
    session = Session(trainer, out, validate, rhythm, facts, watch)
    if resume and out.last.exists():
        session.resume()
    else:  # only now that everything could be opened
        out.begin(_description(name, seed, speaking))
    session.run()


def _with_short_flags(arguments: SpeakTrainArguments) -> SpeakerPreset:
    preset = arguments.preset
    if arguments.iterations is not None:
        preset = replace(preset, learning=replace(preset.learning, iterations=arguments.iterations))
    if arguments.features is not None:
        preset = replace(preset, data=replace(preset.data, features=arguments.features))
    return preset


def _description(name: str, seed: int, speaking: Speaking) -> dict[str, Any]:
    info = speaking.sight.store.info
    return {
        "name": name,
        "seed": seed,
        "preset": msgspec.to_builtins(speaking.preset),
        "data": {"folder": speaking.folder.root.name, "features": info.encoder, "sha256": info.sha256},
        "versions": versions(),
    }


@contextmanager
def _live_view(name: str) -> Iterator[Callable[[Glimpse], None]]:
    """A line that shows speed, loss and the last validation while training."""
    with training_bar() as bar:
        task = bar.add_task(name, total=None, facts="")

        def watch(glimpse: Glimpse) -> None:
            facts = f"{glimpse.episodes_per_second:.0f} pairs/s  loss {glimpse.step.losses['words']:.2f}"
            if glimpse.validation is not None:
                facts += f"  [green]BLEU-4 {glimpse.validation[METRIC]:.3f}"
            bar.update(task, completed=glimpse.iteration, total=glimpse.iterations, facts=facts)

        yield watch
