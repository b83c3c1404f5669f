"""The family as a table: every system is short, made of public names, and lives by the ordinary commands."""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from scenemem import zoo
from scenemem.agents.agent import follow
from scenemem.agents.build import AGENTS
from scenemem.agents.rollout import DecisionType
from scenemem.agents.walker import Decided
from scenemem.errors import UserError
from scenemem.evaluation.metrics import measure
from scenemem.learning.objectives import LABEL_RULES, Stage
from scenemem.presets import PRESETS, R4R_LABELS, Overlays, overlaid, read_preset
from scenemem.registry import load_plugin
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import TrainingStatus
from scenemem.runs.training import run_training
from tests.commands.helpers import typed
from tests.zoo.helpers import Setting, roam, small, small_settings

SYSTEMS = zoo.systems()
ROWS = {**zoo.rows()}
for _system in SYSTEMS.values():
    ROWS |= {f"{name}-as-published": preset for name, preset in _system.AS_PUBLISHED.items()}
LONGEST = {"duet": 400}
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    zoo.register()


def test_registering_twice_is_registering_once() -> None:
    zoo.register()
    zoo.register()
    assert {name: PRESETS[name] for name in zoo.rows()} == zoo.rows()


def test_a_plugin_cannot_take_a_name_of_the_family(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from scenemem.extend import PRESETS\nPRESETS.register('regretful', PRESETS['basic'])\n",
        encoding="utf-8",
    )
    with pytest.raises(
        UserError, match="there is a preset 'regretful' already; register yours under another"
    ):
        load_plugin(str(file))


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_has_a_shared_and_a_published_row(name: str) -> None:
    rows = SYSTEMS[name].ROWS
    assert name in rows
    assert name in SYSTEMS[name].AS_PUBLISHED
    assert SYSTEMS[name].AS_PUBLISHED.keys() <= rows.keys()
    assert all(row.startswith(name) for row in rows)
    basic, own = PRESETS["basic"], rows[name]
    assert own.data == basic.data
    assert own.selection == basic.selection
    for setting in ("word_width", "width", "dropout", "feature_dropout"):
        assert getattr(own.model, setting) == getattr(basic.model, setting), setting
    for setting in ("iterations", "batch", "learning_rate", "weight_decay", "clip"):
        assert getattr(own.learning, setting) == getattr(basic.learning, setting), setting


def test_the_family_goes_on_every_task_as_the_basic_agent_does() -> None:
    for overlays in (Overlays("captions"), Overlays("captions", "r4r")):
        basic = overlaid("basic", overlays)
        for name, row in zoo.rows().items():
            own = overlaid(name, overlays)
            assert (own.data, own.selection) == (basic.data, basic.selection), name
            assert own.learning.labels in LABEL_RULES
            assert own.learning.iterations == basic.learning.iterations
            assert (own.agent, own.model, own.learning.reward) == (row.agent, row.model, row.learning.reward)
            if row.walk == PRESETS["basic"].walk:
                assert own.walk == basic.walk
    assert {
        "rcm": "goal",
        "egp": "best_ndtw",
        "egp-revisits": "best_ndtw",
        **dict.fromkeys(("pta-low", "rpa", "student-forcing"), "low_level_path"),
    } == R4R_LABELS


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_short_and_uses_only_what_is_public(name: str) -> None:
    file = Path(str(SYSTEMS[name].__file__))
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST.get(name, 250)
    used: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used.add(str(node.module))
    ours = {module for module in used if module.startswith("scenemem")}
    assert all(module == "scenemem.extend" or module.startswith("scenemem.zoo.") for module in ours), ours
    others = {module.partition(".")[0] for module in used} - {"scenemem", "torch"}
    assert others <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_page_of_the_family_names_every_system(name: str) -> None:
    page = (DOCS / "family.md").read_text(encoding="utf-8")
    stem = Path(str(SYSTEMS[name].__file__)).name
    assert f"`zoo/{stem}`" in page
    lines = len(Path(str(SYSTEMS[name].__file__)).read_text(encoding="utf-8").splitlines())
    assert re.search(rf"`zoo/{re.escape(stem)}` \| {lines} \|", page), f"{stem} has {lines} lines"
    assert f"scenemem train {name}" in page


