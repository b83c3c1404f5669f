"""RPA, Look Before You Leap (Wang 2018): a low-level agent that imagines what its actions would lead to.

An environment model guesses the next view and the reward of an action:

    z = W [s, E(a)],   s' = MLP z,   r' = MLP z

Each of J look-aheads imagines m steps from the view ahead s_t with a policy of its own, and an LSTM sums up
what it imagined; the decision reads the state and all look-aheads:

    a' = softmax(W_j [h~_t, s]),   look_j = LSTM([s'_1, r'_1], ..., [s'_m, r'_m])
    logits = MLP [h~_t, look_1, ..., look_J]

The environment model learns the views and rewards that followed (squared error); decisions never change it.
The policy learns from labels and from A2C together. No code was released, the paper was read through notes;
J, m, the imagined policy and the reward's constants are not known (2, 2, own weights, the expected action).
Differences: the model learns on the agent's own walks, in a first stage of the published row, instead of a
randomised teacher's; look-aheads do not imagine stopping; the paper ends s' with a sigmoid, right for its
features (``squash``); a wrong stop costs as much as a right one pays.

Shape letters: X observations, R decision steps, B episodes, T steps, D visual columns, H state width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

import scenemem.extend as ext
from scenemem.zoo.low_level import LOW_LEVEL
from scenemem.zoo.recipes import published, shared
from scenemem.zoo.student_forcing import ACTIONS, TURNS, LowLevelAgent, LowLevelConfig


@dataclass(frozen=True)
class RPAConfig(LowLevelConfig):
    """Settings of RPA."""

    look_aheads: int = 2
    """J, how many futures are imagined; not known"""
    imagined_steps: int = 2
    """m, how far; not known"""
    action_width: int = 128
    """width of the environment model and of a look-ahead"""
    squash: bool = False
    """imagined views lie between 0 and 1, as those of the paper's features"""


class EnvironmentModel(nn.Module):
    """What the next view looks like after an action, and what the action earns."""

    def __init__(self, visual: int, embedded: int, width: int, *, squash: bool) -> None:
        super().__init__()
        self.action = nn.Embedding(ACTIONS, embedded)
        self.enter = nn.Linear(visual + embedded, width)
        self.view = nn.Sequential(nn.ReLU(), nn.Linear(width, visual))
        self.reward = nn.Sequential(nn.ReLU(), nn.Linear(width, 1))
        self.squash = squash

    def forward(self, view: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
        """view: (X, D)  chance: (X, 6) of the actions  ->  the next view (X, D), the reward (X, 1)"""
        inner = self.enter(torch.cat([view, chance @ self.action.weight], dim=-1))
        following: Tensor = self.view(inner)
        return torch.sigmoid(following) if self.squash else following, self.reward(inner)


class LookAhead(nn.Module):
    """One imagined future as a vector."""

    def __init__(self, visual: int, hidden: int, width: int) -> None:
        super().__init__()
        self.policy = nn.Linear(hidden + visual, ACTIONS - 1)  # nothing follows a stop
        self.trajectory = nn.LSTMCell(visual + 1, width)


class RPA(LowLevelAgent):
    """A low-level agent that looks before it leaps."""

    config: RPAConfig

    def __init__(self, config: RPAConfig, sizes: ext.DataSizes) -> None:
        super().__init__(config, sizes)
        width, inner = config.width, config.action_width
        self.model = EnvironmentModel(sizes.visual, config.embedded_action, inner, squash=config.squash)
        self.ahead = nn.ModuleList(LookAhead(sizes.visual, width, inner) for _ in range(config.look_aheads))
        joined = width + config.look_aheads * inner
        self.act = nn.Sequential(  # type: ignore[assignment]
            nn.Linear(joined, width), nn.ReLU(), nn.Linear(width, ACTIONS)
        )

    def imagine(self, observations: ext.Observations) -> Tensor:
        """The look-aheads of every observation  ->  (X, J * W)"""
        hidden = observations.state.hidden * observations.decision_mask
        frozen = {name: weight.detach() for name, weight in self.model.named_parameters()}
        found = []
        for ahead in self.ahead:
            assert isinstance(ahead, LookAhead)
            view, state = self.view_ahead(observations), None
            for _ in range(self.config.imagined_steps):
                chance = ahead.policy(torch.cat([hidden, view], dim=-1)).softmax(dim=-1)
                chance = nn.functional.pad(chance, (0, 1))
                view, reward = functional_call(self.model, frozen, (view, chance))
                state = ahead.trajectory(torch.cat([view, reward], dim=-1), state)
            assert state is not None
            found.append(state[0])
        return torch.cat(found, dim=-1)

    def view_ahead(self, observations: ext.Observations) -> Tensor:
        """(X, D)"""
        store = observations.environment.store
        return store.gather_views(observations.viewpoint, observations.view) * observations.feature_mask

    def score(self, point: ext.DecisionPoint) -> dict[ext.DecisionType, Tensor]:
        """Low-level decisions: (R, 6)"""
        hidden = point.state.hidden * point.mask("decision")
        return {LOW_LEVEL: self.act(torch.cat([hidden, point.per_observation(self.imagine)], dim=-1))}

    def whole_walk_heads(self, rollout: ext.Rollout, inputs: ext.RolloutInputs) -> dict[str, Tensor]:
        """The error of the environment model at every step that led on, 0 elsewhere."""
        table, mask, environment = rollout.decisions[LOW_LEVEL], inputs.masks.feature, inputs.environment
        later = (table.step + 1).clamp_max(rollout.alive.shape[1] - 1)
        went_on = ~table.stops & (table.step + 1 < rollout.length[table.episode])
        gather, places = environment.store.gather_views, (rollout.viewpoint, rollout.view)
        views = [
            gather(*(place[table.episode, step] for place in places)) * mask for step in (table.step, later)
        ]
        chance = nn.functional.one_hot(table.choice, ACTIONS).to(views[0])
        view, reward = self.model(views[0], chance)
        closer = (table.before - table.after).nan_to_num().to(reward)
        error = (view - views[1]).square().sum(dim=-1) + (reward.squeeze(-1) - closer).square()
        at_step = error.new_zeros(rollout.alive.shape).index_put((table.episode, table.step), error * went_on)
        return {"model_error": at_step}

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The words, and the reward that the environment model expects of a step forward."""
        observations = point.observations
        forward = torch.eye(ACTIONS, device=point.row.device)[4].expand(len(observations.view), -1)
        _, reward = self.model(self.view_ahead(observations), forward)
        shown = super().explain(point)
        return ext.Explanation(shown.words, numbers={"forward earns": reward[point.row, 0]})


AGENTS = {"rpa": ext.AgentSpec(RPA, RPAConfig)}
ROWS = {"rpa": shared("rpa", RPAConfig, {"environment_model": 1.0}, **TURNS)}
AS_PUBLISHED = published(
    "rpa",
    RPAConfig(width=512, feature_dropout=0.0, published_core=True, action_width=512, squash=True),
    (
        ext.Stage("environment", share=1.0, losses={"student_forcing": 1.0, "environment_model": 1.0}),
        ext.Stage("policy", share=3.0, losses={"student_forcing": 1.0, "a2c": 1.0}),
    ),
    decisions=20,
    batch=100,
    iterations=20_000,
    labels="low_level",
    reward=ext.RewardConfig(quantised=False, success=2.0, discount=0.95),
)
R4R_LABELS = {"rpa": "low_level_path"}
