"""``scenemem view RUN``: replays of telling episodes as self-contained pages, one agent or two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro

from scenemem.commands.console import open_data, print_json, progress_bar, say, use_threads
from scenemem.errors import UserError
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.opened import open_run, run_names
from scenemem.runs.pages import replay_episodes
from scenemem.viewer.gallery import Replay, plain, write_index


def view(
    run: Annotated[Path, tyro.conf.Positional],
    rival: Annotated[Path | None, tyro.conf.Positional] = None,
    *,
    episode: str | None = None,
    split: str = "val_unseen",
    data: Path | None = None,
    checkpoint: Which = "last",
    out: Path | None = None,
    count: int = 3,
    threads: int = 1,
    json: bool = False,
) -> None:
    """Write replays: what the agent remembered, attended to and weighed up, decision by decision.

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
    named = run_names([run] if rival is None else [run, rival])
    runs = {name: open_run(RunFolder(path), folder, checkpoint, progress_bar) for name, path in named.items()}
    target = out or run / "replays"

    def file_of(name: str) -> Path:
        return target if target.suffix == ".html" else target / f"{split}-{plain(name)}.html"

    replays = replay_episodes(runs, split, episode, count, file_of, progress_bar)
    pages = [replay.file for replay in replays]
    if episode is None:
        pages.insert(0, target / "index.html")
        write_index(pages[0], f"{' and '.join(runs)} on {split}", replays)
    if json:
        print_json({"pages": [str(page) for page in pages], "replays": [_facts(item) for item in replays]})
        return
    for page in pages:
        say(f"written to {page}")


def _facts(replay: Replay) -> dict[str, Any]:
    return {
        "file": str(replay.file),
        "bytes": replay.size,
        "instruction_id": replay.traces[0].task.instruction_id,
        "title": replay.title,
        "scores": {trace.agent: trace.ending.scores for trace in replay.traces if trace.ending},
    }
