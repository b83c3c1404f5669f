"""Rows, one per agent: the memory agent, the paper's ablations, the baselines; overlays that go on any row.

A row holds everything a run needs but the data folder, the seed and the place to write to. A variant changes
its base only in what it is named after; a test checks that. An overlay (features, task, recipe, described
paths) changes the settings that belong to it, by the same rule for every row, those of plugins included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, Generic, Literal, TypeVar, cast, get_args

import msgspec

from scenemem.agents.agent import Basic
from scenemem.agents.build import AGENTS, AgentSpec, ModelConfig
from scenemem.agents.walker import LONGEST, WalkConfig
from scenemem.errors import SettingError, UserError
from scenemem.formats.features import StoreInfo
from scenemem.learning.objectives import LearningConfig, RewardConfig, Stage
from scenemem.registry import Registry, listed
from scenemem.ssm.ablations import GlobalSSM, LocalSSM
from scenemem.ssm.additions import BasicWithEnding, EndingConfig, SSMPlus, SSMPlusConfig
from scenemem.ssm.agent import SSM
from scenemem.ssm.reading import GroundedConfig, SSMConfig

Model = TypeVar("Model")
Task = Literal["r2r", "r4r"]
Recipe = Literal["everyday", "published"]

AGENTS.register("basic", AgentSpec(Basic, ModelConfig))
AGENTS.register("basic-ending", AgentSpec(BasicWithEnding, EndingConfig))
AGENTS.register("ssm", AgentSpec(SSM, SSMConfig))
AGENTS.register("ssm-plus", AgentSpec(SSMPlus, SSMPlusConfig))
AGENTS.register("ssm-local", AgentSpec(LocalSSM, GroundedConfig))
AGENTS.register("ssm-global", AgentSpec(GlobalSSM, SSMConfig))


@dataclass(frozen=True)
class DataConfig:
    """What an agent learns from."""

    task: Task = "r2r"
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
    """iterations between two validations, each of which is followed by a checkpoint"""
    save_every: int = 100
    """iterations between two checkpoints, at the most"""

    def __post_init__(self) -> None:
        for name in ("every", "save_every"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be 1 or more, got {getattr(self, name)}")


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
    """``Preset`` with the settings of a registered agent, for readers and flags."""
    config: Any = AGENTS[agent].config
    return Preset[config]


def with_agent(preset: Preset[Any], agent: str) -> Preset[Any]:
    """A preset with another agent, which keeps the settings that both agents have."""
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
    return cast(Preset[Any], msgspec.convert(values, preset_type(values["agent"])))


_MIXED = Stage("mixed", losses={"teacher_forcing": 1.0, "student_forcing": 0.3, "a2c": 1.0})
_STUDENT = Stage("student", losses={"student_forcing": 1.0})
_EVERYDAY: dict[str, Any] = {"word_width": 256, "width": 256, "dropout": 0.3, "feature_dropout": 0.2}
_NARROW: dict[str, Any] = {"node_width": 64, "orientation_width": 32}
_ADDITIONS = ("hints", "restore_state", "stop_from_memory", "final_backtrack")
# section 3.4: the change in distance, a reward at the end "only if it terminated successfully", and as label
# "the node on SSM that is closest to the target location"
_METRES = RewardConfig(quantised=False, failure=0.0)
# an agent that is lost stays lost for long; cutting its walks short saves a third of the time
_BASIC_LEARNING = LearningConfig(max_decisions=10, max_steps=16, stages=(_MIXED,))
_LEARNING = replace(_BASIC_LEARNING, reward=_METRES, labels="nearest")

_SSM: Preset[Any] = Preset("ssm", SSMConfig(**_EVERYDAY, **_NARROW), learning=_LEARNING)
_BASIC: Preset[Any] = Preset("basic", ModelConfig(**_EVERYDAY), learning=_BASIC_LEARNING)

_PUBLISHED_LOSSES = {"teacher_forcing": 0.2, "student_forcing": 0.2, "a2c": 1.0}
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
    stages=(Stage("mixed", losses=_PUBLISHED_LOSSES, teacher_frontier=1.0),),
)
_RANDOM_WORDS = DataConfig(word_vectors=False)
_PUBLISHED_SSM: Preset[Any] = Preset(
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


def _with(preset: Preset[Any], **changes: Any) -> Preset[Any]:
    """A preset with other settings of its agent."""
    return replace(preset, model=replace(preset.model, **changes))


def _learning(preset: Preset[Any], **changes: Any) -> Preset[Any]:
    """A preset that learns in another way."""
    return replace(preset, learning=replace(preset.learning, **changes))


def _rows(ssm: Preset[Any], basic: Preset[Any]) -> dict[str, Preset[Any]]:
    """The paper's agent with its ablations and readings, our additions, the baselines; in one recipe."""
    local, extended = with_agent(ssm, "ssm-local"), with_agent(ssm, "ssm-plus")
    ending = with_agent(basic, "basic-ending")
    plus = _with(extended, **dict.fromkeys(_ADDITIONS, True))
    return {
        "ssm": ssm,
        # table 3
        "ssm-no-grounding": _with(ssm, grounding=False),
        "ssm-no-reasoning": _with(ssm, reasoning_steps=0),
        "ssm-local": local,
        "ssm-global": with_agent(ssm, "ssm-global"),
        # where the text can be read in two ways, or was read otherwise by others
        "ssm-unvisited-views": _with(ssm, views="unvisited"),
        "ssm-all-views": _with(ssm, views="all"),
        "ssm-all-edges": _with(ssm, edges="all"),
        "ssm-all-edges-and-views": _with(ssm, edges="all", views="all"),
        "ssm-way-labels": _learning(ssm, labels="goal"),
        "ssm-sign-rewards": _learning(ssm, reward=RewardConfig()),
        "ssm-local-revisits": _with(local, allow_revisits=True),
        # one addition each
        "ssm-stay": _with(extended, stay_score=True),
        "ssm-hints": _with(extended, hints=True),
        "ssm-restore": _with(extended, restore_state=True),
        "ssm-stop-from-memory": _with(extended, stop_from_memory=True),
        "ssm-backtrack": _with(extended, final_backtrack=True),
        "ssm-hop-prior": _with(extended, hop_prior=True),
        # all of them, and all but one
        "ssm-plus": plus,
        "ssm-plus-no-hints": _with(plus, hints=False),
        "ssm-plus-no-restore": _with(plus, restore_state=False),
        "ssm-plus-no-backtrack": _with(plus, final_backtrack=False),
        "ssm-plus-no-stop-from-memory": _with(plus, stop_from_memory=False),
        "ssm-plus-no-reasoning": _with(plus, reasoning_steps=0),
        "basic": basic,
        "basic-backtrack": _with(ending, final_backtrack=True),
        "basic-hop-prior": _with(ending, hop_prior=True),
        "seq2seq": _learning(_with(basic, panorama=False), stages=(_STUDENT,)),
    }


