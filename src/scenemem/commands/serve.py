"""``scenemem serve RUN``: a page on which agents follow whatever one types, live."""

from __future__ import annotations

import socket
import threading
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import tyro

from scenemem.commands.console import console, open_data, use_threads
from scenemem.errors import UserError
from scenemem.runs.folder import Which
from scenemem.runs.pages import open_live_state

_MISSING = "the live page needs FastAPI and uvicorn; install them with: pip install 'scenemem[serve]'"
_GRACE = 2  # seconds for open streams when the server is stopped
_IDLE = 60  # seconds an unused connection is kept; a visitor thinks before the next walk


def serve(
    run: Annotated[Path, tyro.conf.Positional],
    rival: Annotated[Path | None, tyro.conf.Positional] = None,
    *,
    speaker: Path | None = None,
    data: Path | None = None,
    checkpoint: Which = "last",
    host: str = "127.0.0.1",
    port: int = 8765,
    open: bool = True,  # noqa: A002, the name of the flag
    threads: int = 1,
) -> None:
    """Serve a page: pick a house, click a start, type any instruction and watch the agent decide.

    Args:
        run: a run folder.
        rival: another run folder; both agents follow the same instruction side by side.
        speaker: the run folder of a speaker, which describes routes between two clicks.
        data: the data folder; the embedded houses when left out.
        checkpoint: the last weights of the runs, or those that did best on their selection split.
        host: address to listen at. Anything but this machine lets everybody on the network in.
        port: where to listen; 0 takes any free port.
        open: open the page in a browser.
        threads: torch threads; more than one only pays on an otherwise idle machine.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be in 0..65535, got {port}")
    try:
        import uvicorn

        from scenemem.viewer.live import live_app
        from scenemem.viewer.live_guards import is_loopback
    except ImportError as error:
        raise UserError(_MISSING) from error
    use_threads(threads)
    local = is_loopback(host)
    with _listening(host, port) as listener:  # first, because loading takes a while
        stage = open_live_state(
            [run] if rival is None else [run, rival], speaker, open_data(data), checkpoint
        )
        config = uvicorn.Config(
            live_app(stage, local=local),
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
            timeout_keep_alive=_IDLE,
        )
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
        console.print(f"the page is at {address}  (stop with Ctrl-C)", highlight=False, soft_wrap=True)
        if not local:
            console.print("everybody who can reach this machine can use the page", highlight=False)
        if open:
            threading.Timer(0.5, webbrowser.open, [address]).start()
        with suppress(KeyboardInterrupt):  # the way to stop it
            uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket at that address.

    Raises:
        UserError: it cannot be had.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]
        raise UserError(f"cannot listen at {host} port {port} ({reason}); choose another --port") from error
