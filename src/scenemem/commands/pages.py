"""``scenemem view``, ``report`` and ``serve``: pages that show what agents do, written or live."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scenemem.commands import console
from scenemem.commands.console import WALKING, FileTask, Json, Rival, Run, Runs, Split, WalkFlags, Walking
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder, cache_folder

if TYPE_CHECKING:  # --help must not take the seconds that torch takes
    from scenemem.viewer.replay import Replay

_MISSING = "the live page needs FastAPI and uvicorn; install them with: pip install 'scenemem[serve]'"
_PAGES = (".html", ".svg", ".png", ".pdf")
_RESULTS = (".json", ".jsonl", ".gz")  # of result files


def view(
    run: Run,
    rival: Rival = None,
    walking: Walking = WALKING,
    *,
    episode: str | None = None,
    split: Split = "val_unseen",
    task: FileTask = "r2r",
    out: Path | None = None,
    count: int = 3,
    speaker: Path | None = None,
    speaker_weight: float | None = None,
    json: Json = False,
) -> None:
    """Write replays: what the agent remembered, attended to and weighed up, decision by decision.

    RUN and RIVAL may also be result files of any system (FILE.json, .gz, .jsonl): their routes are drawn on
    the map and played step by step.

    Args:
        episode: the id of one instruction; when left out, telling ones are chosen: mended by turning back,
            stopped in the wrong place, lost, faultless.
        out: with --episode the page to write (.html), or a figure of the map (.svg, .png, .pdf); else the
            folder for the pages; when left out RUN/replays, or replays for files and weights:NAME.
        count: number of episodes to choose.
        speaker: run of a speaker that helps an agent that searches to choose where to end, as in eval.
        speaker_weight: of the speaker in that choice, 0.9 when left out; the agent has the rest.
    """
    console.at_least_one(count=count)
    if speaker is None and speaker_weight is not None:
        raise UserError(f"--speaker-weight {speaker_weight} needs a --speaker whose weight it is")
    if out is not None and (out.suffix in _PAGES) != (episode is not None):
        raise UserError(
            f"{out}: with --episode one page is written and --out ends in .html, or in .svg, .png or .pdf "
            "for a figure; otherwise --out is a folder"
        )
    paths = [run] if rival is None else [run, rival]
    files = [path.is_file() or path.suffix in _RESULTS for path in paths]
    if any(files) and (not all(files) or speaker is not None):
        raise UserError(
            f"{paths[files.index(True)]} is a result file; only another one can be shown beside it"
        )
    walking.check(*([] if all(files) else paths))
    packaged = run.resolve().is_relative_to(cache_folder().resolve())  # a cache is no place for pages
    beside = Path("replays") if packaged or all(files) else run / "replays"
    target = out or beside / ("with-speaker" if speaker else "")
    chosen = _Chosen(split, episode, count, target)
    if all(files):
        names, replays = _view_files(paths, chosen, walking.data, task)
    else:
        spoken = None if speaker is None else (speaker, speaker_weight)
        names, replays = _view_runs(paths, chosen, walking, spoken)
    pages = [replay.file for replay in replays]
    if episode is None:
        from scenemem.viewer.replay import REPLAYS, ROUTES, write_index

        pages.insert(0, target / "index.html")
        title = f"{' and '.join(names)}{' with a speaker' if speaker else ''} on {split}"
        write_index(pages[0], title, replays, ROUTES if all(files) else REPLAYS)
    facts = [
        {
            "file": str(replay.file),
            "bytes": replay.size,
            "instruction_id": replay.task.instruction_id,
            "title": replay.title,
            "scores": {walk.name: walk.scores for walk, _ in replay.walks},
        }
        for replay in replays
    ]
    if json:
        console.print_json({"pages": [str(page) for page in pages], "replays": facts})
        return
    for page in pages:
        console.say(f"written to {page}")


@dataclass(frozen=True)
class _Chosen:
    """What is shown, and where it goes."""

    split: str
    episode: str | None  # None chooses ``count`` telling ones
    count: int
    target: Path  # a page or a figure, or the folder for pages

    def file_of(self, instruction_id: str) -> Path:
        """The page of an instruction."""
        from scenemem.viewer.replay import plain

        if self.target.suffix in _PAGES:
            return self.target
        return self.target / f"{self.split}-{plain(instruction_id)}.html"


def _view_runs(
    paths: Sequence[Path], chosen: _Chosen, walking: WalkFlags, speaker: tuple[Path, float | None] | None
) -> tuple[list[str], list[Replay]]:
    """Replays of agents: what they are called, and what was written."""
    from scenemem.runs.folder import RunFolder
    from scenemem.runs.opened import open_run, run_names
    from scenemem.runs.pages import replay_episodes
    from scenemem.zoo.reranking import Reranking

    folder = console.open_data(walking.data)
    console.check_split(folder, console.task_of(paths[0]), chosen.split)
    runs = {
        name: open_run(RunFolder(path), folder, walking.checkpoint, console.progress_bar, walking.device)
        for name, path in run_names(list(paths)).items()
    }
    chosen_by = None
    if speaker is not None:
        weight = Reranking.weight if speaker[1] is None else speaker[1]
        chosen_by = RunFolder(speaker[0]), Reranking(1, weight)
    what = chosen.split, chosen.episode, chosen.count, chosen.file_of
    return list(runs), replay_episodes(runs, *what, console.progress_bar, chosen_by)


def _view_files(
    paths: Sequence[Path], chosen: _Chosen, data: Path | None, task: str
) -> tuple[list[str], list[Replay]]:
    """The same of result files."""
    from scenemem.tasks.episode_set import load_split
    from scenemem.viewer.replay import BackLink, RouteFile, choose_routes, write_replays
    from scenemem.viewer.scenery import Sceneries
    from scenemem.world.build import load_world

    folder, one = console.open_data(data), chosen.episode
    console.check_split(folder, task, chosen.split, run=False)
    world = load_world(folder.connectivity)
    episodes = load_split(folder, world, task, chosen.split)
    stems = [path.name.partition(".")[0] for path in paths]
    names = stems if len({*stems}) == len(stems) else [str(path) for path in paths]
    both = zip(paths, names, strict=True)
    files = [RouteFile.read(path, name, world, episodes, one) for path, name in both]
    ids = choose_routes(files, chosen.count) if one is None else [one]
    back = BackLink("index.html", "All replays") if one is None else None
    with console.progress_bar("drawing routes") as advance:
        return names, write_replays(files, ids, Sceneries(folder), chosen.file_of, advance, back)


def report(
    runs: Runs,
    walking: Walking = WALKING,
    out: Path | None = None,
    *,
    splits: tuple[str, ...] = ("val_seen", "val_unseen"),
    replays: bool = True,
) -> None:
    """Write a page about runs: scores (mean and deviation over seeds), curves, failures, the paper's numbers.

    Splits that a run has not walked yet are walked first, and kept in its folder as 'scenemem eval' does.
    Replays of telling episodes go into the folder 'replays' beside the page; of several agents the best and
    the worst are shown side by side. Without --data only runs on the embedded houses are walked.

    Args:
        out: the page; report.html in the run folder, or here when there are several runs.
        splits: what to evaluate.
        replays: write and link replays of telling episodes.
    """
    if not runs:
        raise UserError("name at least one run folder: scenemem report RUN ...")
    from scenemem.runs.folder import RunFolder
    from scenemem.runs.pages import report_on

    walking.check()
    page = report_on(
        [RunFolder(path) for path in runs],
        None if walking.data is None else DataFolder(walking.data),
        out or (runs[0] if len(runs) == 1 else Path()) / "report.html",
        splits=splits,
        checkpoint=walking.checkpoint,
        replays=replays,
        remark=console.say,
        progress=console.progress_bar,
        device=walking.device,
    )
    console.say(f"The report: {page}")


def serve(
    run: Run,
    rival: Rival = None,
    walking: Walking = WALKING,
    *,
    speaker: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    open: bool = True,  # noqa: A002, the name of the flag
) -> None:
    """Serve a page: pick a house, click a start, type any instruction and watch the agent decide.

    Args:
        speaker: the run folder of a speaker, or weights:NAME, which describes routes between two clicks; one
            that comes with SceneMem and fits the data when left out.
        host: address to listen at. Any address but this machine's opens the page to the network.
        port: where to listen; 0 takes any free port.
        open: open the page in a browser.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be in 0..65535, got {port}")
    try:
        import uvicorn  # noqa: F401 - the module below needs it

        from scenemem.viewer.live_server import is_loopback, live_app, live_server
    except ImportError as error:
        raise UserError(_MISSING) from error
    from scenemem.runs.pages import open_live_state

    runs, local = [run] if rival is None else [run, rival], is_loopback(host)
    walking.check(*runs)
    with _listening(host, port) as listener:  # first, because loading takes a while
        folder = console.open_data(walking.data)
        state = open_live_state(runs, speaker, folder, walking.checkpoint, walking.device)
        server = live_server(live_app(state, local=local))
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
        console.say(f"the page is at {address}  (stop with Ctrl-C)")
        if not local:
            console.say("every machine that can reach this one can use the page")
        if open:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        with suppress(KeyboardInterrupt):  # the way to stop it
            server.run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket at that address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise UserError(f"cannot listen at {host} port {port} ({reason}); choose another --port") from error
