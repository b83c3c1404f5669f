"""Packed weights: what is kept, what they unpack to, and where they are found."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from scenemem.errors import DataError, UserError
from scenemem.features.store import TRACKS
from scenemem.learning.checkpoint import Checkpoint, read_checkpoint
from scenemem.runs.folder import RunFolder
from scenemem.runs.weights import (
    AGENT_METRICS,
    Published,
    halved,
    model_card,
    published,
    unpacked,
    weights_file,
    write_published,
)
from tests.commands.helpers import Shell, typed

METADATA = {
    "preset": {"data": {"task": "r2r"}, "selection": {"split": "val_unseen"}},
    "vocabulary": ["<PAD>"],
    "features": {"width": 2, "sha256": "0", "encoder": "none"},
    "name": "ssm",
    "seed": 3,
}
DESCRIPTION = {"name": "ssm", "seed": 3, "data": {"features": "tiny"}, "versions": {}}
REACHED = {"sr": 0.5, "spl": 0.4, "osr": 0.6, "ne": 3.0}


@pytest.fixture
def trained() -> Checkpoint:
    """A checkpoint as training writes it: weights, optimiser, random states, progress."""
    tensors = {
        "network.layer": torch.linspace(-1, 1, 12).view(3, 4),
        "optimiser.0.exp_avg": torch.ones(3, 4),
        "random.global": torch.zeros(8, dtype=torch.uint8),
    }
    return Checkpoint(tensors, {**METADATA, "progress": {"iteration": 7, "batches": {"order": [1, 2]}}})


def test_only_the_weights_are_kept_in_half_precision_which_has_to_hold_them(trained: Checkpoint) -> None:
    packed = halved(trained)
    assert packed.tensors.keys() == {"network.layer"}
    assert packed.tensors["network.layer"].dtype == torch.float16
    assert packed.metadata == {**METADATA, "progress": {"iteration": 7}}
    trained.tensors["network.layer"][1, 2] = 1e6
    with pytest.raises(UserError, match=r"'network\.layer' has numbers that half precision cannot hold"):
        halved(trained)


def test_all_weights_are_listed_and_a_speaker_stays_one(trained: Checkpoint, tmp_path: Path) -> None:
    write_published(tmp_path / "agent.safetensors", halved(trained), DESCRIPTION, {"val_seen": REACHED})
    trained.metadata["kind"] = "speaker"
    write_published(tmp_path / "voice.safetensors", halved(trained), DESCRIPTION, {})
    agent, voice = published(tmp_path)
    assert [(one.name, one.is_speaker, one.metrics) for one in (agent, voice)] == [
        ("agent", False, {"val_seen": REACHED}),
        ("voice", True, {}),
    ]
    assert agent.description == DESCRIPTION


def test_they_unpack_to_a_run_folder_with_the_same_numbers(trained: Checkpoint, tmp_path: Path) -> None:
    packed = halved(trained)
    write_published(tmp_path / "mine.safetensors", packed, DESCRIPTION, {"val_unseen": REACHED})
    run = RunFolder(unpacked("mine", tmp_path))
    assert run.root.name == "mine"
    assert run.describe() == DESCRIPTION
    for file in (run.last, run.best):
        stored = read_checkpoint(file)
        weights = stored.network()["layer"]
        assert weights.dtype == torch.float32
        assert torch.equal(weights, packed.tensors["network.layer"].float())
        assert stored.metadata["progress"] == {"iteration": 7}
    assert unpacked("mine", tmp_path) == run.root
    trained.tensors["network.layer"][0, 0] = 0.25
    write_published(tmp_path / "mine.safetensors", halved(trained), DESCRIPTION, {})
    assert unpacked("mine", tmp_path) != run.root, "other weights of the same name"


def test_an_unknown_name_lists_the_known_ones(trained: Checkpoint, tmp_path: Path) -> None:
    write_published(tmp_path / "mine.safetensors", halved(trained), DESCRIPTION, {})
    (tmp_path / "inner").mkdir()
    for name, known, folder in (("his", "mine", "."), ("his", "none", "inner"), ("../mine", "", "inner")):
        with pytest.raises(UserError, match=f"no weights called '{name}'; there are: {known}"):
            unpacked(name, tmp_path / folder)


@pytest.mark.parametrize("text", ["[[[", "[a]\nseeds = 3", "\xff", "[a]\nseeds = [1]\nsr = [nan]\nspl = []"])
def test_damaged_seeds_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "seeds.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"seeds\.toml: "):
        _ = Published("a", tmp_path / "a.safetensors", {}, {}, {}).seeds


def test_what_comes_with_the_package_is_complete_and_small() -> None:
    found = published()
    for entry in found:
        assert entry.file.stat().st_size < 15e6
        assert entry.file.with_suffix(".md").is_file()
        assert entry.metrics["val_unseen"][entry.card[0]] > 0
        assert entry.track in TRACKS
        card = entry.file.with_suffix(".md").read_text(encoding="utf-8")
        assert card == model_card(entry), "and says everything cards say today"
        assert hashlib.sha256(entry.file.read_bytes()).hexdigest() in card
        assert all(digest in card for digest in entry.description.get("inputs", {}).values())
        assert all(tensor.dtype == torch.float16 for tensor in read_checkpoint(entry.file).tensors.values())
    assert sum(entry.file.stat().st_size for entry in found) < 60e6


def test_cards_say_which_seed_of_how_many_and_what_to_expect() -> None:
    cards = {entry.name: (entry, model_card(entry)) for entry in published()}
    entry, card = cards["basic-houses"]
    assert entry.seeds is not None
    assert entry.metadata["seed"] in entry.seeds.seeds
    mean, deviation = entry.seeds.sr
    assert f"Seed 0 of {len(entry.seeds.seeds)} (0, 1, 2), not chosen by its result." in card
    assert f"what all seeds reach: SR {mean:.3f} ± {deviation:.3f}, SPL " in card
    assert abs(entry.metrics["val_unseen"]["sr"] - mean) < 4 * deviation, "the packed one is among them"
    assert "Seed 0; what other seeds reach is not noted" in cards["speaker-houses"][1]
    for name, commands in (("basic-houses", ""), ("basic-r2r-captions", " --data DIR")):
        assert f"`scenemem eval weights:{name}{commands} --split val_unseen` prints them" in cards[name][1]


@pytest.fixture(scope="module")
def folder(hardly_trained: Path, tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights packed in the layout of the Hub."""
    run, out = hardly_trained / "basic-0", tmp_path_factory.mktemp("hub") / "mine"
    assert typed("weights", "pack", run, "--data", tiny_trainable, "--out", out, "--licence", "mit") == 0
    return out


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The Hub as far as a download needs it; yields the paths that were asked for."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs huggingface_hub")
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
    metrics = config["metrics"]
    assert set(metrics) == {"val_seen", "val_unseen"}
    card = (folder / "README.md").read_text()
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    data = hub.ModelCard(card).data
    assert (data.library_name, data.license, data.model_name) == ("scenemem", "mit", "mine")
    found = {(one.dataset_split, one.metric_type): one.metric_value for one in data.eval_results}
    expected = {(split, name): metrics[split][name] for split in metrics for name in AGENT_METRICS}
    assert found == pytest.approx(expected, abs=5e-5)
    assert "\n# weights:mine/\n" in card
    assert "\n- Licence: mit.\n" in card
    assert shell.json("eval", f"weights:{folder}")["metrics"] == config["metrics"]["val_unseen"]


