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
    Json,
    Threads,
    open_data,
    output,
    print_json,
    progress_bar,
    say,
    say_next,
    training_bar,
    use_threads,
)
from scenemem.errors import UserError
from scenemem.features.store import converted_once
from scenemem.formats.folder import DataFolder
from scenemem.learning.distributed import SINGLE, Precision, ProcessGroup, process_group, use_precision
from scenemem.presets import PRESETS, PUBLISHED, Overlays, Preset
from scenemem.registry import Registry, listed, load_installed_plugins, load_plugin
from scenemem.runs.config import Sources, changed, nested
from scenemem.runs.experiment import RunMetadata, begun, can_be_walked
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
    """where the run is written; runs/PRESET-TASK-FEATURES-SEED when left out"""
    config: Path | None = None
    """a TOML file that names a preset (base = "PRESET") and changes it; flags change it further"""
    seed: int = 0
    """of weights, batches, dropout and sampling"""
    iterations: int | None = None
    """the same as --learning.iterations"""
    features: str | None = None
    """the name of the feature store, or a published file (.tsv, .hdf5), converted at the first use"""
    resume: bool = False
    """continue the run in --out"""
    threads: Threads = 1
    dry_run: bool = False
    """print what the training will cost on this device, from two measured steps, and end"""
    json: Json = False


@dataclass(frozen=True)
class TrainArguments(Sources, Overlays, RunArguments[P]):
    """Train an agent on a data folder; every field of the preset can be changed by its flag."""

    device: str = "cpu"
    """where to compute: cpu, or cuda (with torchrun one card per process)"""
    precision: Precision = "full"
    """of matrix products: full, or fast: TF32 or bfloat16 inside them, where that is faster"""
    replays: bool = True
    """write replays of telling episodes beside the report"""


_PRESET_HELP = """scenemem train PRESET [flags]

Presets: ssm (the paper's agent), ssm-plus (with our additions), basic (the baseline).

Usual commands, on the embedded houses, R2R, R4R, with back-translation, as published:
  scenemem train ssm
  scenemem train ssm --data DIR --features captions
  scenemem train ssm --data DIR --features captions --task r4r
  scenemem train ssm --data DIR --features captions --begin RUN --speaker RUN
  scenemem train ssm --data DIR --features F.tsv --recipe published --dry-run
  scenemem train --out RUN --resume

All presets: {presets}.

Every preset, also one of a plugin, takes flags that choose the settings that belong to them:
  --features STORE     the recipe for the width of the store; the scoreboard's for
                       captions, objects and oracle
  --task r4r           walks twice as long; labels, rewards and selection follow the path
  --recipe published   the numbers of the publication
  --speaker RUN        learns from described paths as well; or --augment FILE

No published recipe have: {unpublished}.

scenemem train PRESET --help explains every setting; a flag for it goes last: --learning.iterations 300."""


def parse(words: Sequence[str]) -> None:
    """Read the preset's name, then its flags, train, and write a report."""
    if words and words[0] in ("-h", "--help"):
        load_installed_plugins()
        unpublished = ", ".join(name for name in PRESETS if name not in PUBLISHED)
        shown = _PRESET_HELP.format(presets=", ".join(PRESETS), unpublished=unpublished)
        output.print(shown, markup=False, highlight=False)
        return
    settings, arguments = read_arguments(TrainArguments, PRESETS, words, "scenemem train")
    run = settings.run_folder(arguments.out)
    tried = arguments.resume and begun(run, Preset).computing.get("precision") == "fast"
    if remark := use_precision(arguments.precision, arguments.device, tried=tried):
        say(remark)
    with process_group(arguments.device) as group:
        out, folder = train_run(settings, arguments, group)
    if not group.is_main or arguments.dry_run:
        return
    use_precision("full", arguments.device)  # results are walked as 'eval' walks them
    selection = settings.preset.selection
    page = report_on(
        [out],
        folder,
        out.root / "report.html",
        splits=[selection.split],
        replays=arguments.replays,
        progress=progress_bar,
    )
    say(f"The report: {page}")
    last = outcome(out)
    reached = (last["validation"] or {}).get(selection.metric)
    best = "" if reached is None else f": {selection.metric} {reached:.3f} on {selection.split}"
    say(f"The run: {out.root}, {last['iteration']:,} steps{best}")
    say_what_next(settings, out, arguments.folder, ("eval",), ("view",), ("compare", "OTHER_RUN"))
    if arguments.json:
        print_json({**last, "report": str(page)})


def say_what_next(
    settings: Settings[Any], run: RunFolder, data: Path | None, *commands: tuple[object, ...]
) -> None:
    """Print the commands that go on from a run that is trained."""
    named: tuple[object, ...] = () if data is None else ("--data", data)
    preset = settings.preset
    if data is not None and not can_be_walked(preset.data, open_data(data, quiet=True), "val_unseen"):
        named = (*named, "--split", preset.selection.split)  # the features are of other buildings
    for command, *more in commands:
        say_next(str(command), run.root, *more, *named)


