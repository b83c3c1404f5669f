from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scenemem.errors import UserError
from scenemem.runs.weights import weights_file
from tests.commands.helpers import Shell, typed

constants: Any = pytest.importorskip("huggingface_hub.constants", reason="needs huggingface_hub")


@pytest.fixture(scope="module")
def folder(hardly_trained: Path, tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights packed in the layout of the Hub."""
    run, out = hardly_trained / "basic-0", tmp_path_factory.mktemp("hub") / "mine"
    assert typed("weights", "pack", run, "--data", tiny_trainable, "--out", out) == 0
    return out


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The Hub as far as a download needs it; yields the paths that were asked for."""
    content = (folder / "model.safetensors").read_bytes()
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(head=True)

        def do_GET(self) -> None:
            self._answer(head=False)

        def _answer(self, head: bool) -> None:
            asked.append(self.path)
            if not self.path.startswith("/someone/mine/resolve/"):
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if not head:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_folder_has_weights_config_and_card_and_is_a_run(folder: Path, shell: Shell) -> None:
    assert {file.name for file in folder.iterdir()} == {"model.safetensors", "config.json", "README.md"}
    config = json.loads((folder / "config.json").read_text())
    assert config["library_name"] == "scenemem"
    assert config["preset"]["agent"] == "basic"
    assert set(config["metrics"]) == {"val_seen", "val_unseen"}
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: scenemem\nlicense: mit\n")
    assert "# weights:mine" in card
    assert f"value: {config['metrics']['val_seen']['sr']:.3f}" in card
    assert shell.json("eval", f"weights:{folder}")["metrics"] == config["metrics"]["val_unseen"]


def test_weights_on_the_hub_are_a_run(server: list[str], shell: Shell) -> None:
    assert shell.json("eval", "weights:hf://someone/mine")["n"] > 0
    assert server[0] == "/someone/mine/resolve/main/model.safetensors"
    weights_file("hf://someone/mine@v2")
    assert any(path.startswith("/someone/mine/resolve/v2/") for path in server[-2:])


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://someone/else", r"hf://someone/else: cannot be fetched \(.*is the name right"),
        ("hf://mine", "'hf://mine' is no address on the Hub, expected hf://owner/name"),
        (".", r"holds no model\.safetensors; 'scenemem weights pack RUN --out FOLDER'"),
    ],
)
def test_addresses_that_lead_nowhere_are_explained(
    address: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        weights_file(address)