@pytest.mark.parametrize("name", ROWS)
def test_rows_survive_being_written_down(name: str) -> None:
    written = msgspec.json.encode(ROWS[name])
    assert read_preset(msgspec.json.decode(written)) == ROWS[name]
    assert type(ROWS[name].model) is AGENTS[ROWS[name].agent].config


# commands


def _flags(name: str) -> list[object]:
    """Flags that make a run of a preset small."""
    words: list[object] = ["--data.min-count", 1, "--learning.batch", 4, "--iterations", 2]
    words += ["--selection.every", 2, "--selection.save-every", 1, "--walk.max-steps", 12]
    for setting, value in small_settings(ROWS[name]).items():
        words += [f"--model.{setting.replace('_', '-')}", value]
    return words


def _augment(name: str, data: Path) -> list[object]:
    needs = any(stage.augmented for stage in ROWS[name].learning.stages)
    return ["--augment", data / "r2r" / "R2R_train.json"] if needs else []


def _train(name: str, data: Path, out: Path, *more: object) -> int:
    row = name.removesuffix("-as-published")
    recipe = [] if row == name else ["--recipe", "published"]
    flags = [*recipe, *_flags(name), *_augment(name, data), *more]
    return typed("train", row, "--data", data, "--out", out, *flags)


def _losses(run: Path) -> list[tuple[int, dict[str, float]]]:
    return [(line["iteration"], line["losses"]) for line in RunFolder(run).logged()]