def _command(name: str) -> str | None:
    """The command for the name of results; None when it is not a row with overlays."""
    found = _RESULTS.fullmatch(name)
    if found is None or found["row"] not in PRESETS:
        return None
    given = {"features": found["features"]} if found["features"] else {}
    given |= {"task": "r4r"} if found["task"] == "r4r" else {}
    given |= {"recipe": "published"} if found["published"] else {}
    given |= {"speaker": "RUN"} if found["described"] or found["at_end"] else {}
    flags = (f"--{what} {value}" for what, value in given.items())
    command = " ".join(["scenemem train", found["row"], *flags])
    python = ", ".join([repr(found["row"]), *(f"{what}={value!r}" for what, value in given.items())])
    return f"features, tasks and recipes are flags of a row: {command} (in Python: sm.train({python}))"


_RESULTS = re.compile(
    "(?P<row>.+?)(?P<described>-augmented)?(?P<published>-as-published)?"
    "(-(?P<task>r2r|r4r)(-(?P<features>.+?))?)?(?P<at_end>-augmented)?"
)

PRESETS: Registry[Preset[Any]] = Registry("preset", _rows(_SSM, _BASIC), advice=_command)
"""Agents that learn, by name."""

PUBLISHED: Registry[Preset[Any]] = Registry("published recipe", _rows(_PUBLISHED_SSM, _PUBLISHED_BASIC))
"""Rows with the numbers of their publication, by name of the row."""

R4R_LABELS: Registry[str] = Registry("label rule on R4R")
"""The label rules of rows on R4R; a row that is not here follows the path instead of heading for the goal."""

R2R_TRACKS = ("captions", "objects", "oracle")
"""The stores of view features whose recipe is the scoreboard's, from strict to privileged."""

WIDE = 512
"""Columns from which on a store counts as the output of an image encoder."""


