"""``scenemem serve`` as a user types it: what it opens, where it listens, and how it refuses."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from scenemem.errors import DataError, UserError
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import default_houses
from scenemem.runs.pages import open_live_state
from scenemem.runs.weights import find_run
from tests.commands.helpers import Shell

pytest.importorskip("fastapi", reason="needs the extra 'serve'")


def test_the_live_state_is_opened_from_runs(
    ssm: Path, basic: Path, speaker: Path, tiny_trainable: Path
) -> None:
    folder = DataFolder(tiny_trainable)
    state = open_live_state([ssm, basic], speaker, folder, "last")
    assert list(state.agents) == ["ssm-0", "basic-0"]
    assert state.speaker_name == "speaker-0"
    assert state.speaker is not None
    assert state.examples.keys() == {"grid", "yard"}
    for found in state.examples.values():
        assert len(found) in (3, 8), "a few of every house"
        assert len({(item.start, item.goal) for item in found}) == len(found), "different routes"
    mute = open_live_state([ssm], None, folder, "last")
    assert mute.speaker is None, "no speaker fits the features of other buildings"
    with pytest.raises(UserError, match="is named twice"):
        open_live_state([ssm, ssm / ".." / "ssm-0"], None, folder, "last")
    with pytest.raises(UserError, match="holds no run"):
        open_live_state([ssm / "nowhere"], None, folder, "last")
    with pytest.raises(DataError, match="holds no speaker"):
        open_live_state([ssm], basic, folder, "best")


def test_a_speaker_that_fits_the_data_comes_with_the_package() -> None:
    houses = DataFolder(default_houses())
    state = open_live_state([find_run("weights:basic-houses").root], None, houses, "last")
    assert state.speaker_name == "speaker-houses"
    house = next(name for name, split in state.groups.items() if split == "val_unseen")
    example = state.examples[house][0]
    places = state.view(house).scene.places
    start, goal = (places[place].id for place in (example.start, example.goal) if place is not None)
    described = state.describe(house, start, goal, None)
    assert re.fullmatch(r"[A-Z][^<>_]+ [^<>_]+[.]", described.text), "sentences"
    assert " ." not in described.text


@pytest.mark.real_data
@pytest.mark.parametrize("agent", ["ssm-plus-r2r-captions", "basic-r2r-oracle"])
def test_the_packaged_speaker_of_r2r_serves_agents_of_any_track(agent: str, with_features: Path) -> None:
    run = find_run(f"weights:{agent}").root
    state = open_live_state([run], None, DataFolder(with_features), "last")
    assert state.speaker_name == "speaker-r2r-captions"


def test_bad_addresses_and_a_missing_extra_are_explained(
    ssm: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = shell.refused("serve", ssm, "--port", port, "--no-open")
        assert re.search(rf"cannot listen at 127.0.0.1 port {port} \(.*in use\); choose another", refused)
    refused = shell.refused("serve", ssm, "--port", 0, "--host", "no.such.host.invalid")
    assert re.search(r"cannot listen at no\.such\.host\.invalid port 0 \(.+\); choose", refused)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "install them with: pip install 'scenemem[serve]'" in shell.refused("serve", ssm)


def test_the_page_is_up_until_it_is_interrupted(ssm: Path, tiny_trainable: Path) -> None:
    words = ("serve", str(ssm), "--data", str(tiny_trainable), "--port", "0", "--no-open")
    command = [sys.executable, "-m", "scenemem", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            address = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())
            assert address is not None
            with urllib.request.urlopen(f"{address.group()}api/session", timeout=20) as answer:
                assert json.load(answer)["agents"] == ["ssm-0"]
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (process.returncode, rest) == (0, "")
