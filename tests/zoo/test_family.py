"""The family as a table: every system is short, made of public names, and lives by the ordinary commands."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from scenemem import zoo
from scenemem.agents.agent import Agent
from scenemem.agents.build import DataSizes, ModelConfig
from scenemem.agents.walker import TrainedAgent, take_best
from scenemem.errors import SettingError, UserError
from scenemem.evaluation.metrics import measure
from scenemem.learning.objectives import LABEL_RULES, Stage
from scenemem.presets import PRESETS, R4R_LABELS, Overlays, overlaid
from scenemem.registry import load_plugin
from scenemem.runs.folder import RunFolder
from scenemem.zoo.active_perception import ActiveConfig
from scenemem.zoo.duet import DuetConfig
from scenemem.zoo.egp import EGPConfig
from scenemem.zoo.encoders import TransformerEncoder
from scenemem.zoo.pta import PTAConfig
from scenemem.zoo.rcm import RCMConfig
from scenemem.zoo.rpa import RPAConfig
from scenemem.zoo.self_monitoring import SelfMonitoringConfig
from scenemem.zoo.speaker_follower import FollowerConfig
from tests.commands.helpers import typed
from tests.zoo.helpers import Setting, imported_by, roam, small, small_settings

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
    used = imported_by(file)
    ours = {module for module in used if module.startswith("scenemem")}
    assert all(module == "scenemem.extend" or module.startswith("scenemem.zoo.") for module in ours), ours
    others = {module.partition(".")[0] for module in used} - {"scenemem", "torch"}
    assert others <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_page_of_the_family_names_every_system(name: str) -> None:
    page = (DOCS / "family.md").read_text(encoding="utf-8")
    stem = Path(str(SYSTEMS[name].__file__)).name
    assert f"`zoo/{stem}`" in page
    assert f"scenemem train {name}" in page


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
    assert [line["iteration"] for line in RunFolder(runs[name]).logged()] == [1, 2]
    assert typed("eval", runs[name], "--data", tiny_trainable, "--json") == 0
    assert json.loads(capsys.readouterr().out)["n"] > 0
    page = tmp_path / "page.html"
    words = ("view", runs[name], "--data", tiny_trainable, "--episode", "2000_0", "--out", page)
    assert typed(*words) == 0
    assert "Walk from" in page.read_text(encoding="utf-8")


# settings


REFUSED: dict[str, Callable[[], object]] = {
    "depth must be 0 or more, got -1": lambda: ActiveConfig(depth=-1),
    "budget must be 0 or more, got -2": lambda: ActiveConfig(budget=-2),
    "map_width must be even and a multiple of heads, got 30": lambda: DuetConfig(map_width=30),
    "layers must be 1 or more, got 0": lambda: DuetConfig(layers=0),
    "proxies must be 1 or more, got 0": lambda: EGPConfig(proxies=0),
    "map_width must be even and a multiple of heads, got 34": lambda: PTAConfig(map_width=34),
    "history must be 1 or more, got 0": lambda: PTAConfig(history=0),
    "delta must be 0 or more, got -1.0": lambda: RCMConfig(delta=-1.0),
    "action_width must be 1 or more, got 0": lambda: RCMConfig(action_width=0),
    "look_aheads must be 1 or more, got 0": lambda: RPAConfig(look_aheads=0),
    "tries must be 1 or more, got 0": lambda: SelfMonitoringConfig(tries=0),
    "action_width must be 1 or more, got -1": lambda: SelfMonitoringConfig(action_width=-1),
    "action_width must be 1 or more, got -3": lambda: FollowerConfig(action_width=-3),
    "width must be a multiple of the 4 heads, got 6": (
        lambda: TransformerEncoder(ModelConfig(width=6), DataSizes(9, 2), layers=1, heads=4)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_impossible_settings_are_refused(message: str) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        REFUSED[message]()


# walking


@pytest.mark.parametrize("name", ROWS)
def test_an_episode_walks_alike_whatever_walks_beside_it(name: str, setting: Setting) -> None:
    preset = ROWS[name]
    limits = replace(preset.walk, max_decisions=8, max_steps=30)
    agent = TrainedAgent(setting.loud(Agent, name), setting.environment, setting.vocabulary, limits)
    whole, few = (agent.walk(setting.episodes, at_once=count).walked for count in (None, 4))
    assert torch.equal(few, whole)


@pytest.mark.parametrize(
    ("name", "changes", "restored"),
    [
        ("self-monitoring", {"inference": "progress", "tries": 3}, {True, False}),  # hops and ways back
        ("active-perception", {}, {True, False}),
        ("fast-long", {}, {True}),
        ("duet", {}, {True}),
        ("egp", {}, {False}),
    ],
)
def test_coming_back_restores_the_state_or_updates_it(
    name: str, changes: dict[str, Any], restored: set[bool], setting: Setting
) -> None:
    """Where it is restored, what is decided at a place does not depend on the detour."""
    agent = setting.loud(Agent, name, **changes)
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
UNUSED = {"duet-as-published", "pta", "pta-low", "pta-as-published", "pta-low-as-published"}
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
    low_level = not agent.network.follows_reference  # many turns
    learning = replace(ROWS[name].learning, stages=(Stage(losses=losses),))
    iterations, steps = (120, 16) if low_level else (80, 10)
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
