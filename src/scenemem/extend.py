"""Everything an agent of your own needs, in one import; ``examples/`` shows five of them.

An agent is a module with ``score``; register it with ``AGENTS``, its settings with a row of ``PRESETS``, and
``scenemem train my_module:my_preset`` trains it like any other. Another message passing, reader or recurrent
core of the paper's agent is one class, handed to ``SSM``.
"""

from __future__ import annotations

# "X as X" marks X as exported for type checkers
from scenemem.agents.agent import (
    ActionSpace as ActionSpace,
    Arrival as Arrival,
    Decide as Decide,
    Limit as Limit,
    LocalActions as LocalActions,
)
from scenemem.agents.agent import (
    Agent as Agent,
    DecisionPoint as DecisionPoint,
    Explanation as Explanation,
    Observations as Observations,
)
from scenemem.agents.agent import Basic as Basic
from scenemem.agents.build import (
    AGENTS as AGENTS,
    AgentModules as AgentModules,
    AgentSpec as AgentSpec,
    DataSizes as DataSizes,
    MakeUpdater as MakeUpdater,
    ModelConfig as ModelConfig,
    lstm_modules as lstm_modules,
)
from scenemem.agents.rollout import (
    ACTION as ACTION,
    FINAL as FINAL,
    FRONTIER as FRONTIER,
    GLOBAL as GLOBAL,
    DecisionRequest as DecisionRequest,
    DecisionType as DecisionType,
    Rollout as Rollout,
)
from scenemem.agents.walker import (
    LabelRule as LabelRule,
    WalkConfig as WalkConfig,
    evaluating as evaluating,
)
from scenemem.errors import SettingError as SettingError
from scenemem.features.store import CandidateFeatures as CandidateFeatures, Environment as Environment
from scenemem.learning.objectives import (
    LABEL_RULES as LABEL_RULES,
    LOSSES as LOSSES,
    REWARDS as REWARDS,
    LearningConfig as LearningConfig,
    Loss as Loss,
    LossContext as LossContext,
    RewardConfig as RewardConfig,
    Stage as Stage,
    loss as loss,
)
from scenemem.models.navigator import (
    CandidateScore as CandidateScore,
    Critic as Critic,
    DropoutMasks as DropoutMasks,
    InstructionEncoder as InstructionEncoder,
    Instructions as Instructions,
    LSTMUpdater as LSTMUpdater,
    Observation as Observation,
    RolloutInputs as RolloutInputs,
    State as State,
    StateUpdater as StateUpdater,
    attend_panoramas as attend_panoramas,
    dots as dots,
    fold_angles as fold_angles,
    masked_softmax as masked_softmax,
    tiled as tiled,
)
from scenemem.models.speaker import (
    SpeakerConfig as SpeakerConfig,
    SpeakerNetwork as SpeakerNetwork,
    WordDecoder as WordDecoder,
)
from scenemem.presets import (
    PRESETS as PRESETS,
    PUBLISHED as PUBLISHED,
    R4R_LABELS as R4R_LABELS,
    DataConfig as DataConfig,
    Preset as Preset,
    SelectionConfig as SelectionConfig,
)
from scenemem.ssm.ablations import GlobalActions as GlobalActions, slot_confidences as slot_confidences
from scenemem.ssm.additions import SSMPlus as SSMPlus, SSMPlusConfig as SSMPlusConfig
from scenemem.ssm.agent import SSM as SSM
from scenemem.ssm.deciding import FrontierActions as FrontierActions, MemoryActions as MemoryActions
from scenemem.ssm.graph import (
    MemoryGraph as MemoryGraph,
    SceneMemory as SceneMemory,
    WalkOptions as WalkOptions,
)
from scenemem.ssm.reading import (
    Grounded as Grounded,
    MemoryReader as MemoryReader,
    MessagePassing as MessagePassing,
    SSMConfig as SSMConfig,
)
from scenemem.tasks.episode_set import SUCCESS_METRES as SUCCESS_METRES, EpisodeSet as EpisodeSet
from scenemem.world.graph import (
    ANGLE_WIDTH as ANGLE_WIDTH,
    NONE as NONE,
    STOP as STOP,
    Pose as Pose,
    World as World,
)

__all__ = sorted(name for name in globals() if not name.startswith("_") and name != "annotations")
