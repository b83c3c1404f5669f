"""``scenemem serve`` as a user types it: what it opens, where it listens, and how it refuses."""

from __future__ import annotations

import builtins
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from scenemem.commands.pages import serve
from scenemem.errors import DataError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import default_houses
from scenemem.presets import PRESETS
from scenemem.runs.experiment import new_experiment
from scenemem.runs.pages import open_live_state, suggestions
from scenemem.runs.weights import find_run

pytest.importorskip("fastapi", reason="needs the extra 'serve'")

SMALL = (
    *("--model.width", "16", "--model.word-width", "8", "--data.min-count", "1"),
    *("--iterations", "2", "--selection.every", "2", "--selection.save-every", "2", "--learning.batch", "4"),
)


@pytest.fixture(scope="module")
def runs(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two agents and a speaker, hardly trained."""
    from scenemem.cli import main

    root = tmp_path_factory.mktemp("runs")
    words = {"ssm": ["train", "ssm"], "basic": ["train", "basic"], "speaker": ["speak", "train", "speaker"]}
    for name, command in words.items():
        arguments = [*command, "--data", str(tiny_trainable), "--out", str(root / name), *SMALL]
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0
    return [root / name for name in words]


def test_the_live_state_is_opened_from_runs(runs: list[Path], tiny_trainable: Path) -> None:
    folder = DataFolder(tiny_trainable)
    state = open_live_state(runs[:2], runs[2], folder, "last")
    assert list(state.agents) == ["ssm", "basic"]
    assert state.speaker_name == "speaker"
    assert state.speaker is not None
    assert {len(found) for found in state.examples.values()} <= {3, 8}, "a few of every house"
    with pytest.raises(UserError, match="is named twice"):
        open_live_state([runs[0], runs[0] / ".." / "ssm"], None, folder, "last")
    with pytest.raises(UserError, match="holds no run"):
        open_live_state([runs[0] / "nowhere"], None, folder, "last")
    with pytest.raises(DataError, match="holds no speaker"):
        open_live_state(runs[:1], runs[1], folder, "best")


def test_a_speaker_that_fits_the_data_comes_with_the_package(runs: list[Path], tiny_trainable: Path) -> None:
    houses = DataFolder(default_houses())
    state = open_live_state([find_run("weights:basic-houses").root], None, houses, "last")
    assert state.speaker_name == "speaker-houses"
    house = next(name for name, split in state.groups.items() if split == "val_unseen")
    example = state.examples[house][0]
    places = state.view(house).scene.places
    start, goal = (places[place].id for place in (example.start, example.goal) if place is not None)
    told = state.describe(house, start, goal, None)
    assert re.fullmatch(r"[A-Z][^<>_]+ [^<>_]+[.]", told.text), "sentences"
    assert " ." not in told.text
    mute = open_live_state(runs[:1], None, DataFolder(tiny_trainable), "last")
    assert mute.speaker is None, "no speaker knows the features of other buildings"


@pytest.mark.real_data
@pytest.mark.parametrize("agent", ["ssm-plus-r2r-captions", "basic-r2r-oracle"])
def test_the_packaged_speaker_of_r2r_serves_agents_of_any_track(agent: str, with_features: Path) -> None:
    run = find_run(f"weights:{agent}").root
    state = open_live_state([run], None, DataFolder(with_features), "last")
    assert state.speaker_name == "speaker-r2r-captions"


def test_suggestions_are_different_routes(tiny_trainable: Path) -> None:
    experiment = new_experiment(PRESETS["basic"], DataFolder(tiny_trainable), seed=0)
    for house, found in suggestions(experiment).items():
        assert house in experiment.environment.world.scans
        assert len({(item.start, item.goal) for item in found}) == len(found)


def test_bad_addresses_are_explained(runs: list[Path], tiny_trainable: Path) -> None:
    with pytest.raises(UserError, match=re.escape("--port must be in 0..65535, got 70000")):
        serve(runs[0], port=70000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen at 127.0.0.1 port {port} \(.*in use\); choose"):
            serve(runs[0], data=tiny_trainable, port=port, open=False)
    with pytest.raises(UserError, match=r"cannot listen at no\.such\.host\.invalid port 0 \(.+\); choose"):
        serve(runs[0], data=tiny_trainable, host="no.such.host.invalid", port=0)


def test_the_missing_extra_is_explained(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "uvicorn":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=re.escape("install them with: pip install 'scenemem[serve]'")):
        serve(runs[0])


def test_the_page_is_up_until_it_is_interrupted(runs: list[Path], tiny_trainable: Path) -> None:
    words = ["from scenemem.commands.pages import serve", "from pathlib import Path"]
    words.append(f"serve(Path({str(runs[0])!r}), data=Path({str(tiny_trainable)!r}), port=0, open=False)")
    process = subprocess.Popen([sys.executable, "-c", "\n".join(words)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())
        assert address is not None
        with urllib.request.urlopen(f"{address.group()}api/session", timeout=20) as answer:
            assert json.load(answer)["agents"] == ["ssm"]
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, rest) == (0, "")