def read_arguments(
    kind: type[A], presets: Registry[Any], words: Sequence[str], program: str, default: str | None = None
) -> tuple[Settings[Any], A]:
    """Read a preset's name (or the configuration that has it), then its flags  ->  what they set, the flags

    Flags that the defaults of the others depend on (configuration, overlays, sources) are read first. A run
    that is resumed has the settings it was begun with, so that no flag is needed again.
    """
    named = bool(words) and not words[0].startswith("-")
    flags, first = list(words[named:]), _read_first(words)
    name = words[0] if named else (default if first.config is None else None)
    data = partial(open_data, first.data, quiet=True)
    if first.features is not None and Path(first.features).is_file() and not first.help:
        first.features = converted_once(first.features, data().derived / "features", progress_bar)
    out = RunFolder(first.out) if first.resume and first.out else None
    if out is None:
        if name is None and first.config is None:
            raise UserError(
                f"name a preset first: {program} PRESET; there are: {listed(presets)}; "
                f"'{program} --help' lists all"
            )
        overlays = Overlays(first.features, first.task, first.recipe)
        sources = Sources(first.begin, first.speaker, first.augment)
        look_up = None if first.help else data
        settings: Settings[Any] = choose_preset(presets, name, first.config, overlays, sources, data=look_up)
        arguments = _parsed(kind, settings, flags, program)
    elif named and ":" in words[0]:
        load_plugin(words[0].rpartition(":")[0])  # which the run needs
    short: dict[str, Any] = {}
    if first.resume:
        out = out or replace(settings, seed=arguments.seed).run_folder(None)
        run = begun(out, type(next(iter(presets.values()))))
        settings = _resumed(out, run, first.begin)
        arguments = _parsed(kind, settings, flags, program, run.computing)
        short = {"data.features": first.features, "data.task": first.task}
    short |= {"learning.iterations": arguments.iterations}
    changes = nested({name: value for name, value in short.items() if value is not None})
    preset = changed(arguments.preset, changes)
    sources = arguments if isinstance(arguments, Sources) else Sources()
    return replace(settings, preset=preset, seed=arguments.seed, sources=sources), arguments


def _resumed(out: RunFolder, run: RunMetadata, begin: Path | None) -> Settings[Any]:
    """The settings a run was begun with."""
    own = run.begin.get("run")
    if begin is not None and str(begin) != own:
        raise UserError(
            f"{out.root} began with {own or 'fresh weights'}, not with {begin}; "
            "leave out --begin to continue it, or begin a new run in another --out"
        )
    places = {**run.augmentation, **({"begin": own} if own else {})}
    sources = Sources(**{name: Path(place) for name, place in places.items()})
    return Settings(run.name, run.preset, run.seed, sources)


def train_run(
    settings: Settings[Any], arguments: RunArguments[Any], group: ProcessGroup = SINGLE
) -> tuple[RunFolder, DataFolder]:
    """Train an agent or a speaker, a progress bar above; returns the run and its data."""
    use_threads(arguments.threads)
    folder, out = open_data(arguments.folder), settings.run_folder(arguments.out)
    settings.check_folder(folder, named=arguments.folder is not None)
    name, metric = settings.name, settings.preset.selection.metric
    unit = "episodes" if isinstance(settings.preset, Preset) else "pairs"
    with training_bar(name, metric, unit=unit, shown=group.is_main) as watch:
        run_training(
            settings,
            folder,
            out,
            resume=arguments.resume,
            watch=watch,
            announce=say if group.is_main else lambda _: None,
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
    """The flags of a run; what they leave out is as its settings and, when resumed, its record have it."""
    typed: Any = kind
    known = {"preset": settings.preset, "seed": settings.seed}
    if isinstance(computing.get("threads"), int):
        known["threads"] = computing["threads"]
    if issubclass(kind, TrainArguments):  # an agent's flags are those of its own settings
        model: Any = type(settings.preset.model)
        typed, known = typed[Preset[model]], known | vars(settings.sources) | vars(settings.overlays)
        if computing.get("precision") in ("full", "fast"):
            known["precision"] = computing["precision"]
        if isinstance(computing.get("device"), str):
            known["device"] = computing["device"]
    default = kind(**known)
    read: A = tyro.cli(typed, default=default, args=flags, prog=f"{program} {settings.row or settings.name}")
    return read


def _read_first(words: Sequence[str]) -> argparse.Namespace:
    """The flags that the defaults of all others depend on."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("features", "task", "recipe"):
        parser.add_argument(f"--{flag}", nargs="?")
    for flag in ("config", "data", "out", "begin", "speaker", "augment"):
        parser.add_argument(f"--{flag}", type=Path, nargs="?")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    return parser.parse_known_args(words)[0]
