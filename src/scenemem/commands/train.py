"""``scenemem train PRESET``: train an agent, resumable at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
import tyro

from scenemem.commands.console import (
    Precision,
    open_data,
    output,
    print_json,
    training_bar,
    use_precision,
    use_threads,
)
from scenemem.commands.report import report_on, say_where
from scenemem.commands.sources import Sources, begin_with, open_augmentation
from scenemem.errors import DataError, UserError
from scenemem.evaluation.evaluate import walk_split
from scenemem.experiment import Experiment, new_experiment, versions
from scenemem.formats.folder import DataFolder
from scenemem.learning.run_folder import RunFolder
from scenemem.learning.session import Glimpse, Rhythm, Session
from scenemem.learning.team import ALONE, Team, joined_team
from scenemem.learning.trainer import Trainer
from scenemem.presets import PRESETS, Preset


@dataclass(frozen=True)
class TrainArguments:
    """Train an agent on a data folder; every field of the preset can be changed by its flag."""

    folder: Annotated[Path | None, tyro.conf.arg(name="data")] = None
    """the data folder; the embedded houses when left out"""
    out: Path | None = None
    """where the run is written; runs/PRESET-SEED when left out"""
    seed: int = 0
    """of weights, batches, dropout and sampling"""
    iterations: int | None = None
    """the same as --learning.iterations"""
    features: str | None = None
    """the same as --data.features: the name of the feature store"""
    begin: Path | None = None
    """a run whose trained weights to begin with; the preset's network must be the same"""
    speaker: Path | None = None
    """the run of a speaker that describes further paths for presets that learn from augmented episodes"""
    augment: Path | None = None
    """instead of a speaker, a file of augmented episodes"""
    resume: bool = False
    """continue the run in --out"""
    device: str = "cpu"
    """where to compute: cpu, or cuda (with torchrun one card per process)"""
    threads: int = 1
    """torch threads; more than one only pays on an otherwise idle machine"""
    precision: Precision = "full"
    """of matrix products: full, or fast: TF32 or bfloat16 inside them, where the device has it"""
    replays: bool = True
    """write replays of telling episodes beside the report"""
    json: bool = False
    """print one JSON object at the end"""
    preset: Annotated[Preset, tyro.conf.arg(name="")] = field(default_factory=Preset)


def parse(words: Sequence[str]) -> None:
    """Read the preset's name, then its flags, and train."""
    names = ", ".join(PRESETS)
    if not words or words[0].startswith("-"):
        if words and words[0] in ("-h", "--help"):
            output.print(f"scenemem train PRESET [flags]\n\npresets: {names}\n", markup=False)
            output.print("scenemem train PRESET --help explains the flags of a preset")
            return
        raise UserError(f"name a preset first: scenemem train PRESET; there are: {names}")
    name = words[0]
    if name not in PRESETS:
        raise UserError(f"unknown preset '{name}'; there are: {names}")
    default = TrainArguments(preset=PRESETS[name])
    arguments = _parsed(name, words[1:], default)
    if arguments.resume:
        arguments = _parsed(name, words[1:], _as_begun(default, _run_folder(name, arguments)))
    report = train(name, arguments)
    if arguments.json and report:
        print_json(report)


def _parsed(name: str, words: Sequence[str], default: TrainArguments) -> TrainArguments:
    return tyro.cli(TrainArguments, default=default, args=list(words), prog=f"scenemem train {name}")


def _run_folder(name: str, arguments: TrainArguments) -> RunFolder:
    return RunFolder(arguments.out or Path("runs") / f"{name}-{arguments.seed}")


def _as_begun(default: TrainArguments, run: RunFolder) -> TrainArguments:
    """The settings a run was begun with, so that resuming needs no flag again."""
    begun = run.describe()
    try:
        sources = begun.get("augmentation", {})
        return replace(
            default,
            preset=msgspec.convert(begun["preset"], Preset),
            seed=int(begun["seed"]),
            speaker=Path(sources["speaker"]) if "speaker" in sources else None,
            augment=Path(sources["augment"]) if "augment" in sources else None,
        )
    except (KeyError, msgspec.ValidationError) as error:
        raise DataError(run.description, f"does not describe a run ({error})") from error