@dataclass(frozen=True)
class Overlays:
    """What a row learns from, and by which recipe; each chooses the settings that belong to it."""

    features: str | None = None
    """a feature store, with the recipe for its width; a published file (.tsv, .hdf5) is converted once"""
    task: Task | None = None
    """r2r, or r4r: walks twice as long; labels, rewards and selection follow the path"""
    recipe: Recipe | None = None
    """everyday, or published: widths, losses, optimiser and steps of the publication"""

    def __post_init__(self) -> None:
        for name, kinds in (("task", Task), ("recipe", Recipe)):
            if getattr(self, name) not in (None, *get_args(kinds)):
                expected = " or ".join(get_args(kinds))
                raise SettingError(f"{name} must be {expected}, got {getattr(self, name)!r}")

    def changed_by(self, other: Overlays) -> Overlays:
        """These, where the other ones name nothing."""
        return Overlays(*(getattr(other, item.name) or getattr(self, item.name) for item in fields(Overlays)))

    def results_name(self, row: str, *, described: bool = False) -> str:
        """What results of a row with these overlays are called."""
        published = "-as-published" if self.recipe == "published" else ""
        task = f"-{self.task or 'r2r'}" if self.features or self.task == "r4r" else ""
        features = f"-{self.features}" if self.features else ""
        return f"{row}{published}{task}{features}{'-augmented' if described else ''}"


NO_OVERLAYS = Overlays()


def overlaid(
    row: str,
    overlays: Overlays = NO_OVERLAYS,
    *,
    preset: Preset[Any] | None = None,
    store: StoreInfo | None = None,
    described: bool = False,
) -> Preset[Any]:
    """A row with overlays.

    Args:
        row: its name.
        overlays: what to lay over it.
        preset: the row itself, when it is not registered.
        store: what the feature store holds; without it it counts as one of ``R2R_TRACKS``.
        described: learn from described paths as well; a row that does so already stays as it is.

    Raises:
        UserError: there is no such row, or it has no published recipe.
    """
    published = overlays.recipe == "published"
    if published and row not in PUBLISHED:
        there_are = f"these rows have one: {listed(PUBLISHED)}"
        raise UserError(f"the row '{row}' has no published recipe; {there_are}")
    preset = PUBLISHED[row] if published else preset or PRESETS[row]
    # rows are made for the houses, published recipes for any store
    on_r2r = overlays.features and not published and (store is None or store.track != "houses")
    if overlays.features:
        preset = replace(preset, data=replace(preset.data, features=overlays.features))
    if on_r2r:
        preset = _on_r2r(preset, wide=store is not None and store.width >= WIDE)
    if overlays.task:
        preset = replace(preset, data=replace(preset.data, task=overlays.task))
    if overlays.task == "r4r":
        preset = _on_r4r(preset, R4R_LABELS.get(row, None))
    if described and not any(stage.augmented for stage in preset.learning.stages):
        preset = _described(preset, 1.0 if on_r2r else 0.2, published=published)
    return preset


def _on_r2r(preset: Preset[Any], *, wide: bool) -> Preset[Any]:
    """All training buildings of R2R; val_unseen is only watched."""
    if wide and hasattr(preset.model, "feature_dropout"):
        preset = _with(preset, feature_dropout=0.3)  # of image features, as the paper's baseline
    selection = replace(preset.selection, split="val_unseen", every=200)
    return _learning(replace(preset, selection=selection), iterations=1000)


def _on_r4r(preset: Preset[Any], labels: str | None) -> Preset[Any]:
    """Twice as long paths, which are to be followed."""
    walk, learning = preset.walk, preset.learning
    preset = _learning(
        preset,
        max_decisions=2 * learning.max_decisions,
        max_steps=2 * learning.max_steps,
        labels=labels or {"goal": "path", "nearest": "path"}.get(learning.labels, learning.labels),
    )
    if hasattr(preset.model, "allow_revisits"):  # coming back belongs to these paths
        preset = _with(preset, allow_revisits=True)
    return replace(
        preset,
        walk=WalkConfig(*(min(2 * limit, LONGEST) for limit in astuple(walk))),
        # 45,162 instructions of val_unseen would take longer than the training between two looks
        selection=replace(preset.selection, split="val_seen", metric="sdtw"),
    )


def _described(preset: Preset[Any], own: float, *, published: bool) -> Preset[Any]:
    """A second batch of every step is described paths; usually goes on from a trained agent.

    ``own`` is the weight of teacher forcing on annotated instructions; on described paths it is 0.6.
    Published rows change as in E-Dropout's code, others have half of the learning rate.
    """

    def weighted(losses: Mapping[str, float], teacher: float) -> dict[str, float]:
        return {name: teacher if name == "teacher_forcing" else weight for name, weight in losses.items()}

    stages = tuple(
        replace(
            stage,
            name=stage.name if len(preset.learning.stages) > 1 else "augmented",
            losses=weighted(stage.losses, own),
            augmented=weighted(stage.losses, 0.6),
        )
        for stage in preset.learning.stages
    )
    if not published:
        return _learning(preset, stages=stages, learning_rate=5e-4)
    if getattr(preset.model, "feature_dropout", 0.0):
        preset = _with(preset, feature_dropout=0.4)
    return _learning(preset, stages=stages, iterations=preset.learning.iterations * 5 // 2)
