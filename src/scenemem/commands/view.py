"""``scenemem view RUN``: replays of telling episodes as self-contained pages, one agent or two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from scenemem.commands.console import console, open_data, print_json, progress_bar, use_threads
from scenemem.commands.eval import OpenedRun, open_run
from scenemem.commands.opened_runs import results_of, run_names
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder
from scenemem.learning.run_folder import RunFolder
from scenemem.viewer.gallery import Replay, plain, telling, write_index, write_replays
from scenemem.viewer.scenery import Sceneries
from scenemem.viewer.traces import TracedAgent


def view(
    run: Annotated[Path, tyro.conf.Positional],
    rival: Annotated[Path | None, tyro.conf.Positional] = None,
    *,
    episode: str | None = None,
    split: str = "val_unseen",
    data: Path | None = None,
    checkpoint: Literal["best", "last"] = "last",
    out: Path | None = None,
    count: int = 3,
    threads: int = 1,
    json: bool = False,
) -> None:
    """Write replays: what the agent remembered, heard and weighed up, round by round.

    Args:
        run: a run folder.
        rival: another run folder, to be shown beside it on the same episodes.
        episode: the id of one instruction; when left out, telling ones are chosen: mended by turning back,
            stopped in the wrong place, lost, faultless.
        split: which episodes.
        data: the data folder; the embedded houses when left out.
        checkpoint: the last weights of the runs, or those that did best on their selection split.
        out: with --episode the page to write, else the folder for the pages; RUN/replays when left out.
        count: how many episodes to choose.
        threads: torch threads; more than one only pays on an otherwise idle machine.
        json: print one JSON object instead of the names of the pages.
    """
    if count < 1:
        raise UserError(f"--count must be 1 or more, got {count}")
    if out is not None and (out.suffix == ".html") != (episode is not None):
        raise UserError(
            f"{out}: with --episode one page is written and --out ends in .html, otherwise --out is a folder"
        )
    use_threads(threads)
    folder = open_data(data)
    runs = _opened([run] if rival is None else [run, rival], folder, checkpoint)
    walkers = [
        TracedAgent(name, it.experiment.agent, it.experiment.episodes(split)) for name, it in runs.items()
    ]
    ids = [episode] if episode is not None else _telling(walkers, list(runs.values()), split, count)
    place = out or run / "replays"

    def file_of(name: str) -> Path:
        return place if place.suffix == ".html" else place / f"{split}-{plain(name)}.html"

    with progress_bar("drawing replays") as progress:
        replays = write_replays(walkers, ids, Sceneries(folder), file_of, progress)
    pages = [replay.file for replay in replays]
    if episode is None:
        pages.insert(0, place / "index.html")
        write_index(pages[0], f"{' and '.join(walker.name for walker in walkers)} on {split}", replays)
    if json:
        print_json({"pages": [str(page) for page in pages], "replays": [_facts(item) for item in replays]})
        return
    for page in pages:
        console.print(f"written to {page}", markup=False, highlight=False, soft_wrap=True)


def _opened(
    runs: list[Path], folder: DataFolder, checkpoint: Literal["best", "last"]
) -> dict[str, OpenedRun]:
    """The runs by their names, with their agents."""
    return {name: open_run(RunFolder(path), folder, checkpoint) for name, path in run_names(runs).items()}


def _telling(walkers: list[TracedAgent], runs: list[OpenedRun], split: str, count: int) -> list[str]:
    """The ids of telling episodes; the first ones of the split when none stands out."""
    first = walkers[0]
    if not first.episodes.has_goals:
        raise UserError(
            f"'{first.episodes.name}' keeps its goals secret, so nothing can be chosen; name an --episode"
        )
    if any(walker.episodes.instruction_ids != first.episodes.instruction_ids for walker in walkers):
        raise UserError("the two runs walk different episodes; name one that both have with --episode")
    own, *others = [results_of(run, split) for run in runs]
    chosen = telling(first, own, count, *others)
    return [item.instruction_id for item in chosen] or list(first.episodes.instruction_ids[:count])


def _facts(replay: Replay) -> dict[str, Any]:
    return {
        "file": str(replay.file),
        "bytes": replay.size,
        "instruction_id": replay.traces[0].task.instruction_id,
        "title": replay.title,
        "scores": {trace.agent: trace.ending.scores for trace in replay.traces if trace.ending},
    }
