"""RCM (Wang 2019): cross-modal reasoning, and a matching critic whose verdict is a reward.

The state attends to the words, their sum to the views, and all three decide:

    x^ = att(h_t; words),   v^ = att(x^; views),   logit_k = (W_c [h_t, x^, v^]) . (W_u u_k),   stop is u = 0
    att(q; Y) = sum_i softmax_i(y_i . W q) y_i

The matching critic is a speaker: its likelihood of a word of the instruction, given the walk, times
``delta``, is earned at the end of a walk beside what the goal pays,

    r_t = metres closer to the goal;   at the end 1 for success, and delta p(instruction | walk)

As published the critic learns from reference paths first and is then left alone, while the agent goes on from
imitation to reinforcement; h_t = LSTM([a_{t-1}, v_t]) reads the action just taken. Fidelity-oriented agents
are paid for nDTW instead (``--learning.reward.rule ndtw``, the row ``rcm-fidelity``).

Read through notes and two re-implementations; delta and the schedule are not known (.5 is BabyWalk's).
Differences: the likelihood is that of a word, which stays in (0, 1) for long texts; advantages use the common
critic of states, which reads h~. Self-imitation in unseen houses is another task and not built.

Shape letters: X observations, R decision steps, B episodes, T steps, K candidate slots, D visual columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.encoders import usual_parts
from scenemem.zoo.objectives import views_of_walk
from scenemem.zoo.panoramic import FollowerState, FollowerUpdater, candidate_actions
from scenemem.zoo.recipes import SystemConfig, published, shared


@dataclass(frozen=True)
class RCMConfig(SystemConfig):
    """Settings of RCM."""

    follower: bool = False
    """the published recurrent core, which reads the action taken; False has the common one"""
    action_width: int = 256
    """width in which the joint state and candidates are compared"""
    critic_width: int = 128
    """width of the matching critic"""
    delta: float = 0.5
    """weight of the matching critic in the reward, 0 ignores it; not known, BabyWalk's"""


class RCM(ext.Agent):
    """Reasons across words and views, and is judged by a matching critic."""

    config: RCMConfig

    def __init__(self, config: RCMConfig, sizes: ext.DataSizes) -> None:
        core = FollowerUpdater(sizes.visual, config.width) if config.follower else None
        super().__init__(config, sizes, usual_parts(config, sizes, core))
        width = config.width
        self.word_query = nn.Linear(width, width, bias=False)
        self.view_query = nn.Linear(width, sizes.visual, bias=False)
        self.join = nn.Linear(2 * width + sizes.visual, config.action_width)
        self.of_action = nn.Linear(sizes.visual + ext.ANGLE_WIDTH, config.action_width, bias=False)
        speaker = ext.SpeakerConfig(config.word_width, config.critic_width, config.dropout)
        self.matching = ext.SpeakerNetwork(speaker, sizes.words, sizes.visual)

    def reason(self, observations: ext.Observations) -> tuple[Tensor, Tensor]:
        """State, the words it attends to and the views these attend to (X, A); weights of the words (X, L)"""
        state, mask = observations.state, observations.feature_mask
        # as published h_t decides, not h~
        hidden = state.output if isinstance(state, FollowerState) else state.hidden
        hidden = hidden * observations.decision_mask
        text, words = observations.instructions.attend(self.word_query(hidden))
        seen = ext.attend_panoramas(
            self.view_query(text) * mask, observations.viewpoint, observations.environment
        )
        return self.join(torch.cat([hidden, text, seen * mask], dim=-1)), words

    def action_logits(self, observations: ext.Observations) -> Tensor:
        """(X, K + 1)"""
        actions = candidate_actions(observations.candidates, observations.feature_mask)
        return ext.dots(self.of_action(actions), observations.cached(self.reason)[0])

    def score(self, point: ext.DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        return point.per_observation(self.action_logits)

    def whole_walk_heads(self, rollout: ext.Rollout, inputs: ext.RolloutInputs) -> dict[str, Tensor]:
        """The verdict of the matching critic on every walk, the same at all its steps."""
        views, tokens = views_of_walk(inputs.environment, rollout), inputs.instructions.tokens
        read = views, inputs.masks.feature, tokens
        with torch.no_grad(), ext.evaluating(self.matching):  # nothing is dropped in a verdict
            intrinsic = self.config.delta * self.matching.likelihood(*read).per_word.exp()
        match, steps = self.matching.likelihood(*read).per_word, rollout.alive.shape[1]
        found = {"match": match, "intrinsic": intrinsic}
        return {name: values.unsqueeze(1).expand(-1, steps) for name, values in found.items()}

    def word_attention(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The words that query the views  ->  name: (X, L)"""
        words = observations.cached(self.reason)[1]
        return {"perception": words, "action": words}

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The words that query the views, and what it still expects to earn."""
        return ext.Explanation(self.words_at(point), numbers={"expects": self.critic(point.state.hidden)})


AGENTS = {"rcm": ext.AgentSpec(RCM, RCMConfig)}
_SHARED = shared("rcm", RCMConfig, {"a2c": 0.0, "matched_a2c": 1.0, "matching_critic": 1.0})
ROWS = {
    "rcm": _SHARED,
    "rcm-fidelity": replace(
        _SHARED, learning=replace(_SHARED.learning, labels="path", reward=ext.RewardConfig(rule="ndtw"))
    ),
}
AS_PUBLISHED = published(
    "rcm",
    RCMConfig(word_width=300, width=512, feature_dropout=0.0, follower=True, critic_width=512),
    (
        ext.Stage("imitation", share=5.0, losses={"student_forcing": 1.0, "matching_critic": 1.0}),
        ext.Stage("reinforcement", share=2.0, losses={"matched_a2c": 1.0}),
    ),
    iterations=70_000,
    word_vectors=True,
    reward=ext.RewardConfig(quantised=False, success=1.0, failure=0.0, discount=0.95),
)
R4R_LABELS = {"rcm": "goal"}
