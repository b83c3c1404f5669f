"""States of live pages with tiny agents that have learnt nothing, and real servers for them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve' (pip install 'scenemem[serve]')")
pytest.importorskip("uvicorn", reason="needs the extra 'serve' (pip install 'scenemem[serve]')")
pytest.importorskip("httpx", reason="needs httpx")

import httpx
import uvicorn

from scenemem.agents.walker import TrainedAgent
from scenemem.formats.folder import DataFolder
from scenemem.models.speaker import SpeakerConfig
from scenemem.presets import DataConfig
from scenemem.runs.experiment import SpeakerPreset, new_experiment, new_speaker
from scenemem.viewer.live_server import WAITING, live_app
from scenemem.viewer.live_state import Example, LiveServerState
from scenemem.viewer.scenery import Sceneries
from tests.viewer.conftest import small_preset

Serve = Callable[..., AbstractContextManager[str]]


def tiny_agent(name: str, folder: DataFolder) -> TrainedAgent:
    """An agent of a preset, 16 numbers wide."""
    agent = new_experiment(small_preset(name), folder, seed=0).agent
    agent.limits = replace(agent.limits, max_steps=6)  # without training hardly any walk would end earlier
    return agent


@contextmanager
def running(server: uvicorn.Server) -> Iterator[int]:
    """The port of a server while it runs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def make_state(tiny_trainable: Path) -> Callable[..., LiveServerState]:
    """Makes a state with agents of its own."""
    folder = DataFolder(tiny_trainable)
    voice = SpeakerPreset(words=12, model=SpeakerConfig(width=16, word_width=8), data=DataConfig(min_count=1))

    def make(*names: str) -> LiveServerState:
        return LiveServerState(
            agents={name: tiny_agent(name, folder) for name in names},
            sceneries=Sceneries(folder),
            speaker=new_speaker(voice, folder, seed=0).speaker,
            speaker_name="parrot",
            examples={"grid": [Example("Walk on.", 0, 0.5, 3)]},
            groups={"grid": "train"},
        )

    return make


@pytest.fixture(scope="session")
def serve() -> Serve:
    """Runs a real server on a free port; yields its address."""

    @contextmanager
    def served(state: LiveServerState, *, local: bool = True, waiting: int = WAITING) -> Iterator[str]:
        app = live_app(state, local=local, waiting=waiting)
        # a slow client must not meet a connection that is just being closed
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, timeout_keep_alive=120)
        with running(uvicorn.Server(config)) as port:
            yield f"http://127.0.0.1:{port}"

    return served


@pytest.fixture(scope="session")
def state(make_state: Callable[..., LiveServerState]) -> LiveServerState:
    """Two agents and a speaker; tests leave it as it is."""
    return make_state("ssm", "basic")


@pytest.fixture(scope="session")
def address(state: LiveServerState, serve: Serve) -> Iterator[str]:
    """Where that state is served."""
    with serve(state) as where:
        yield where


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[httpx.Client]:
    """A visitor of that server."""
    with httpx.Client(base_url=address, timeout=30) as opened:
        yield opened
