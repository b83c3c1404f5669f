"""One row per experiment: the memory agent, the paper's ablations, the baselines.

A row says everything a run needs but the data folder, the seed and the place to write to. Variants change
their base only where their name says; a test holds them to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, TypeVar

import msgspec

from scenemem.agents.basic import Basic
from scenemem.agents.build import AGENTS, AgentSpec, ModelConfig
from scenemem.agents.ssm import SSM, GlobalSSM, GlobalSSMConfig, LocalSSM, LocalSSMConfig, SSMConfig
from scenemem.agents.walker import WalkConfig
from scenemem.errors import SettingError
from scenemem.learning.objectives import LearningConfig, Stage
from scenemem.registry import Registry

Model = TypeVar("Model")

AGENTS.register("basic", AgentSpec(Basic.build, ModelConfig))
AGENTS.register("ssm", AgentSpec(SSM.build, SSMConfig))
AGENTS.register("ssm-local", AgentSpec(LocalSSM.build, LocalSSMConfig))
AGENTS.register("ssm-global", AgentSpec(GlobalSSM.build, GlobalSSMConfig))


@dataclass(frozen=True)
class DataConfig:
    """What an agent learns from."""

    task: Literal["r2r", "r4r"] = "r2r"
    """which episode files"""
    features: str | None = None
    """name of the feature store; None takes the only one there is"""
    min_count: int = 5
    """words seen less often are unknown"""
    word_vectors: bool = True
    """words begin with the word vectors of the data folder (glove/), where it has any"""


@dataclass(frozen=True)
class SelectionConfig:
    """Which checkpoint of a run is kept as its best."""

    split: str = "dev_unseen"
    """dev_unseen holds out a fixed share of the training buildings; the field's habit is val_unseen"""
    metric: Literal["sr", "spl", "cls", "ndtw", "sdtw"] = "sr"
    """the higher the better"""
    every: int = 400
    """iterations between two validations; a multiple of save_every"""
    save_every: int = 100
    """iterations between two checkpoints"""

    def __post_init__(self) -> None:
        if self.save_every < 1 or self.every < 1 or self.every % self.save_every:
            raise SettingError(
                f"every must be a positive multiple of save_every, got {self.every} and {self.save_every}"
            )


@dataclass(frozen=True)
class Preset(Generic[Model]):
    """A whole experiment."""

    agent: str
    """name of a registered agent"""
    model: Model
    """the settings of that agent"""
    walk: WalkConfig = field(default_factory=WalkConfig)
    data: DataConfig = field(default_factory=DataConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)


def preset_type(agent: str) -> Any:
    """``Preset`` with the settings of a registered agent, for readers and flags.

    Raises:
        UserError: there is no such agent.
    """
    config: Any = AGENTS[agent].config
    return Preset[config]


def with_agent(preset: Preset[Any], agent: str) -> Preset[Any]:
    """A preset with another agent, which keeps the settings that both agents have.

    Raises:
        UserError: there is no such agent.
    """
    config = AGENTS[agent].config
    own = {item.name for item in fields(config)}
    kept = {item.name: getattr(preset.model, item.name) for item in fields(preset.model) if item.name in own}
    return replace(preset, agent=agent, model=config(**kept))


def read_preset(values: Mapping[str, Any]) -> Preset[Any]:
    """A preset from plain values, as files hold it; presets of earlier versions are understood.

    Raises:
        UserError: it names an unknown agent.
        msgspec.ValidationError: it is not a preset.
        KeyError: it names no agent.
    """
    current = dict(values)
    if "memory" in current or "rounds" in current.get("walk", {}):
        current = _from_version_1(current)
    preset: Preset[Any] = msgspec.convert(current, preset_type(current["agent"]))
    return preset


_AGENTS_V1 = {"basic": "basic", "frontier": "ssm", "local": "ssm-local", "anywhere": "ssm-global"}
_MEMORY_V1 = {
    "stream": "node_width",
    "orientation": "orientation_width",
    "weights": "walk_cost",
    "recalls": "restore_state",
    "stop_reads": "stop_from_memory",
    "goes_back": "final_backtrack",
    "revisits": "allow_revisits",
    "read_before": "read_before_update",
}
_LOSSES_V1 = {"teacher": "teacher_forcing", "student": "student_forcing", "reinforce": "a2c"}
_STAGE_V1 = {"name": "mixed", "teacher": 1.0, "student": 0.0, "reinforce": 1.0}
_LIMITS_V1 = {"rounds": "max_decisions", "ticks": "max_steps", "words": "max_words"}


