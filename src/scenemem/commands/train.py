"""``scenemem train PRESET``: train an agent, resumable at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from scenemem.commands.console import (
    Precision,
    open_data,
    output,
    print_json,
    progress_bar,
    say,
    training_bars,
    use_precision,
    use_threads,
)
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder
from scenemem.learning.distributed import SINGLE, ProcessGroup, process_group
from scenemem.presets import PRESETS, Preset
from scenemem.registry import Registry, load_installed_plugins
from scenemem.runs.config import changed, nested
from scenemem.runs.experiment import P, begun
from scenemem.runs.folder import RunFolder
from scenemem.runs.pages import report_on
from scenemem.runs.training import Settings, Sources, choose_preset, default_out, run_training, settings_of

M = TypeVar("M")
A = TypeVar("A", bound="RunArguments")


@dataclass(frozen=True)
class RunArguments:
    """Flags of every training run."""

    folder: Annotated[Path | None, tyro.conf.arg(name="data")] = None
    """the data folder; the embedded houses when left out"""
    out: Path | None = None
    """where the run is written; runs/PRESET-SEED when left out"""
    config: Path | None = None
    """a TOML file that names a preset (base = "PRESET") and changes it; flags change it further"""
    seed: int = 0
    """of weights, batches, dropout and sampling"""
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

    @property
    def short_flags(self) -> dict[str, Any]:
        """The settings of the preset that have a flag of their own."""
        flags = {"learning.iterations": self.iterations, "data.features": self.features}
        return nested({name: value for name, value in flags.items() if value is not None})


@dataclass(frozen=True)
class TrainArguments(RunArguments, Generic[M]):
    """Train an agent on a data folder; every field of the preset can be changed by its flag."""

    begin: Path | None = None
    """a run whose trained weights to begin with; the preset's network must be the same"""
    speaker: Path | None = None
    """the run of a speaker that describes further paths for presets that learn from augmented episodes"""
    augment: Path | None = None
    """instead of a speaker, a file of augmented episodes"""
    device: str = "cpu"
    """where to compute: cpu, or cuda (with torchrun one card per process)"""
    precision: Precision = "full"
    """of matrix products: full, or fast: TF32 or bfloat16 inside them, where the device has it"""
    replays: bool = True
    """write replays of telling episodes beside the report"""
    preset: Annotated[Preset[M], tyro.conf.arg(name="")] = field(default_factory=lambda: PRESETS["ssm"])


def parse(words: Sequence[str]) -> None:
    """Read the preset's name, then its flags, and train."""
    if words and words[0] in ("-h", "--help"):
        load_installed_plugins()
        output.print(f"scenemem train PRESET [flags]\n\npresets: {', '.join(PRESETS)}\n", markup=False)
        output.print("scenemem train PRESET --help explains the flags of a preset")
        return
    settings, arguments = read_arguments(TrainArguments, PRESETS, words, "scenemem train")
    report = train(settings, arguments)
    if arguments.json and report:
        print_json(report)


def read_arguments(
    kind: type[A], presets: Registry[Any], words: Sequence[str], program: str, default: str | None = None
) -> tuple[Settings[Any], A]:
    """Read a preset's name (or the configuration that has it), then its flags.

    A run that is resumed has the settings it was begun with, so that no flag is needed again.

    Raises:
        UserError: no preset is named, or there is none of that name.
    """
    named = bool(words) and not words[0].startswith("-")
    flags, config = list(words[named:]), _config_file(words)
    name = words[0] if named else (default if config is None else None)
    if name is None and config is None:
        raise UserError(f"name a preset first: {program} PRESET; there are: {', '.join(presets)}")
    settings: Settings[Any] = choose_preset(presets, name, config)
    arguments = _parsed(kind, settings, flags, program)
    if arguments.resume:
        run = _run_folder(settings.name, arguments)
        settings = replace(settings_of(begun(run, type(settings.preset))), name=settings.name)
        arguments = _parsed(kind, settings, flags, program)
    return settings, arguments


def train(settings: Settings[Preset[Any]], arguments: TrainArguments[Any]) -> dict[str, Any]:
    """Train as the flags say, and return what came out."""
    use_precision(arguments.precision)
    with process_group(arguments.device) as group:
        sources = Sources(arguments.begin, arguments.speaker, arguments.augment)
        out, folder = train_run(settings, arguments, arguments.preset, group=group, sources=sources)
    if not group.is_main:
        return {}
    page = report_on(
        [out],
        folder,
        out.root / "report.html",
        splits=[arguments.preset.selection.split],
        replays=arguments.replays,
        remark=say,
        progress=progress_bar,
    )
    say(f"The report: {page}")
    return {**outcome(out), "report": str(page)}


def train_run(
    settings: Settings[Any],
    arguments: RunArguments,
    preset: P,
    *,
    unit: str = "episodes",
    group: ProcessGroup = SINGLE,
    sources: Sources | None = None,
) -> tuple[RunFolder, DataFolder]:
    """Train an agent or a speaker, a progress bar above; returns the run and its data."""
    use_threads(arguments.threads)
    name, out = settings.name, _run_folder(settings.name, arguments)
    preset, folder = changed(preset, arguments.short_flags), open_data(arguments.folder)
    settings.check_folder(folder, named=arguments.folder is not None)
    with training_bars([name], preset.selection.metric, unit=unit, shown=group.is_main) as watch:
        run_training(
            name,
            preset,
            folder,
            out,
            seed=arguments.seed,
            resume=arguments.resume,
            watch=lambda status: watch(name, status),
            group=group,
            sources=sources,
        )
    return out, folder


def outcome(run: RunFolder) -> dict[str, Any]:
    """What ``--json`` prints about a run that is done."""
    last = list(run.logged())[-1]
    return {"run": str(run.root), "iteration": last["iteration"], "validation": last.get("validation")}


def _parsed(kind: type[A], settings: Settings[Any], flags: list[str], program: str) -> A:
    fields = {"preset": settings.preset, "seed": settings.seed}
    if issubclass(kind, TrainArguments):
        fields |= {name: getattr(settings.sources, name) for name in ("begin", "speaker", "augment")}
    # an agent's flags are those of its own settings
    generic: Any = kind
    typed = generic[type(settings.preset.model)] if issubclass(kind, TrainArguments) else kind
    default = replace(kind(), **fields)
    read: A = tyro.cli(typed, default=default, args=flags, prog=f"{program} {settings.name}")
    return read


def _run_folder(name: str, arguments: RunArguments) -> RunFolder:
    return default_out(name, arguments.seed) if arguments.out is None else RunFolder(arguments.out)


def _config_file(words: Sequence[str]) -> Path | None:
    """The value of ``--config``, which is needed before the other flags can be read."""
    for number, word in enumerate(words):
        if word == "--config" and number + 1 < len(words):
            return Path(words[number + 1])
        if word.startswith("--config="):
            return Path(word.removeprefix("--config="))
    return None
