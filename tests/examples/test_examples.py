"""The agents of ``examples/``: short, made of public names alone, and trained by the ordinary commands."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from scenemem import registry
from scenemem.agents.build import AGENTS
from scenemem.agents.rollout import ACTION, FRONTIER, GLOBAL
from scenemem.cli import main
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import HousesConfig, build_houses
from scenemem.learning.objectives import LABEL_RULES, LOSSES, REWARDS
from scenemem.presets import PRESETS
from scenemem.runs.experiment import new_experiment
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import TrainingStatus
from scenemem.runs.training import run_training
from scenemem.ssm.graph import MemoryGraph
from tests.zoo.helpers import imported_by

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = {
    "explorer": "explorer.py",
    "one-softmax": "one_softmax.py",
    "ssm-attention": "attention_memory.py",
    "ssm-progress": "progress_monitor.py",
    "ssm-transformer": "transformer_updater.py",
}
DECISIONS = {"explorer": {ACTION}, "one-softmax": {GLOBAL}}  # others choose frontiers and actions
LONGEST = 100  # lines
SMALL = (
    *("--model.width", 16, "--model.word-width", 8, "--data.min-count", 1, "--learning.batch", 4),
    *("--iterations", 2, "--selection.every", 2, "--selection.save-every", 1),
)


@contextmanager
def nothing_loaded() -> Iterator[None]:
    """As in a fresh process: no plugin is loaded, and what is registered inside is forgotten afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_loaded", {})
        patch.setattr(registry, "_installed_are_loaded", False)
        patch.setattr(importlib.metadata, "entry_points", lambda **_: ())
        known: tuple[registry.Registry[Any], ...] = (AGENTS, PRESETS, LOSSES, LABEL_RULES, REWARDS)
        for one in known:
            patch.setattr(one, "_objects", dict(one._objects))
        yield
    for name in [name for name in sys.modules if name.startswith("scenemem_plugin_")]:
        del sys.modules[name]


@pytest.fixture
def fresh() -> Iterator[None]:
    with nothing_loaded():
        yield


def _plugin(name: str) -> Path:
    return FOLDER / EXAMPLES[name]


def _run(*words: object) -> int:
    with nothing_loaded(), pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def _losses(run: Path) -> list[tuple[int, dict[str, float]]]:
    return [(line["iteration"], line["losses"]) for line in RunFolder(run).logged()]