def _from_version_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of runs and weights from before agents had settings of their own."""
    named = values.get("agent", "frontier")
    agent = _AGENTS_V1.get(named, named)
    own = {item.name for item in fields(AGENTS[agent].config)}
    memory = {_MEMORY_V1.get(name, name): value for name, value in values.get("memory", {}).items()}
    model = {**values.get("model", {}), **{name: value for name, value in memory.items() if name in own}}
    learning = {_LIMITS_V1.get(name, name): value for name, value in values.get("learning", {}).items()}
    if "stages" in learning:
        learning["stages"] = [_stage_from_version_1(stage) for stage in learning["stages"]]
    walk = {_LIMITS_V1.get(name, name): value for name, value in values.get("walk", {}).items()}
    rest = {name: value for name, value in values.items() if name in ("data", "selection")}
    return {"agent": agent, "model": model, "walk": walk, "learning": learning, **rest}


def _stage_from_version_1(stage: Mapping[str, Any]) -> dict[str, Any]:
    whole = {**_STAGE_V1, **stage}
    losses = {new: whole.pop(old) for old, new in _LOSSES_V1.items()}
    return {**whole, "losses": {name: weight for name, weight in losses.items() if weight}}


_MIXED = Stage("mixed", losses={"teacher_forcing": 1.0, "student_forcing": 0.3, "a2c": 1.0})
_EVERYDAY: dict[str, Any] = {
    "word_width": 256,
    "width": 256,
    "dropout": 0.3,
    "feature_dropout": 0.2,
}
_OURS: dict[str, Any] = {
    "node_width": 64,
    "orientation_width": 32,
    "restore_state": True,
    "stop_from_memory": True,
    "final_backtrack": True,
}
# an agent that is lost stays lost for long; cutting its walks short saves a third of the time
_LEARNING = LearningConfig(max_decisions=10, max_steps=16, stages=(_MIXED,))

_SSM: Preset[Any] = Preset("ssm", SSMConfig(**_EVERYDAY, **_OURS, hints=True), learning=_LEARNING)
_BASIC: Preset[Any] = Preset("basic", ModelConfig(**_EVERYDAY), learning=_LEARNING)

# back-translation starts from a trained agent: its own instructions count little, described paths more
_AUGMENTED = replace(
    _LEARNING,
    learning_rate=5e-4,
    stages=(
        Stage(
            "augmented",
            losses={"teacher_forcing": 0.2, "student_forcing": 0.3, "a2c": 1.0},
            augmented=0.6,
        ),
    ),
)
_PAPER = LearningConfig(
    iterations=80_000,
    learning_rate=1e-4,
    stages=(
        Stage(
            "mixed",
            losses={"teacher_forcing": 0.2, "student_forcing": 0.2, "a2c": 1.0},
            teacher_frontier=1.0,
        ),
    ),
)

PRESETS: Registry[Preset[Any]] = Registry("preset")
"""Agents that learn, by name."""

SCOREBOARD = ("seq2seq", "basic", "ssm", "ssm-no-grounding", "ssm-no-reasoning", "ssm-local", "ssm-global")
"""The agents of the scoreboard: the baselines, the memory agent and its four ablations."""


def _r2r_objects(preset: Preset[Any]) -> Preset[Any]:
    """On all training buildings of R2R with object and room features; val_unseen is only watched."""
    return replace(
        preset,
        data=replace(preset.data, features="objects+rooms"),
        learning=replace(preset.learning, iterations=1000),
        selection=replace(preset.selection, split="val_unseen", every=200),
    )


def _described(preset: Preset[Any]) -> Preset[Any]:
    """Goes on from a trained agent with paths described by a speaker beside the instructions of people."""
    stages = tuple(
        replace(stage, name="augmented", losses={**stage.losses, "teacher_forcing": 1.0}, augmented=0.6)
        for stage in preset.learning.stages
    )
    return replace(preset, learning=replace(preset.learning, learning_rate=5e-4, stages=stages))


def _r4r_objects(preset: Preset[Any]) -> Preset[Any]:
    """Twice as long paths, which are to be followed: labels and rewards look at the rest of the path."""
    return replace(
        preset,
        walk=WalkConfig(max_decisions=30, max_steps=80, max_words=160),
        data=replace(preset.data, task="r4r"),
        learning=replace(preset.learning, max_decisions=20, max_steps=32, labels="path"),
        # 45,162 instructions of val_unseen would take longer than the training between two looks
        selection=replace(preset.selection, split="val_seen", metric="sdtw"),
    )


def _with(preset: Preset[Any], **changes: Any) -> Preset[Any]:
    """A preset with other settings of its agent."""
    return replace(preset, model=replace(preset.model, **changes))


def _rows() -> dict[str, Preset[Any]]:
    rows: dict[str, Preset[Any]] = {
        "ssm": _SSM,
        "ssm-no-grounding": _with(_SSM, grounding=False),
        "ssm-no-reasoning": _with(_SSM, reasoning_steps=0),
        "ssm-local": replace(_SSM, agent="ssm-local", model=LocalSSMConfig(**_EVERYDAY)),
        "ssm-global": replace(_SSM, agent="ssm-global", model=GlobalSSMConfig(**_EVERYDAY, **_OURS)),
        "ssm-no-hints": _with(_SSM, hints=False),
        "ssm-no-restore": _with(_SSM, restore_state=False),
        "ssm-no-backtrack": _with(_SSM, final_backtrack=False),
        "ssm-no-stop-from-memory": _with(_SSM, stop_from_memory=False),
        "ssm-paper": replace(_SSM, model=SSMConfig(), learning=_PAPER),
        "ssm-augmented": replace(_SSM, learning=_AUGMENTED),
        "basic": _BASIC,
        "basic-augmented": replace(_BASIC, learning=_AUGMENTED),
        "seq2seq": replace(
            _with(_BASIC, panorama=False),
            learning=replace(_LEARNING, stages=(Stage("student", losses={"student_forcing": 1.0}),)),
        ),
    }
    r2r = {name: _r2r_objects(rows[name]) for name in SCOREBOARD}
    rows |= {f"{name}-r2r-objects": preset for name, preset in r2r.items()}
    rows |= {f"{name}-r2r-objects-augmented": _described(preset) for name, preset in r2r.items()}
    rows["basic-r4r-objects"] = _r4r_objects(r2r["basic"])
    # coming back belongs to these paths
    rows["ssm-r4r-objects"] = _r4r_objects(_with(r2r["ssm"], allow_revisits=True))
    return rows


for _name, _preset in _rows().items():
    PRESETS.register(_name, _preset)
