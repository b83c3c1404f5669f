"""``scenemem view``, ``report`` and ``serve``: pages on which people watch agents, written or live."""

from __future__ import annotations

import socket
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path

from scenemem.agents.reranking import Reranking
from scenemem.commands import console
from scenemem.commands.console import Checkpoint, Data, Device, Json, Rival, Run, Runs, Split, Threads
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder, cache_folder
from scenemem.learning.distributed import check_device
from scenemem.runs.folder import RunFolder
from scenemem.runs.opened import open_run, run_names
from scenemem.runs.pages import open_live_state, replay_episodes, report_on
from scenemem.viewer.gallery import plain, write_index

_MISSING = "the live page needs FastAPI and uvicorn; install them with: pip install 'scenemem[serve]'"


def view(
    run: Run,
    rival: Rival = None,
    *,
    episode: str | None = None,
    split: Split = "val_unseen",
    data: Data = None,
    checkpoint: Checkpoint = "last",
    out: Path | None = None,
    count: int = 3,
    threads: Threads = 1,
    device: Device = "cpu",
    speaker: Path | None = None,
    speaker_weight: float | None = None,
    json: Json = False,
) -> None:
    """Write replays: what the agent remembered, attended to and weighed up, decision by decision.

    Args:
        episode: the id of one instruction; when left out, telling ones are chosen: mended by turning back,
            stopped in the wrong place, lost, faultless.
        out: with --episode the page to write, else the folder for the pages; when left out RUN/replays, or
            replays for weights:NAME.
        count: how many episodes to choose.
        speaker: run of a speaker that helps an agent that searches to choose where to end, as in eval.
        speaker_weight: of the speaker in that choice, 0.9 when left out; the agent has the rest.
    """
    console.at_least_one(count=count)
    if speaker is None and speaker_weight is not None:
        raise UserError(f"--speaker-weight {speaker_weight} needs a --speaker whose weight it is")
    weight = Reranking.weight if speaker_weight is None else speaker_weight
    chosen_by = None if speaker is None else (RunFolder(speaker), Reranking(1, weight))
    if out is not None and (out.suffix == ".html") != (episode is not None):
        raise UserError(
            f"{out}: with --episode one page is written and --out ends in .html, otherwise --out is a folder"
        )
    for path in filter(None, (run, rival)):
        console.existing_run(path, data, checkpoint)
    check_device(device)
    console.use_threads(threads)
    folder = console.open_data(data)
    console.check_split(folder, RunFolder(run).describe()["preset"]["data"]["task"], split)
    named = run_names([run] if rival is None else [run, rival])
    runs = {
        name: open_run(RunFolder(path), folder, checkpoint, console.progress_bar, device)
        for name, path in named.items()
    }
    packaged = run.resolve().is_relative_to(cache_folder().resolve())  # nobody looks for pages in a cache
    target = out or (Path("replays") if packaged else run / "replays") / ("with-speaker" if speaker else "")

    def file_of(name: str) -> Path:
        return target if target.suffix == ".html" else target / f"{split}-{plain(name)}.html"

    replays = replay_episodes(runs, split, episode, count, file_of, console.progress_bar, chosen_by)
    pages = [replay.file for replay in replays]
    if episode is None:
        pages.insert(0, target / "index.html")
        write_index(
            pages[0], f"{' and '.join(runs)}{' with a speaker' if speaker else ''} on {split}", replays
        )
    if json:
        facts = [
            {
                "file": str(replay.file),
                "bytes": replay.size,
                "instruction_id": replay.traces[0].task.instruction_id,
                "title": replay.title,
                "scores": {trace.agent: trace.ending.scores for trace in replay.traces if trace.ending},
            }
            for replay in replays
        ]
        console.print_json({"pages": [str(page) for page in pages], "replays": facts})
        return
    for page in pages:
        console.say(f"written to {page}")


def report(
    runs: Runs,
    data: Path | None = None,
    out: Path | None = None,
    *,
    splits: tuple[str, ...] = ("val_seen", "val_unseen"),
    checkpoint: Checkpoint = "last",
    replays: bool = True,
    threads: Threads = 1,
    device: Device = "cpu",
) -> None:
    """Write a page about runs: scores (mean and deviation over seeds), curves, failures, the paper's numbers.

    Splits that a run has not walked yet are walked first, and kept in its folder as 'scenemem eval' does.
    Replays of telling episodes go into the folder 'replays' beside the page; of several agents the best and
    the worst are shown side by side.

    Args:
        data: the data folder of runs that were not trained on the embedded houses.
        out: the page; report.html in the run folder, or here when there are several runs.
        splits: what to evaluate.
        replays: write and link replays of telling episodes.
    """
    if not runs:
        raise UserError("name at least one run folder: scenemem report RUN ...")
    console.use_threads(threads)
    page = report_on(
        [RunFolder(path) for path in runs],
        None if data is None else DataFolder(data),
        out or (runs[0] if len(runs) == 1 else Path()) / "report.html",
        splits=splits,
        checkpoint=checkpoint,
        replays=replays,
        remark=console.say,
        progress=console.progress_bar,
        device=check_device(device),
    )
    console.say(f"The report: {page}")


def serve(
    run: Run,
    rival: Rival = None,
    *,
    speaker: Path | None = None,
    data: Data = None,
    checkpoint: Checkpoint = "last",
    host: str = "127.0.0.1",
    port: int = 8765,
    open: bool = True,  # noqa: A002, the name of the flag
    threads: Threads = 1,
    device: Device = "cpu",
) -> None:
    """Serve a page: pick a house, click a start, type any instruction and watch the agent decide.

    Args:
        speaker: the run folder of a speaker, or weights:NAME, which describes routes between two clicks; one
            that comes with SceneMem and fits the data when left out.
        host: address to listen at. Anything but this machine lets everybody on the network in.
        port: where to listen; 0 takes any free port.
        open: open the page in a browser.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be in 0..65535, got {port}")
    try:
        import uvicorn  # noqa: F401 - the two modules below need it

        from scenemem.viewer.live import live_app
        from scenemem.viewer.live_server import is_loopback, live_server
    except ImportError as error:
        raise UserError(_MISSING) from error
    for path in filter(None, (run, rival)):
        console.existing_run(path, data, checkpoint)
    check_device(device)
    console.use_threads(threads)
    local = is_loopback(host)
    with _listening(host, port) as listener:  # first, because loading takes a while
        runs = [run] if rival is None else [run, rival]
        server = live_server(
            live_app(open_live_state(runs, speaker, console.open_data(data), checkpoint, device), local=local)
        )
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
        console.say(f"the page is at {address}  (stop with Ctrl-C)")
        if not local:
            console.say("everybody who can reach this machine can use the page")
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
