"""One row per experiment: the memory agent, the paper's ablations, the baselines.

A row says everything a run needs but the data folder, the seed and the place to write to. Variants change
their base only where their name says; a test holds them to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from scenemem.agents.build import Kind, WalkConfig
from scenemem.agents.grounded import MemoryConfig
from scenemem.agents.network import NetworkConfig
from scenemem.errors import SettingError
from scenemem.learning.config import LearningConfig, Stage


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
class Preset:
    """A whole experiment."""

    agent: Kind = "frontier"
    """basic: no memory; frontier: the paper's two steps; local and anywhere: its ablations"""
    model: NetworkConfig = field(default_factory=NetworkConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    walk: WalkConfig = field(default_factory=WalkConfig)
    data: DataConfig = field(default_factory=DataConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    selection: SelectionConfig = field(default_factory=SelectionConfig)


_MIXED = Stage("mixed", teacher=1.0, student=0.3, reinforce=1.0)

SSM = Preset(
    agent="frontier",
    model=NetworkConfig(word_width=256, width=256, dropout=0.3, feature_dropout=0.2),
    memory=MemoryConfig(stream=64, orientation=32, hints=True, recalls=True, stop_reads=True, goes_back=True),
    # an agent that is lost stays lost for long; cutting its walks short saves a third of the time
    learning=LearningConfig(rounds=10, ticks=16, stages=(_MIXED,)),
)
BASIC = replace(SSM, agent="basic", memory=MemoryConfig())

# back-translation starts from a trained agent: its own instructions count little, described paths more
_AUGMENTED = LearningConfig(
    rounds=10,
    ticks=16,
    learning_rate=5e-4,
    stages=(Stage("augmented", teacher=0.2, augmented=0.6, student=0.3, reinforce=1.0),),
)

PRESETS: dict[str, Preset] = {
    "ssm": SSM,
    "ssm-no-grounding": replace(SSM, memory=replace(SSM.memory, grounding=False)),
    "ssm-no-reasoning": replace(SSM, memory=replace(SSM.memory, reasoning_steps=0)),
    "ssm-local": replace(SSM, agent="local"),
    "ssm-global": replace(SSM, agent="anywhere"),
    "ssm-no-hints": replace(SSM, memory=replace(SSM.memory, hints=False)),
    "ssm-no-recall": replace(SSM, memory=replace(SSM.memory, recalls=False)),
    "ssm-no-return": replace(SSM, memory=replace(SSM.memory, goes_back=False)),
    "ssm-no-stop-read": replace(SSM, memory=replace(SSM.memory, stop_reads=False)),
    "ssm-paper": replace(
        SSM,
        model=NetworkConfig(word_width=256, width=512, dropout=0.5, feature_dropout=0.4),
        memory=MemoryConfig(stream=None, hints=False),
        learning=LearningConfig(
            iterations=80_000,
            learning_rate=1e-4,
            stages=(Stage("mixed", teacher=0.2, student=0.2, reinforce=1.0, teacher_frontier=1.0),),
        ),
    ),
    "ssm-augmented": replace(SSM, learning=_AUGMENTED),
    "basic": BASIC,
    "basic-augmented": replace(BASIC, learning=_AUGMENTED),
    "seq2seq": replace(
        BASIC,
        model=replace(BASIC.model, panorama=False),
        learning=replace(BASIC.learning, stages=(Stage("student", teacher=0.0, student=1.0, reinforce=0.0),)),
    ),
}
"""Agents that learn, by name."""

SCOREBOARD = ("seq2seq", "basic", "ssm", "ssm-no-grounding", "ssm-no-reasoning", "ssm-local", "ssm-global")
"""The agents of the scoreboard: the baselines, the memory agent and its four ablations."""


def _r2r_objects(preset: Preset) -> Preset:
    """On all training buildings of R2R with object and room features; val_unseen is only watched."""
    return replace(
        preset,
        data=replace(preset.data, features="objects+rooms"),
        learning=replace(preset.learning, iterations=1000),
        selection=replace(preset.selection, split="val_unseen", every=200),
    )


def _described(preset: Preset) -> Preset:
    """Goes on from a trained agent with paths described by a speaker beside the instructions of people."""
    stages = tuple(
        replace(stage, name="augmented", teacher=1.0, augmented=0.6) for stage in preset.learning.stages
    )
    return replace(preset, learning=replace(preset.learning, learning_rate=5e-4, stages=stages))


def _r4r_objects(preset: Preset) -> Preset:
    """Twice as long paths, which are to be followed: labels and rewards look at the rest of the path."""
    return replace(
        preset,
        walk=WalkConfig(rounds=30, ticks=80, words=160),
        data=replace(preset.data, task="r4r"),
        learning=replace(preset.learning, rounds=20, ticks=32, labels="path"),
        # 45,162 instructions of val_unseen would take longer than the training between two looks
        selection=replace(preset.selection, split="val_seen", metric="sdtw"),
    )


_R2R = {name: _r2r_objects(PRESETS[name]) for name in SCOREBOARD}
PRESETS |= {f"{name}-r2r-objects": preset for name, preset in _R2R.items()}
PRESETS |= {f"{name}-r2r-objects-augmented": _described(preset) for name, preset in _R2R.items()}
PRESETS["basic-r4r-objects"] = _r4r_objects(_R2R["basic"])
# coming back belongs to these paths
PRESETS["ssm-r4r-objects"] = _r4r_objects(replace(_R2R["ssm"], memory=replace(SSM.memory, revisits=True)))

SCRIPTED = ("expert", "random", "stop")
"""Agents that need no training, by name."""
