"""An auxiliary head and its loss: the paper's agent with the progress monitor of Self-Monitoring (Ma 2019).

One head, one loss function, one preset row. The head guesses how much of the way to the goal is done,

    p_t = tanh(W_2 relu(W_1 h_t)),  target (d_0 - d_t) / d_0, and 1 within 3 m of the goal,

d being metres to the goal. Train it with:

    scenemem train examples/progress_monitor.py:ssm-progress --iterations 300

Shape letters: B episodes, T steps, X observations.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from scenemem.extend import (
    AGENTS,
    PRESETS,
    SSM,
    SUCCESS_METRES,
    AgentSpec,
    DataSizes,
    LossContext,
    Observations,
    Rollout,
    SSMConfig,
    loss,
)


class MonitoredSSM(SSM):
    """The paper's agent, which also says how far it has come."""

    def __init__(self, config: SSMConfig, sizes: DataSizes) -> None:
        super().__init__(config, sizes)
        width = config.width
        self.monitor = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1), nn.Tanh())

    def heads(self, observations: Observations) -> dict[str, Tensor]:
        """The critic's value, and the progress: (X,) each"""
        progress = self.monitor(observations.state.hidden).squeeze(-1)
        return {**super().heads(observations), "progress": progress}


@loss("progress", walks="student")
def progress_loss(rollout: Rollout, context: LossContext) -> Tensor:
    """Squared error of the progress, averaged over all steps of the agent's own walks."""
    goal = context.episodes.goal.unsqueeze(1)
    metres = context.world.geodesic(rollout.viewpoint, goal)  # (B, T)
    target = progress_target(metres).to(rollout.heads["progress"])
    error = (rollout.heads["progress"] - target).square()
    return error[rollout.alive].mean()


def progress_target(metres: Tensor) -> Tensor:
    """The share of the way that is done; may be negative.  metres: (B, T) to the goal  ->  (B, T)"""
    start = metres[:, :1].clamp_min(1e-6)
    return torch.where(metres < SUCCESS_METRES, 1.0, (start - metres) / start)


AGENTS.register("ssm-progress", AgentSpec(MonitoredSSM, SSMConfig))

_BASE = PRESETS["ssm"]
_STAGE = _BASE.learning.stages[0]
PRESETS.register(
    "ssm-progress",
    replace(
        _BASE,
        agent="ssm-progress",
        learning=replace(
            _BASE.learning, stages=(replace(_STAGE, losses={**_STAGE.losses, "progress": 0.5}),)
        ),
    ),
)
