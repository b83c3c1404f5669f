"""Everything an agent of your own needs, in one import; ``examples/`` shows four of them.

An agent is a module with ``score``; register it with ``AGENTS``, its settings with a row of ``PRESETS``, and
``scenemem train my_module:my_preset`` trains it like any other.
"""

from __future__ import annotations

from scenemem.agents.actions import (
    ActionSpace,
    Decide,
    FrontierActions,
    GlobalActions,
    Limit,
    LocalActions,
    MemoryActions,
    WalkOptions,
)
from scenemem.agents.agent import Agent, DecisionPoint, Explanation, Observations
from scenemem.agents.basic import Basic
from scenemem.agents.build import AGENTS, AgentSpec, DataSizes, MakeUpdater, ModelConfig, Parts, lstm_parts
from scenemem.agents.rollout import (
    ACTION,
    FINAL,
    FRONTIER,
    GLOBAL,
    DecisionRequest,
    DecisionType,
    Outputs,
    Rollout,
)
from scenemem.agents.ssm import SSM, SSMConfig
from scenemem.agents.walker import LabelRule, WalkConfig
from scenemem.features.store import CandidateFeatures, Environment
from scenemem.learning.objectives import (
    LABEL_RULES,
    LOSSES,
    REWARDS,
    LearningConfig,
    LossContext,
    RewardConfig,
    Stage,
    loss,
)
from scenemem.memory.scene_memory import SceneMemory
from scenemem.models.attention import dots, masked_softmax
from scenemem.models.language import InstructionEncoder, Instructions
from scenemem.models.reading import Critic, MemoryGraph
from scenemem.models.recurrent import DropoutMasks, LSTMUpdater, Observation, State, StateUpdater, untiled
from scenemem.presets import PRESETS, DataConfig, Preset, SelectionConfig
from scenemem.simulator.panorama import STOP, Pose
from scenemem.tasks.episode_set import SUCCESS_METRES, EpisodeSet
from scenemem.world.graph import NONE, World

__all__ = [
    "ACTION",
    "AGENTS",
    "FINAL",
    "FRONTIER",
    "GLOBAL",
    "LABEL_RULES",
    "LOSSES",
    "NONE",
    "PRESETS",
    "REWARDS",
    "SSM",
    "STOP",
    "SUCCESS_METRES",
    "ActionSpace",
    "Agent",
    "AgentSpec",
    "Basic",
    "CandidateFeatures",
    "Critic",
    "DataConfig",
    "DataSizes",
    "Decide",
    "DecisionPoint",
    "DecisionRequest",
    "DecisionType",
    "DropoutMasks",
    "Environment",
    "EpisodeSet",
    "Explanation",
    "FrontierActions",
    "GlobalActions",
    "InstructionEncoder",
    "Instructions",
    "LSTMUpdater",
    "LabelRule",
    "LearningConfig",
    "Limit",
    "LocalActions",
    "LossContext",
    "MakeUpdater",
    "MemoryActions",
    "MemoryGraph",
    "ModelConfig",
    "Observation",
    "Observations",
    "Outputs",
    "Parts",
    "Pose",
    "Preset",
    "RewardConfig",
    "Rollout",
    "SSMConfig",
    "SceneMemory",
    "SelectionConfig",
    "Stage",
    "State",
    "StateUpdater",
    "WalkConfig",
    "WalkOptions",
    "World",
    "dots",
    "loss",
    "lstm_parts",
    "masked_softmax",
    "untiled",
]
