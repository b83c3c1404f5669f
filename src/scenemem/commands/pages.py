"""``scenemem view``, ``report`` and ``serve``: pages that show what agents do, written or live."""

from __future__ import annotations

import socket
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from scenemem.commands import console
from scenemem.commands.console import WALKING, FileTask, Json, Rival, Run, Runs, Split, Walking
from scenemem.errors import UserError
from scenemem.formats.folder import cache_folder

if TYPE_CHECKING:  # --help must not take the seconds that torch takes
    from scenemem.runs.opened import LoadedAgent

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
    from scenemem.runs.pages import replay_episodes, replay_files
    from scenemem.viewer.replay import REPLAYS, ROUTES, plain, write_index

    packaged = run.resolve().is_relative_to(cache_folder().resolve())  # a cache is no place for pages
    beside = Path("replays") if packaged or all(files) else run / "replays"
    target = out or beside / ("with-speaker" if speaker else "")

    def file_of(instruction_id: str) -> Path:
        return target if episode else target / f"{split}-{plain(instruction_id)}.html"

    if episode is not None and out is None:
        target /= f"{split}-{plain(episode)}.html"
    chosen = split, episode, count, file_of, console.progress_bar
    if all(files):
        names, replays = replay_files(paths, walking.open(), task, *chosen)
    else:
        agents = walking.load(*paths)
        if speaker is not None:
            agents = _helped(agents, speaker, speaker_weight)
        names, replays = list(agents), replay_episodes(agents, *chosen)
    pages = [replay.file for replay in replays]
    if episode is None:
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


def _helped(agents: dict[str, LoadedAgent], speaker: Path, weight: float | None) -> dict[str, LoadedAgent]:
    """Agents with a speaker that helps to choose where their searches end."""
    from scenemem.runs.folder import RunFolder
    from scenemem.zoo.reranking import Reranking

    reranking = Reranking(1, Reranking.weight if weight is None else weight)
    return {name: agent.with_speaker(RunFolder(speaker), reranking) for name, agent in agents.items()}


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
    the worst are shown side by side.

    Args:
        out: the page; report.html in the run folder, or here when there are several runs.
        splits: what to evaluate.
        replays: write and link replays of telling episodes.
    """
    if not runs:
        raise UserError("name at least one run folder: scenemem report RUN ...")
    from scenemem.runs.folder import RunFolder
    from scenemem.runs.pages import report_on

    page = report_on(
        [RunFolder(path) for path in runs],
        walking.open(*runs),
        out or (runs[0] if len(runs) == 1 else Path()) / "report.html",
        splits=splits,
        checkpoint=walking.checkpoint,
        replays=replays,
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
    with _listening(host, port) as listener:  # first, because loading takes a while
        folder = walking.open(*runs)
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
