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
from scenemem.agents.walker import WalkConfig
from scenemem.errors import SettingError
from scenemem.learning.objectives import LearningConfig, RewardConfig, Stage
from scenemem.registry import Registry
from scenemem.ssm.ablations import GlobalSSM, LocalSSM
from scenemem.ssm.additions import BasicWithEnding, EndingConfig, SSMPlus, SSMPlusConfig
from scenemem.ssm.agent import SSM, GroundedConfig, SSMConfig

Model = TypeVar("Model")

AGENTS.register("basic", AgentSpec(Basic, ModelConfig))
AGENTS.register("basic-ending", AgentSpec(BasicWithEnding, EndingConfig))
AGENTS.register("ssm", AgentSpec(SSM, SSMConfig))
AGENTS.register("ssm-plus", AgentSpec(SSMPlus, SSMPlusConfig))
AGENTS.register("ssm-local", AgentSpec(LocalSSM, GroundedConfig))
AGENTS.register("ssm-global", AgentSpec(GlobalSSM, SSMConfig))


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
    """A preset from plain values, as files hold it.

    Raises:
        UserError: it names an unknown agent.
        msgspec.ValidationError: it is not a preset.
        KeyError: it names no agent.
    """
    preset: Preset[Any] = msgspec.convert(values, preset_type(values["agent"]))
    return preset


_MIXED = Stage("mixed", losses={"teacher_forcing": 1.0, "student_forcing": 0.3, "a2c": 1.0})
_EVERYDAY: dict[str, Any] = {
    "word_width": 256,
    "width": 256,
    "dropout": 0.3,
    "feature_dropout": 0.2,
}
_NARROW: dict[str, Any] = {"node_width": 64, "orientation_width": 32}
_ADDITIONS: dict[str, Any] = {
    "hints": True,
    "restore_state": True,
    "stop_from_memory": True,
    "final_backtrack": True,
}
# section 3.4: the change in distance, a reward at the end "only if it terminated successfully", and as label
# "the node on SSM that is closest to the target location"
_METRES = RewardConfig(quantised=False, failure=0.0)
# an agent that is lost stays lost for long; cutting its walks short saves a third of the time
_BASIC_LEARNING = LearningConfig(max_decisions=10, max_steps=16, stages=(_MIXED,))
_LEARNING = replace(_BASIC_LEARNING, reward=_METRES, labels="nearest")

_SSM: Preset[Any] = Preset("ssm", SSMConfig(**_EVERYDAY, **_NARROW), learning=_LEARNING)
_PLUS: Preset[Any] = Preset(
    "ssm-plus", SSMPlusConfig(**_EVERYDAY, **_NARROW, **_ADDITIONS), learning=_LEARNING
)
_BASIC: Preset[Any] = Preset("basic", ModelConfig(**_EVERYDAY), learning=_BASIC_LEARNING)

# the published experiment; what the paper leaves open is what the code of its baseline does
_PUBLISHED_LEARNING = LearningConfig(
    iterations=80_000,
    optimiser="rmsprop",
    learning_rate=1e-4,
    schedule="constant",
    weight_decay=0.0,
    max_decisions=15,
    max_steps=100,
    labels="nearest",
    reward=_METRES,
    stages=(
        Stage(
            "mixed",
            losses={"teacher_forcing": 0.2, "student_forcing": 0.2, "a2c": 1.0},
            teacher_frontier=1.0,
        ),
    ),
)
_RANDOM_WORDS = DataConfig(word_vectors=False)
_PUBLISHED: Preset[Any] = Preset(
    "ssm", SSMConfig(), WalkConfig(max_decisions=15, max_steps=100), _RANDOM_WORDS, _PUBLISHED_LEARNING
)
_PUBLISHED_BASIC: Preset[Any] = Preset(
    "basic",
    ModelConfig(feature_dropout=0.3),
    WalkConfig(max_decisions=35, max_steps=36),
    _RANDOM_WORDS,
    replace(
        _PUBLISHED_LEARNING,
        max_decisions=35,
        max_steps=36,
        labels="goal",
        reward=RewardConfig(),
        stages=(Stage("mixed", losses={"teacher_forcing": 0.2, "a2c": 1.0}),),
    ),
)

PRESETS: Registry[Preset[Any]] = Registry("preset")
"""Agents that learn, by name."""

R2R_TRACKS = ("captions", "objects", "oracle")
"""The tracks of view features that R2R rows are made on, from strict to privileged."""


def _r2r(preset: Preset[Any], track: str) -> Preset[Any]:
    """On all training buildings of R2R with the features of a track; val_unseen is only watched."""
    return replace(
        preset,
        data=replace(preset.data, features=track),
        learning=replace(preset.learning, iterations=1000),
        selection=replace(preset.selection, split="val_unseen", every=200),
    )


