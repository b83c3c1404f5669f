"""``scenemem report RUN ...``: one page about some runs - scores, curves, failures, the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tyro

from scenemem.commands.console import console, open_data, use_threads
from scenemem.commands.eval import OpenedRun, Weights, open_run
from scenemem.commands.opened_runs import kept_results, run_names
from scenemem.commands.report_replays import no_replays, write_telling_replays
from scenemem.errors import DataError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.learning.run_folder import RunFolder
from scenemem.presets import Preset
from scenemem.viewer.pages import Section
from scenemem.viewer.report import Scores, write_run_report
from scenemem.viewer.runs import ReportRun, contenders, grouped, splits_of

SPLITS = ("val_seen", "val_unseen")
_HOUSES = "scenemem.houses.features"  # what runs on the embedded houses see


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    data: Path | None = None,
    out: Path | None = None,
    *,
    splits: tuple[str, ...] = SPLITS,
    checkpoint: Weights = "last",
    replays: bool = True,
    threads: int = 1,
) -> None:
    """Write a page about runs; runs of the same preset and settings are one line with mean and deviation.

    Splits that a run has not walked yet are walked first, and kept in its folder as 'scenemem eval' does.
    Replays of telling episodes go into the folder 'replays' beside the page; of several agents the best and
    the worst are shown side by side.

    Args:
        runs: run folders.
        data: the data folder of runs that were not trained on the embedded houses.
        out: the page; report.html in the run folder, or here when there are several runs.
        splits: what to evaluate.
        checkpoint: the last weights of the runs, or those that did best on their selection split.
        replays: write and link replays of telling episodes.
        threads: torch threads; more than one only pays on an otherwise idle machine.
    """
    if not runs:
        raise UserError("name at least one run folder: scenemem report RUN ...")
    use_threads(threads)
    folders = [RunFolder(path) for path in runs]
    if out is None:
        out = folders[0].root / "report.html" if len(folders) == 1 else Path("report.html")
    folder = None if data is None else DataFolder(data)
    say_where(report_on(folders, folder, out, splits=splits, checkpoint=checkpoint, replays=replays))


def report_on(
    runs: Sequence[RunFolder],
    folder: DataFolder | None,
    out: Path,
    *,
    splits: Sequence[str],
    checkpoint: Weights = "last",
    references: Mapping[str, Scores] | None = None,
    more: Iterable[Section] = (),
    replays: bool = True,
) -> Path:
    """Evaluate what is missing, write the page and return where it is.

    Args:
        runs: trained on the same task and features.
        folder: their data; None opens the embedded houses for runs trained on them.
        out: the page.
        splits: what to evaluate; other splits walked with the same weights are shown, too.
        checkpoint: which weights.
        references: scores of agents that are no runs, by split.
        more: further sections.
        replays: write replays of telling episodes beside the page, and link them.

    Raises:
        UserError: the runs were trained on different data.
    """
    begun = [_begun(run) for run in runs]
    _check_same_data(begun)
    first = begun[0]
    if folder is None and first.features == _HOUSES:
        folder = open_data(None)
    remarks: list[str] = []
    opened = _opener(folder, checkpoint)
    shown = [_with_results(one, opened, splits, checkpoint, remarks) for one in begun]
    world = f"{first.task.upper()}, features: {first.features}"
    write_run_report(
        out,
        f"Report on {shown[0].folder}" if len(shown) == 1 else f"Report on {len(shown)} runs",
        shown,
        world="The embedded houses" if first.features == _HOUSES else world,
        task=first.task,
        references=references,
        more=more,
        replays=_replays(out, begun, shown, opened) if replays else None,
        remarks=remarks,
    )
    return out


Opener = Callable[[RunFolder], OpenedRun]
"""Loads the agent of a run."""


def _opener(folder: DataFolder | None, checkpoint: Weights) -> Opener | None:
    """Opens runs when they are needed and keeps the last two; None without data to open them with."""
    if folder is None:
        return None
    return lru_cache(maxsize=2)(lambda run: open_run(run, folder, checkpoint))


def _replays(
    page: Path, begun: Sequence[_Begun], shown: Sequence[ReportRun], opened: Opener | None
) -> Section | None:
    groups = grouped(shown)
    splits = splits_of(groups)
    if not splits:
        return None
    if opened is None:
        return no_replays("the data of the runs was not named")
    chosen = contenders(groups, splits[0])
    folders = [one.run.root for run in chosen for one, its in zip(begun, shown, strict=True) if its is run]
    try:
        agents = {name: opened(RunFolder(folder)) for name, folder in run_names(folders).items()}
        return write_telling_replays(page, agents, [run.results[splits[0]] for run in chosen], splits[0])
    except UserError as error:  # the page can do without them
        return no_replays(str(error))


def say_where(page: Path) -> None:
    """Print where a report was written."""
    console.print(f"The report: {page}", markup=False, highlight=False, soft_wrap=True)


class _Begun(msgspec.Struct, frozen=True):
    """A run and what it was begun with."""

    run: RunFolder
    name: str
    seed: int
    preset: Preset
    data: dict[str, Any]
    versions: dict[str, str]

    @property
    def task(self) -> str:
        return self.preset.data.task

    @property
    def features(self) -> str:
        return str(self.data["features"])

    def iteration(self, checkpoint: Weights) -> int:
        """The iteration of a checkpoint, as the log tells it."""
        lines = list(self.run.logged())
        if checkpoint == "last":
            return int(lines[-1]["iteration"]) if lines else 0
        metric = self.preset.selection.metric
        validated = [line for line in lines if "validation" in line]
        best = max(validated, key=lambda line: float(line["validation"][metric]), default={"iteration": 0})
        return int(best["iteration"])


def _begun(run: RunFolder) -> _Begun:
    description = run.describe()
    try:
        return _Begun(
            run,
            str(description["name"]),
            int(description["seed"]),
            msgspec.convert(description["preset"], Preset),
            {"features": description["data"]["features"], "sha256": description["data"]["sha256"]},
            dict(description["versions"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(run.description, f"does not describe a run ({error})") from error


def _check_same_data(begun: Sequence[_Begun]) -> None:
    for other in begun[1:]:
        for what, mine, theirs in (
            ("tasks", begun[0].task, other.task),
            ("features", begun[0].data["sha256"], other.data["sha256"]),
        ):
            if mine != theirs:
                raise UserError(
                    f"{begun[0].run.root} and {other.run.root} were trained on different {what}, "
                    "so their numbers cannot be compared; write a report for each"
                )


def _with_results(
    begun: _Begun, opened: Opener | None, splits: Sequence[str], checkpoint: Weights, remarks: list[str]
) -> ReportRun:
    """A run with the outcome of every episode; what cannot be had is remarked."""
    iteration = begun.iteration(checkpoint)
    results = kept_results(begun.run, checkpoint, iteration)
    missing = [split for split in splits if split not in results]
    if missing and opened is None:
        remark = (
            f"{begun.run.root.name} has not walked {', '.join(missing)}; name its data folder with --data"
        )
        remarks.append(remark)
        console.print(remark, markup=False, highlight=False, soft_wrap=True)
    elif missing and opened is not None:
        run = opened(begun.run)
        for split in missing:
            results[split] = run.evaluate(split)[1]
    settings = asdict(begun.preset)
    settings["data"].pop("features")  # a name; that the features are the same has been checked
    return ReportRun(
        name=begun.name,
        seed=begun.seed,
        folder=begun.run.root.resolve().name,
        settings=settings,
        features=begun.features,
        versions=begun.versions,
        log=list(begun.run.logged()),
        results={split: episodes for split, episodes in results.items() if episodes},
    )
