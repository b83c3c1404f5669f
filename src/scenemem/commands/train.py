"""``scenemem train PRESET``: train an agent, resumable at any time."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from scenemem.commands.console import (
    Data,
    Threads,
    hush,
    open_data,
    output,
    print_json,
    progress_bar,
    say,
    say_next,
    training_bars,
    use_threads,
)
from scenemem.errors import UserError
from scenemem.features.store import converted_once
from scenemem.formats.folder import DataFolder
from scenemem.learning.distributed import SINGLE, ProcessGroup, process_group
from scenemem.learning.precision import Precision, use_precision
from scenemem.presets import PRESETS, Preset
from scenemem.registry import Registry, listed, load_installed_plugins
from scenemem.runs.config import Sources, changed, nested
from scenemem.runs.experiment import begun
from scenemem.runs.folder import RunFolder
from scenemem.runs.pages import report_on
from scenemem.runs.training import Settings, choose_preset, run_training

P = TypeVar("P")
A = TypeVar("A", bound="RunArguments[Any]")


@dataclass(frozen=True)
class RunArguments(Generic[P]):
    """Flags of every training run."""

    preset: Annotated[P, tyro.conf.arg(name="")]
    folder: Annotated[Data, tyro.conf.arg(name="data")] = None
    out: Path | None = None
    """where the run is written; runs/PRESET-SEED when left out"""
    config: Path | None = None
    """a TOML file that names a preset (base = "PRESET") and changes it; flags change it further"""
    seed: int = 0
    """of weights, batches, dropout and sampling"""
    iterations: int | None = None
    """the same as --learning.iterations"""
    features: str | None = None
    """the name of the feature store, or a published file (.tsv, .hdf5), which is converted at the first use"""
    resume: bool = False
    """continue the run in --out"""
    threads: Threads = 1
    dry_run: bool = False
    """say what the training will cost on this device, from two measured steps, and end"""
    json: bool = False
    """print one JSON object at the end"""


@dataclass(frozen=True)
class TrainArguments(Sources, RunArguments[P]):
    """Train an agent on a data folder; every field of the preset can be changed by its flag."""

    device: str = "cpu"
    """where to compute: cpu, or cuda (with torchrun one card per process)"""
    precision: Precision = "full"
    """of matrix products: full, or fast: TF32 or bfloat16 inside them, where that is faster"""
    replays: bool = True
    """write replays of telling episodes beside the report"""


_PRESET_HELP = """scenemem train PRESET [flags]

Usual presets: ssm (the memory agent with all additions), basic (the baseline), ssm (as the paper says).

All: {presets}.

They train on the embedded houses, or on --data DIR with --features STORE. NAME-r2r-TRACK and, for some,
NAME-r4r-TRACK train on R2R and R4R as the scoreboard does; TRACK is captions, objects or oracle.

scenemem train PRESET --help explains the flags of a preset."""


def _plain_presets() -> list[str]:
    """The presets without those for a task and track, which are made of them."""
    return [name for name in PRESETS if "-r2r-" not in name and "-r4r-" not in name]


def parse(words: Sequence[str]) -> None:
    """Read the preset's name, then its flags, train, and write a report."""
    if words and words[0] in ("-h", "--help"):
        load_installed_plugins()
        output.print(_PRESET_HELP.format(presets=", ".join(_plain_presets())), markup=False, highlight=False)
        return
    settings, arguments = read_arguments(TrainArguments, PRESETS, words, "scenemem train")
    if remark := use_precision(arguments.precision, arguments.device, tried=_begun_fast(settings, arguments)):
        say(remark)
    with process_group(arguments.device) as group:
        out, folder = train_run(settings, arguments, group)
    if not group.is_main or arguments.dry_run:
        return
    use_precision("full", arguments.device)  # results are walked as 'eval' walks them
    page = report_on(
        [out],
        folder,
        out.root / "report.html",
        splits=[settings.preset.selection.split],
        replays=arguments.replays,
        remark=say,
        progress=progress_bar,
    )
    say(f"The report: {page}")
    _say_what_next(settings, out, arguments.folder)
    if arguments.json:
        print_json({**outcome(out), "report": str(page)})


def _begun_fast(settings: Settings[Any], arguments: RunArguments[Any]) -> bool:
    """Whether a run that is resumed was begun with fast products."""
    if not arguments.resume:
        return False
    run = begun(settings.run_folder(arguments.out), type(settings.preset))
    return run.computing.get("precision") == "fast"