@pytest.fixture(scope="module")
def runs(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every row trained by the ordinary command."""
    root = tmp_path_factory.mktemp("family")
    for name in ROWS:
        assert _train(name, tiny_trainable, root / name, "--no-replays") == 0, name
    return {name: root / name for name in ROWS}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_trained_evaluated_and_shown(
    name: str, runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = RunFolder(runs[name]).describe()
    assert described["name"] == name
    assert not described.get("plugins"), "the family belongs to the package"
    assert [iteration for iteration, _ in _losses(runs[name])] == [1, 2]
    assert typed("eval", runs[name], "--data", tiny_trainable, "--json") == 0
    assert json.loads(capsys.readouterr().out)["n"] > 0
    page = tmp_path / "page.html"
    words = ("view", runs[name], "--data", tiny_trainable, "--episode", "2000_0", "--out", page)
    assert typed(*words) == 0
    assert "Walk from" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_resumed_as_if_it_had_not_been_interrupted(
    name: str, runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def interrupt(status: TrainingStatus) -> None:
        if status.iteration == 2:
            raise KeyboardInterrupt

    def watched(*arguments: Any, **options: Any) -> None:
        run_training(*arguments, **{**options, "watch": interrupt})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scenemem.commands.train.run_training", watched)
        assert _train(name, tiny_trainable, out, "--no-replays") == 130
    assert [iteration for iteration, _ in _losses(out)] == [1]
    assert typed("train", "--data", tiny_trainable, "--out", out, "--resume", "--no-replays") == 0
    assert _losses(out) == _losses(runs[name])


def test_the_family_is_compared(
    runs: dict[str, Path], tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = runs
    words = ("compare", *runs.values(), "--data", tiny_trainable, "--against", first, "--json")
    assert typed(*words) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["rows"]) == list(runs)
    assert set(report["against"][first]) == set(others)


# learning


class _Scores:
    """A watcher that keeps the scores of every decision."""

    def __init__(self) -> None:
        self.logits: dict[DecisionType, list[Tensor]] = {}

    def observed(self, *_: object) -> None:
        pass

    def decided(self, decided: Decided, /) -> None:
        if decided.request.type.learned:
            self.logits.setdefault(decided.request.type, []).append(decided.logits)


@pytest.mark.parametrize("learning", [False, True], ids=["evaluating", "learning"])
@pytest.mark.parametrize("name", ROWS)
def test_decisions_are_scored_alike_while_acting_and_afterwards(
    name: str, learning: bool, setting: Setting
) -> None:
    agent = setting.loud_agent(name).train(learning)
    watcher = _Scores()
    rollout, log = setting.walk(agent, roam(), learning=learning, watcher=watcher)
    outputs = agent.evaluate_actions(rollout, log, setting.environment)
    followed = agent.state_log(setting.environment, setting.read(agent), log.masks, learns=True)
    follow(followed, rollout)
    again = agent.evaluate_actions(rollout, followed, setting.environment)
    assert outputs.logits.keys() == watcher.logits.keys()
    for kind, logits in outputs.logits.items():
        acting = torch.cat(watcher.logits[kind])
        torch.testing.assert_close(logits.detach(), acting, rtol=2e-3, atol=1e-4)
        torch.testing.assert_close(again.logits[kind], logits, rtol=1e-3, atol=1e-4)
        assert logits.requires_grad


@pytest.mark.parametrize("name", ["egp", "duet"])
def test_decision_steps_may_be_scored_in_parts(name: str, setting: Setting) -> None:
    agent = setting.loud_agent(name)
    rollout, log = setting.walk(agent, roam(), learning=True)
    found = []
    for parts in (1, 2, 5):
        agent.score_in_parts = parts
        agent.zero_grad()
        (logits,) = agent.evaluate_actions(rollout, log, setting.environment).logits.values()
        torch.autograd.backward(logits.masked_fill(logits.isinf(), 0.0).square().mean(), retain_graph=True)
        gradient = [weight.grad for weight in agent.parameters() if weight.grad is not None]
        found.append((logits.detach(), gradient))
    for logits, gradient in found[1:]:
        torch.testing.assert_close(logits, found[0][0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(gradient, found[0][1], rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("name", ROWS)
def test_every_parameter_learns(name: str, setting: Setting) -> None:
    """From the losses of the row's stages together; a critic nobody asks learns nothing."""
    preset = small(ROWS[name], dropout=0.0)
    losses = {loss for stage in preset.learning.stages for loss, weight in stage.losses.items() if weight}
    stage = replace(preset.learning.stages[0], losses=dict.fromkeys(losses, 1.0))
    agent = setting.agent(name, dropout=0.0)
    trainer = setting.trainer(agent, preset, stages=(stage,), batch=12, max_decisions=8, max_steps=12)
    trainer.step()
    dead = {
        key
        for key, parameter in agent.network.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    }
    spared = {key for key in dead if key.startswith("critic.") and "a2c" not in losses}
    spared |= dead & _BEGINNING if name in UNUSED else set()
    assert dead == spared


_BEGINNING = {f"encoder.initial_{name}.{kind}" for name in ("hidden", "cell") for kind in ("weight", "bias")}
UNUSED = {"duet-as-published", "pta", "pta-low", "pta-as-published", "pta-low-as-published"}
"""Rows without a recurrent state, which nobody asks how it begins."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_learns_a_tiny_world(name: str, setting: Setting) -> None:
    episodes = setting.episodes.select(range(12))
    agent = setting.agent(name, width=32, dropout=0.0, feature_dropout=0.0)

    def success() -> float:
        return measure(setting.world, agent.walk(episodes).walked, episodes.path).means()["sr"]

    before = success()
    losses = dict(ROWS[name].learning.stages[0].losses) | {"teacher_forcing": 1.0, "student_forcing": 0.3}
    losses["a2c"] *= 0.3
    low_level = not agent.network.follows_reference  # many turns
    learning = replace(ROWS[name].learning, stages=(Stage(losses=losses),))
    iterations, steps = (120, 16) if low_level else (60, 10)
    trainer = replace(setting, episodes=episodes).trainer(
        agent,
        replace(ROWS[name], learning=learning),
        batch=12,
        iterations=iterations,
        learning_rate=0.01,
        max_decisions=steps,
        max_steps=steps + 1,
    )
    found = [trainer.step().losses for _ in range(iterations)]
    assert found[-1]["teacher_forcing"] < 0.3 * found[0]["teacher_forcing"]
    assert success() > max(0.5 if low_level else 0.7, before + 0.2)
