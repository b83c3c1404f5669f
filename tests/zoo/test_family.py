"""The family as a table: every system is short, made of public names, and lives by the ordinary commands."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scenemem import zoo
from scenemem.agents.agent import Agent
from scenemem.agents.walker import take_best
from scenemem.errors import SettingError, UserError
from scenemem.evaluation.metrics import measure
from scenemem.learning.objectives import LABEL_RULES, Stage
from scenemem.presets import PRESETS, R4R_LABELS, Overlays, overlaid
from scenemem.registry import load_plugin
from scenemem.runs.folder import RunFolder
from tests.commands.helpers import typed
from tests.zoo.helpers import Setting, imported_by, roam, small, small_settings

SYSTEMS = zoo.systems()
ROWS = {**zoo.rows()}
for _system in SYSTEMS.values():
    ROWS |= {f"{name}-as-published": preset for name, preset in _system.AS_PUBLISHED.items()}
LIMITS = {
    **dict.fromkeys(("oaam", "auxrn", "e-dropout"), (35, 36)),
    **dict.fromkeys(("student-forcing", "rpa"), (20, 21)),
    "duet": (15, 60),
    "egp": (10, 40),
    "active-perception": (15, 200),
}
"""Decisions and steps of published walks to learn from; the others have 10 and 11."""
LONGEST = {"duet": 400, "egp": 310}
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    zoo.register()


def test_names_are_registered_once(tmp_path: Path) -> None:
    zoo.register()
    assert {name: PRESETS[name] for name in zoo.rows()} == zoo.rows()
    file = tmp_path / "mine.py"
    lines = "from scenemem.extend import PRESETS", "PRESETS.register('regretful', PRESETS['basic'])"
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(
        UserError, match="there is a preset 'regretful' already; register yours under another"
    ):
        load_plugin(str(file))


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_a_short_file_with_a_shared_and_a_published_row(name: str) -> None:
    system, file = SYSTEMS[name], Path(str(SYSTEMS[name].__file__))
    assert {name} <= system.AS_PUBLISHED.keys() <= system.ROWS.keys()
    assert all(row.startswith(name) for row in system.ROWS)
    basic, own = PRESETS["basic"], system.ROWS[name]
    assert (own.data, own.selection) == (basic.data, basic.selection)
    for setting in ("word_width", "width", "dropout", "feature_dropout"):
        assert getattr(own.model, setting) == getattr(basic.model, setting), setting
    for setting in ("iterations", "batch", "learning_rate", "weight_decay", "clip"):
        assert getattr(own.learning, setting) == getattr(basic.learning, setting), setting
    learning = system.AS_PUBLISHED[name].learning
    assert (learning.max_decisions, learning.max_steps) == LIMITS.get(name, (10, 11))
    # it uses only what is public, and has its place on the page of the family
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LONGEST.get(name, 250)
    for module in imported_by(file):
        package = module.partition(".")[0]
        public = module == "scenemem.extend" or module.startswith("scenemem.zoo.")
        assert public or package == "torch" or package in sys.stdlib_module_names, module
    page = (DOCS / "family.md").read_text(encoding="utf-8")
    assert f"`zoo/{file.name}`" in page
    assert f"scenemem train {name}" in page


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
    low_level = dict.fromkeys(("rpa", "student-forcing"), "low_level_path")
    graphs = dict.fromkeys(("egp", "egp-revisits"), "best_ndtw")
    assert {"rcm": "goal", **graphs, **low_level} == R4R_LABELS


# commands


def _train(name: str, data: Path, out: Path) -> int:
    """Train a small network of a row by the ordinary command."""
    row = name.removesuffix("-as-published")
    words: list[object] = ["--data", data, "--out", out, "--no-replays", *SHORT]
    for setting, value in small_settings(ROWS[name]).items():
        words += [f"--model.{setting.replace('_', '-')}", value]
    if row != name:
        words += ["--recipe", "published"]
    if any(stage.augmented for stage in ROWS[name].learning.stages):
        words += ["--augment", data / "r2r" / "R2R_train.json"]
    return typed("train", row, *words)


SHORT = (
    *("--data.min-count", 1, "--learning.batch", 4, "--iterations", 2),
    *("--selection.every", 2, "--selection.save-every", 1, "--walk.max-steps", 12),
)


@pytest.fixture(scope="module")
def runs(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every row trained by the ordinary command."""
    root = tmp_path_factory.mktemp("family")
    for name in ROWS:
        assert _train(name, tiny_trainable, root / name) == 0, name
    return {name: root / name for name in ROWS}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_trained_evaluated_and_shown(
    name: str, runs: dict[str, Path], tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    described = RunFolder(runs[name]).describe()
    assert described["name"] == name
    assert not described.get("plugins"), "the family belongs to the package"
    assert [line["iteration"] for line in RunFolder(runs[name]).logged()] == [1, 2]
    assert typed("eval", runs[name], "--data", tiny_trainable, "--json") == 0
    assert json.loads(capsys.readouterr().out)["n"] > 0
    page = tmp_path / "page.html"
    words = ("view", runs[name], "--data", tiny_trainable, "--episode", "2000_0", "--out", page)
    assert typed(*words) == 0
    assert "Walk from" in page.read_text(encoding="utf-8")


# settings


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("active-perception", {"depth": -1}, "depth must be 0 or more, got -1"),
    ("active-perception", {"budget": -2}, "budget must be 0 or more, got -2"),
    ("duet", {"map_width": 30, "heads": 4}, "map_width must be even and a multiple of heads, got 30"),
    ("duet", {"layers": 0}, "layers must be 1 or more, got 0"),
    ("egp", {"proxies": 0}, "proxies must be 1 or more, got 0"),
    ("pta", {"map_width": 34, "heads": 4}, "map_width must be even and a multiple of heads, got 34"),
    ("pta", {"width": 6, "heads": 4, "text_layers": 1}, "width must be a multiple of the 4 heads, got 6"),
    ("pta", {"history": 0}, "history must be 1 or more, got 0"),
    ("rcm", {"delta": -1.0}, "delta must be 0 or more, got -1.0"),
    ("rcm", {"action_width": 0}, "action_width must be 1 or more, got 0"),
    ("rpa", {"look_aheads": 0}, "look_aheads must be 1 or more, got 0"),
    ("self-monitoring", {"action_width": -1}, "action_width must be 1 or more, got -1"),
    ("speaker-follower", {"action_width": -3}, "action_width must be 1 or more, got -3"),
]


