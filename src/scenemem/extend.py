"""Everything an agent of your own needs, in one import; ``examples/`` shows four of them.

An agent is a module with ``score``; register it with ``AGENTS``, its settings with a row of ``PRESETS``, and
``scenemem train my_module:my_preset`` trains it like any other.
"""

from __future__ import annotations

# "X as X" tells type checkers that X is exported
from scenemem.agents.actions import (
    ActionSpace as ActionSpace,
    Decide as Decide,
    FrontierActions as FrontierActions,
    GlobalActions as GlobalActions,
    Limit as Limit,
    LocalActions as LocalActions,
    MemoryActions as MemoryActions,
    WalkOptions as WalkOptions,
)
from scenemem.agents.agent import (
    Agent as Agent,
    DecisionPoint as DecisionPoint,
    Explanation as Explanation,
    Observations as Observations,
)
from scenemem.agents.basic import Basic as Basic
from scenemem.agents.build import (
    AGENTS as AGENTS,
    AgentSpec as AgentSpec,
    DataSizes as DataSizes,
    MakeUpdater as MakeUpdater,
    ModelConfig as ModelConfig,
    Parts as Parts,
    lstm_parts as lstm_parts,
)
from scenemem.agents.exploring import (
    EXPLORE as EXPLORE,
    EXPLORED as EXPLORED,
    GATE as GATE,
    ExploringActions as ExploringActions,
)
from scenemem.agents.low_level import (
    LOW_LEVEL as LOW_LEVEL,
    LowLevelActions as LowLevelActions,
    action_between as action_between,
)
from scenemem.agents.places import PlaceActions as PlaceActions, RememberingActions as RememberingActions
from scenemem.agents.rollout import (
    ACTION as ACTION,
    FINAL as FINAL,
    FRONTIER as FRONTIER,
    GLOBAL as GLOBAL,
    DecisionRequest as DecisionRequest,
    DecisionType as DecisionType,
    Outputs as Outputs,
    Rollout as Rollout,
)
from scenemem.agents.search import (
    END as END,
    AcceptActions as AcceptActions,
    SearchActions as SearchActions,
    SearchConfig as SearchConfig,
    Searching as Searching,
)
from scenemem.agents.ssm import SSM as SSM, SSMConfig as SSMConfig
from scenemem.agents.walker import LabelRule as LabelRule, WalkConfig as WalkConfig
from scenemem.errors import SettingError as SettingError
from scenemem.features.store import CandidateFeatures as CandidateFeatures, Environment as Environment
from scenemem.learning.auxiliary import (
    MATCHING as MATCHING,
    NEXT_ANGLE as NEXT_ANGLE,
    RETELLING as RETELLING,
    STEP_PROGRESS as STEP_PROGRESS,
)
from scenemem.learning.exploration import (
    GATE_IMITATION as GATE_IMITATION,
    exploration_reward as exploration_reward,
    towards_goal as towards_goal,
)
from scenemem.learning.fidelity import (
    NEGATIVE_ENTROPY as NEGATIVE_ENTROPY,
    PATH as PATH,
    ndtw_reward as ndtw_reward,
)
from scenemem.learning.labels import (
    best_ndtw as best_ndtw,
    low_level as low_level,
    low_level_path as low_level_path,
    reference_index as reference_index,
    shortest_detour as shortest_detour,
)
from scenemem.learning.matching import (
    MATCHED_A2C as MATCHED_A2C,
    MATCHING_CRITIC as MATCHING_CRITIC,
    views_of_walk as views_of_walk,
)
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
from scenemem.learning.progress import PROGRESS_HOPS as PROGRESS_HOPS, PROGRESS_METRES as PROGRESS_METRES
from scenemem.learning.reranking import (
    RANK_PAIRS as RANK_PAIRS,
    ROUTE_NUMBERS as ROUTE_NUMBERS,
    route_numbers as route_numbers,
    walked_routes as walked_routes,
)
from scenemem.memory.scene_memory import SceneMemory as SceneMemory
from scenemem.models.attention import (
    attend_panoramas as attend_panoramas,
    dots as dots,
    masked_softmax as masked_softmax,
)
from scenemem.models.encoders import (
    OneWayEncoder as OneWayEncoder,
    TransformerEncoder as TransformerEncoder,
    sinusoids as sinusoids,
)
from scenemem.models.language import InstructionEncoder as InstructionEncoder, Instructions as Instructions
from scenemem.models.modes import evaluating as evaluating
from scenemem.models.panoramic import (
    ActionEmbedding as ActionEmbedding,
    CoGroundedState as CoGroundedState,
    CoGroundedUpdater as CoGroundedUpdater,
    FollowerState as FollowerState,
    FollowerUpdater as FollowerUpdater,
    ProgressMonitor as ProgressMonitor,
    action_taken as action_taken,
    candidate_actions as candidate_actions,
    embedded_candidates as embedded_candidates,
    view_angles as view_angles,
    with_stop_option as with_stop_option,
)
from scenemem.models.places import POSITION as POSITION, SeenPlaces as SeenPlaces
from scenemem.models.planner import Edges as Edges, ProxyPlanner as ProxyPlanner
from scenemem.models.reading import (
    CandidateScore as CandidateScore,
    Critic as Critic,
    MemoryGraph as MemoryGraph,
)
from scenemem.models.recurrent import (
    DropoutMasks as DropoutMasks,
    LSTMUpdater as LSTMUpdater,
    Observation as Observation,
    State as State,
    StateLog as StateLog,
    StateUpdater as StateUpdater,
    untiled as untiled,
)
from scenemem.models.speaker import (
    SpeakerConfig as SpeakerConfig,
    SpeakerNetwork as SpeakerNetwork,
    WordDecoder as WordDecoder,
)
from scenemem.models.telling import (
    SpellingEncoder as SpellingEncoder,
    retelling_loss as retelling_loss,
    spelled as spelled,
)
from scenemem.models.transformer import (
    CrossModalLayer as CrossModalLayer,
    Words as Words,
    attend_known as attend_known,
    cross_layer as cross_layer,
    hidden_bias as hidden_bias,
    keys_and_values as keys_and_values,
    last_of_layer as last_of_layer,
)
from scenemem.presets import (
    PRESETS as PRESETS,
    PUBLISHED as PUBLISHED,
    R4R_LABELS as R4R_LABELS,
    DataConfig as DataConfig,
    Preset as Preset,
    SelectionConfig as SelectionConfig,
)
from scenemem.simulator.panorama import STOP as STOP, Pose as Pose
from scenemem.tasks.episode_set import SUCCESS_METRES as SUCCESS_METRES, EpisodeSet as EpisodeSet
from scenemem.world.graph import ANGLE_WIDTH as ANGLE_WIDTH, NONE as NONE, World as World

__all__ = sorted(name for name in globals() if not name.startswith("_") and name != "annotations")