def _described(preset: Preset[Any], own: float = 1.0, **learning: Any) -> Preset[Any]:
    """Goes on from a trained agent with paths described by a speaker beside the instructions of people.

    Args:
        preset: of the trained agent.
        own: weight of teacher forcing on people's instructions; on described paths it is 0.6.
        **learning: other settings of the course.
    """
    stages = tuple(
        replace(
            stage,
            name="augmented",
            losses={**stage.losses, "teacher_forcing": own},
            augmented={**stage.losses, "teacher_forcing": 0.6},
        )
        for stage in preset.learning.stages
    )
    return replace(preset, learning=replace(preset.learning, stages=stages, **learning))


def _r4r(preset: Preset[Any]) -> Preset[Any]:
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


def _everyday() -> dict[str, Preset[Any]]:
    """The agents of the scoreboard: the paper's with its ablations and readings, additions, the baselines."""
    local, extended = with_agent(_SSM, "ssm-local"), with_agent(_SSM, "ssm-plus")
    return {
        "ssm": _SSM,
        # table 3
        "ssm-no-grounding": _with(_SSM, grounding=False),
        "ssm-no-reasoning": _with(_SSM, reasoning_steps=0),
        "ssm-local": local,
        "ssm-global": with_agent(_SSM, "ssm-global"),
        # where the text can be read in two ways, or was read otherwise by others
        "ssm-unvisited-views": _with(_SSM, views="unvisited"),
        "ssm-all-views": _with(_SSM, views="all"),
        "ssm-all-edges": _with(_SSM, edges="all"),
        "ssm-all-edges-and-views": _with(_SSM, edges="all", views="all"),
        "ssm-way-labels": replace(_SSM, learning=replace(_LEARNING, labels="goal")),
        "ssm-sign-rewards": replace(_SSM, learning=replace(_LEARNING, reward=RewardConfig())),
        "ssm-local-revisits": _with(local, allow_revisits=True),
        # one addition each
        "ssm-stay": _with(extended, stay_score=True),
        "ssm-hints": _with(extended, hints=True),
        "ssm-restore": _with(extended, restore_state=True),
        "ssm-stop-from-memory": _with(extended, stop_from_memory=True),
        "ssm-backtrack": _with(extended, final_backtrack=True),
        "ssm-hop-prior": _with(extended, hop_prior=True),
        # all of them, and all but one
        "ssm-plus": _PLUS,
        "ssm-plus-no-hints": _with(_PLUS, hints=False),
        "ssm-plus-no-restore": _with(_PLUS, restore_state=False),
        "ssm-plus-no-backtrack": _with(_PLUS, final_backtrack=False),
        "ssm-plus-no-stop-from-memory": _with(_PLUS, stop_from_memory=False),
        "ssm-plus-no-reasoning": _with(_PLUS, reasoning_steps=0),
        "basic": _BASIC,
        "basic-backtrack": _with(with_agent(_BASIC, "basic-ending"), final_backtrack=True),
        "basic-hop-prior": _with(with_agent(_BASIC, "basic-ending"), hop_prior=True),
        "seq2seq": replace(
            _with(_BASIC, panorama=False),
            learning=replace(_BASIC_LEARNING, stages=(Stage("student", losses={"student_forcing": 1.0}),)),
        ),
    }


def _published() -> dict[str, Preset[Any]]:
    """The paper's experiment and that of its baseline: width, losses, optimiser and steps as they say."""
    basic = _with(_PUBLISHED_BASIC, feature_dropout=0.4)
    return {
        "ssm-as-published": _PUBLISHED,
        "ssm-as-published-augmented": _described(_PUBLISHED, own=0.2, iterations=200_000),
        "basic-as-published": _PUBLISHED_BASIC,
        "basic-as-published-augmented": _described(basic, own=0.2, iterations=200_000),
    }


def _rows() -> dict[str, Preset[Any]]:
    everyday = _everyday()
    rows = {
        **everyday,
        **_published(),
        # back-translation goes on from a trained agent
        **{
            f"{name}-augmented": _described(everyday[name], own=0.2, learning_rate=5e-4)
            for name in ("ssm", "ssm-plus", "basic")
        },
    }
    for track in R2R_TRACKS:
        rows |= {f"{name}-r2r-{track}": _r2r(preset, track) for name, preset in everyday.items()}
        for name in ("ssm", "ssm-plus", "basic"):
            row = rows[f"{name}-r2r-{track}"]
            rows[f"{name}-r2r-{track}-augmented"] = _described(row, learning_rate=5e-4)
            # coming back belongs to the paths of R4R; the basic agent always may
            rows[f"{name}-r4r-{track}"] = _r4r(row if name == "basic" else _with(row, allow_revisits=True))
    return rows


for _name, _preset in _rows().items():
    PRESETS.register(_name, _preset)