@pytest.mark.parametrize(("name", "settings", "message"), REFUSED)
def test_impossible_settings_are_refused(
    name: str, settings: dict[str, Any], message: str, setting: Setting
) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        setting.agent(name, **settings)


# walking


@pytest.mark.parametrize("name", ROWS)
def test_an_episode_walks_alike_whatever_walks_beside_it(name: str, setting: Setting) -> None:
    agent = setting.walker(name, 8, 30, ROWS[name].walk.max_words)
    whole, few = (agent.walk(setting.episodes, at_once=count).walked for count in (None, 4))
    assert torch.equal(few, whole)


@pytest.mark.parametrize(
    ("name", "restored"),
    [
        ("active-perception", {True, False}),  # hops and ways back
        ("fast-long", {True}),
        ("duet", {True}),
        ("egp", {False}),
    ],
)
def test_coming_back_restores_the_state_or_updates_it(
    name: str, restored: set[bool], setting: Setting
) -> None:
    """Where it is restored, what is decided at a place does not depend on the detour."""
    agent = setting.loud(Agent, name)
    walk = setting.walk(agent, take_best if name == "fast-long" else roam(2))
    known: dict[tuple[int, int], torch.Tensor] = {}
    found = set()
    for episode, place, state in walk.arrivals():
        if (episode, place) in known:
            found.add(torch.equal(known[episode, place], state))
        known[episode, place] = state
    assert found == restored


# learning


@pytest.mark.parametrize("name", ROWS)
def test_every_parameter_learns(name: str, setting: Setting) -> None:
    """From the losses of the row's stages together; a critic without a loss learns nothing."""
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
UNUSED = {"duet-as-published", "pta", "pta-as-published"}
"""Rows without a recurrent state, which does not begin with anything."""


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_learns_a_tiny_world(name: str, setting: Setting) -> None:
    episodes = setting.episodes.select(range(12))
    agent = setting.agent(name, width=32, dropout=0.0, feature_dropout=0.0)

    def success() -> float:
        return measure(setting.world, agent.walk(episodes).walked, episodes.path).means()["sr"]

    before = success()
    losses = dict(ROWS[name].learning.stages[0].losses) | {"teacher_forcing": 1.0, "student_forcing": 0.3}
    losses["a2c"] *= 0.3
    # agents that turn and step take many turns
    iterations, steps, least = (80, 10, 0.7) if agent.network.follows_reference else (120, 16, 0.5)
    course = {"iterations": iterations, "max_decisions": steps, "max_steps": steps + 1}
    trainer = replace(setting, episodes=episodes).trainer(
        agent, ROWS[name], stages=(Stage(losses=losses),), batch=12, learning_rate=0.01, **course
    )
    found = [trainer.step().losses["teacher_forcing"] for _ in range(iterations)]
    assert found[-1] < 0.3 * found[0]
    assert success() > max(least, before + 0.2)