def train(name: str, arguments: TrainArguments) -> dict[str, Any]:
    """Train preset ``name`` as the flags say, and return what came out."""
    use_threads(arguments.threads)
    use_precision(arguments.precision)
    if arguments.seed < 0:
        raise UserError(f"--seed must be 0 or more, got {arguments.seed}")
    out = _run_folder(name, arguments)
    preset, folder = _with_short_flags(arguments), open_data(arguments.folder)
    with joined_team(arguments.device) as team, _live_view(name, preset.selection.metric, team) as watch:
        run_training(
            name,
            preset,
            folder,
            out,
            seed=arguments.seed,
            resume=arguments.resume,
            watch=watch,
            team=team,
            begin=arguments.begin,
            sources=Sources(arguments.speaker, arguments.augment),
        )
    if not team.leads:
        return {}
    page = report_on(
        [out], folder, out.root / "report.html", splits=[preset.selection.split], replays=arguments.replays
    )
    say_where(page)
    last = list(out.logged())[-1]
    return {
        "run": str(out.root),
        "iteration": last["iteration"],
        "validation": last.get("validation"),
        "report": str(page),
    }


def run_training(
    name: str,
    preset: Preset,
    folder: DataFolder,
    out: RunFolder,
    *,
    seed: int,
    resume: bool,
    watch: Callable[[Glimpse], None],
    team: Team = ALONE,
    begin: Path | None = None,
    sources: Sources | None = None,
) -> None:
    """Train a preset into a run folder, from the start or where it was left."""
    experiment = new_experiment(preset, folder, seed, team.device)
    episodes, world = experiment.episodes(preset.selection.split), experiment.sight.world
    own = episodes.select(team.share(torch.arange(len(episodes))))

    def validate() -> dict[str, float]:
        walked = walk_split(experiment.agent, own)
        means = {**walked.measured(world).means(), "jumps": float(walked.jumps.double().mean())}
        share = len(own) / len(episodes) * team.size  # shares may differ by one episode
        return team.means({name: value * share for name, value in means.items()})

    sources = sources or Sources()
    trainer = Trainer(
        experiment.agent,
        experiment.episodes("train"),
        preset.learning,
        seed,
        team,
        open_augmentation(sources, experiment, seed),
    )
    rhythm = Rhythm(preset.selection.save_every, preset.selection.every, preset.selection.metric)
    facts = {**experiment.facts, "seed": seed, "name": name}
    session = Session(trainer, out, validate, rhythm, facts, watch)
    if resume and out.last.exists():
        session.resume()
    else:  # only now that everything could be opened
        if begin is not None:
            begin_with(experiment, RunFolder(begin))
        if team.leads:
            out.begin({**_description(name, seed, folder, experiment), "augmentation": sources.described()})
    session.run()


def _with_short_flags(arguments: TrainArguments) -> Preset:
    preset = arguments.preset
    if arguments.iterations is not None:
        preset = replace(preset, learning=replace(preset.learning, iterations=arguments.iterations))
    if arguments.features is not None:
        preset = replace(preset, data=replace(preset.data, features=arguments.features))
    return preset


def _description(name: str, seed: int, folder: DataFolder, experiment: Experiment) -> dict[str, Any]:
    info = experiment.sight.store.info
    return {
        "name": name,
        "seed": seed,
        "preset": msgspec.to_builtins(experiment.preset),
        "data": {"folder": folder.root.name, "features": info.encoder, "sha256": info.sha256},
        "versions": versions(),
    }


@contextmanager
def _live_view(name: str, metric: str, team: Team) -> Iterator[Any]:
    """A line that shows speed, losses and the last validation while training; of the leader only."""
    with training_bar(shown=team.leads) as bar:
        task = bar.add_task(name, total=None, facts="")

        def watch(glimpse: Glimpse) -> None:
            facts = [f"{glimpse.episodes_per_second:.0f} episodes/s"]
            facts += [f"{loss} {value:.2f}" for loss, value in glimpse.step.losses.items()]
            if glimpse.validation is not None:
                facts.append(f"[green]{metric} {glimpse.validation[metric]:.3f}")
            bar.update(task, completed=glimpse.iteration, total=glimpse.iterations, facts="  ".join(facts))

        yield watch