@pytest.fixture(scope="module")
def runs(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every example trained by the ordinary command."""
    root = tmp_path_factory.mktemp("runs")
    for name in EXAMPLES:
        words = ("train", f"{_plugin(name)}:{name}", "--data", tiny_trainable, "--out", root / name)
        assert _run(*words, *SMALL, "--no-replays") == 0
    return {name: root / name for name in EXAMPLES}


def test_every_example_is_tested() -> None:
    assert sorted(EXAMPLES.values()) == sorted(file.name for file in FOLDER.glob("*.py"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_short_and_uses_only_what_is_public(name: str) -> None:
    text = _plugin(name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    assert f"scenemem train examples/{EXAMPLES[name]}:{name} " in text, "it says how it is trained"
    used = imported_by(_plugin(name))
    assert {module for module in used if module.startswith("scenemem")} == {"scenemem.extend"}
    others = {module.partition(".")[0] for module in used} - {"scenemem", "torch"}
    assert others <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_trained_evaluated_and_shown(
    name: str,
    runs: dict[str, Path],
    tiny_trainable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    described = RunFolder(runs[name]).describe()
    assert (described["name"], described["preset"]["agent"]) == (name, name)
    assert [Path(plugin).name for plugin in described["plugins"]] == [EXAMPLES[name]]
    assert [iteration for iteration, _ in _losses(runs[name])] == [1, 2]
    words = ("eval", runs[name], "--data", tiny_trainable, "--json")
    assert _run(*words) == 2, "a run never makes anybody run code"
    assert f"was made with {_plugin(name)}; if you trust that code" in capsys.readouterr().err
    assert _run("--plugin", _plugin(name), *words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["n"] > 0
    assert _run(*words, "--processes", 2, "--plugin", _plugin(name)) == 0, "workers load the plugin, too"
    assert json.loads(capsys.readouterr().out)["metrics"] == pytest.approx(report["metrics"])
    page, place = tmp_path / "page.html", ("--data", tiny_trainable, "--episode", "2000_0")
    assert _run("view", runs[name], *place, "--out", page, "--plugin", _plugin(name)) == 0
    assert "Walk from" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_resumed_as_if_it_had_not_been_interrupted(
    name: str, runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path
) -> None:
    out, preset = tmp_path / "run", f"{_plugin(name)}:{name}"

    def interrupt(status: TrainingStatus) -> None:
        if status.iteration == 2:
            raise KeyboardInterrupt

    def watched(*arguments: Any, **options: Any) -> None:
        run_training(*arguments, **{**options, "watch": interrupt})

    words = ("train", preset, "--data", tiny_trainable, "--out", out, *SMALL, "--no-replays")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scenemem.commands.train.run_training", watched)
        assert _run(*words) == 130
    assert [iteration for iteration, _ in _losses(out)] == [1]
    assert _run("train", preset, "--data", tiny_trainable, "--out", out, "--resume", "--no-replays") == 0
    assert _losses(out) == _losses(runs[name])


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_takes_the_decisions_it_scores(name: str, tiny_trainable: Path) -> None:
    registry.load_plugin(str(_plugin(name)))
    experiment = new_experiment(PRESETS[name], DataFolder(tiny_trainable), seed=0)
    episodes = experiment.episodes("train").select(range(12))
    whole, few = (experiment.agent.walk(episodes, at_once=count) for count in (None, 3))
    assert whole.learned.keys() == DECISIONS.get(name, {FRONTIER, ACTION})
    assert torch.equal(few.walked, whole.walked), "an episode walks alike whatever walks beside it"


def _graph(edge: torch.Tensor, nodes: list[int]) -> MemoryGraph:
    """Memories with so many nodes each and nothing but edges.  edge: (R, N, N) bool"""
    row, node = (torch.arange(edge.shape[1]) < torch.tensor(nodes).unsqueeze(1)).nonzero().unbind(1)
    nothing: Any = None
    values = {item.name: nothing for item in fields(MemoryGraph)}
    viewpoint = torch.zeros(edge.shape[:2], dtype=torch.long)
    return MemoryGraph(**{**values, "viewpoint": viewpoint, "edge": edge, "row": row, "node": node})


@pytest.mark.usefixtures("fresh")
def test_attention_over_neighbours_depends_on_edges_alone() -> None:
    """Neither on how nodes are numbered, nor on larger memories beside theirs; without neighbours it is 0."""
    torch.manual_seed(0)
    pass_messages = registry.load_plugin(str(_plugin("ssm-attention"))).AttentionMessages(6, steps=2)
    edge = torch.rand(1, 5, 5) < 0.5
    edge = (edge | edge.transpose(1, 2)) & ~torch.eye(5, dtype=torch.bool)
    edge[:, 4] = edge[:, :, 4] = False  # a node without neighbours
    assert edge.any(dim=2).sum() == 4
    states, order = torch.randn(5, 6), torch.randperm(5)
    with torch.no_grad():
        found = pass_messages(states, _graph(edge, [5]))
        renamed = pass_messages(states[order], _graph(edge[:, order][:, :, order], [5]))
        torch.testing.assert_close(renamed, found[order])
        larger = torch.nn.functional.pad(edge, (0, 2, 0, 2)).repeat(2, 1, 1)
        larger[0, 5, 6] = larger[0, 6, 5] = True
        beside = pass_messages(torch.cat([torch.randn(7, 6), states]), _graph(larger, [7, 5]))
        torch.testing.assert_close(beside[7:], found)
        alone, silence = states[4:], torch.zeros(1, 6)
        for _ in range(2):
            alone = pass_messages.update(silence, alone)
        torch.testing.assert_close(found[4:], alone)
        changed = pass_messages(states + torch.tensor([[1.0]] + [[0.0]] * 4), _graph(edge, [5]))
    assert not torch.allclose(changed[edge[0, 0]], found[edge[0, 0]]), "neighbours are heard"


def test_an_explorer_never_comes_back(
    runs: dict[str, Path], tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("eval", runs["explorer"], "--data", tiny_trainable, "--split", "val_seen", "--json")
    assert _run(*words, "--plugin", _plugin("explorer")) == 0
    capsys.readouterr()
    results = json.loads((runs["explorer"] / "results" / "val_seen.json").read_text(encoding="utf-8"))
    walks = [[point[0] for point in item["trajectory"]] for item in results]
    assert any(len(walk) > 2 for walk in walks)
    assert all(len(set(walk)) == len(walk) for walk in walks)


def test_progress_is_learnt_and_has_its_own_loss(runs: dict[str, Path]) -> None:
    for _, losses in _losses(runs["ssm-progress"]):
        assert set(losses) == {"teacher_forcing", "student_forcing", "a2c", "progress"}
        assert losses["progress"] > 0
    with nothing_loaded():
        module: ModuleType = registry.load_plugin(str(_plugin("ssm-progress")))
        target = module.progress_target(torch.tensor([[10.0, 5.0, 12.0, 2.9], [2.0, 4.0, 1.0, 3.0]]))
    expected = torch.tensor([[0.0, 0.5, -0.2, 1.0], [1.0, -1.0, 1.0, -0.5]])
    torch.testing.assert_close(target, expected)


def test_an_example_learns_in_the_houses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = HousesConfig(houses=4, unseen_houses=1, train_routes=4, val_seen_routes=1, val_unseen_routes=2)
    build_houses(tmp_path / "houses", config, jobs=1)
    plugin, out = _plugin("explorer"), tmp_path / "run"
    words = ("train", f"{plugin}:explorer", "--data", tmp_path / "houses", "--out", out)
    assert _run(*words, *SMALL, "--no-replays", "--json") == 0
    assert json.loads(capsys.readouterr().out)["iteration"] == 2
    assert _run("eval", out, "--data", tmp_path / "houses", "--json", "--plugin", plugin) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 6