def _say_what_next(settings: Settings[Any], run: RunFolder, data: Path | None) -> None:
    """What one does with a run that is trained."""
    selection, last = settings.preset.selection, list(run.logged())[-1]
    reached = last.get("validation", {}).get(selection.metric)
    told = "" if reached is None else f": {selection.metric} {reached:.3f} on {selection.split}"
    say(f"The run: {run.root}, {last['iteration']:,} steps{told}")
    named = () if data is None else ("--data", data)
    say_next("eval", run.root, *named)
    say_next("view", run.root, *named)
    say_next("compare", run.root, "OTHER_RUN", *named)


def read_arguments(
    kind: type[A], presets: Registry[Any], words: Sequence[str], program: str, default: str | None = None
) -> tuple[Settings[Any], A]:
    """Read a preset's name (or the configuration that has it), then its flags; returns both as they say.

    A run that is resumed has the settings it was begun with, so that no flag is needed again.
    """
    named = bool(words) and not words[0].startswith("-")
    flags, config = list(words[named:]), _config_file(words)
    name = words[0] if named else (default if config is None else None)
    if name is None and config is None:
        raise UserError(
            f"name a preset first: {program} PRESET; there are: {listed(presets)}; "
            f"'{program} --help' lists all"
        )
    settings: Settings[Any] = choose_preset(presets, name, config)
    arguments = _parsed(kind, settings, flags, program)
    if arguments.resume:
        out = replace(settings, seed=arguments.seed).run_folder(arguments.out)
        run = begun(out, type(settings.preset))
        places = {**run.augmentation, **({"begin": run.begin["run"]} if "run" in run.begin else {})}
        sources = Sources(**{name: Path(place) for name, place in places.items()})
        settings = Settings(settings.name, run.preset, run.seed, sources)
        arguments = _parsed(kind, settings, flags, program, run.computing)
    short = {"learning.iterations": arguments.iterations, "data.features": arguments.features}
    changes = nested({name: value for name, value in short.items() if value is not None})
    preset = changed(arguments.preset, changes)
    sources = arguments if isinstance(arguments, Sources) else Sources()
    return replace(settings, preset=preset, seed=arguments.seed, sources=sources), arguments


def train_run(
    settings: Settings[Any], arguments: RunArguments[Any], group: ProcessGroup = SINGLE
) -> tuple[RunFolder, DataFolder]:
    """Train an agent or a speaker, a progress bar above; returns the run and its data."""
    use_threads(arguments.threads)
    folder, out = open_data(arguments.folder), settings.run_folder(arguments.out)
    settings.check_folder(folder, named=arguments.folder is not None)
    if arguments.features is not None and not arguments.resume:
        store = converted_once(arguments.features, folder.derived / "features", progress_bar)
        settings = replace(settings, preset=changed(settings.preset, {"data": {"features": store}}))
    name, metric = settings.name, settings.preset.selection.metric
    unit = "episodes" if isinstance(settings.preset, Preset) else "pairs"
    with training_bars([name], metric, unit=unit, shown=group.is_main) as watch:
        tell = partial(watch, name)
        run_training(
            settings,
            folder,
            out,
            resume=arguments.resume,
            watch=tell,
            announce=say if group.is_main else hush,
            dry_run=arguments.dry_run,
            group=group,
        )
    return out, folder


def outcome(run: RunFolder) -> dict[str, Any]:
    """What ``--json`` prints about a run that is done."""
    last = list(run.logged())[-1]
    return {"run": str(run.root), "iteration": last["iteration"], "validation": last.get("validation")}


def _parsed(
    kind: type[A], settings: Settings[Any], flags: list[str], program: str, computing: Mapping[str, Any] = {}
) -> A:
    """The flags of a run; what they leave out is as its settings and, when resumed, its record say."""
    typed: Any = kind
    known = {"preset": settings.preset, "seed": settings.seed}
    if isinstance(computing.get("threads"), int):
        known["threads"] = computing["threads"]
    if issubclass(kind, TrainArguments):  # an agent's flags are those of its own settings
        model: Any = type(settings.preset.model)
        typed, known = typed[Preset[model]], known | vars(settings.sources)
        if computing.get("precision") in ("full", "fast"):
            known["precision"] = computing["precision"]
        if isinstance(computing.get("device"), str):
            known["device"] = computing["device"]
    default = kind(**known)
    read: A = tyro.cli(typed, default=default, args=flags, prog=f"{program} {settings.name}")
    return read


def _config_file(words: Sequence[str]) -> Path | None:
    """The value of ``--config``, which is needed before the other flags can be read."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path, nargs="?")
    found: Path | None = parser.parse_known_args(words)[0].config
    return found