def test_a_run_packed_twice_has_the_same_bytes_and_its_commands_work(
    hardly_trained: Path, tiny_trainable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"weights pack {hardly_trained}/basic-0 --data {tiny_trainable} --splits val_seen --out".split()
    for out in ("one/mine.safetensors", "two/mine.safetensors"):
        told = shell(*words, out)
        following = told.split(" next: scenemem ")[1]
        assert following == f"eval weights:{out} --data {tiny_trainable} --split val_seen"
        assert "SR" in shell(*following.split())
    for name in ("mine.safetensors", "mine.md"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    monkeypatch.chdir("one")
    card = Path("mine.md").read_text(encoding="utf-8")
    said = re.findall(r"`scenemem (.+?)` prints them, with the data in DIR", card)[0]
    assert said == "eval weights:mine.safetensors --data DIR --split val_seen"
    means = shell.json(*said.replace("DIR", str(tiny_trainable)).split())["metrics"]
    assert f"| val_seen | {means['sr']:.3f} | {means['spl']:.3f} |" in card
    for licence, message in (
        ("", "mine: what is shared on the Hub needs a licence"),
        ("My own", "got 'My own'"),
    ):
        assert message in shell.refused(*words, "mine", "--licence", licence)
    assert not Path("mine").exists()


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
