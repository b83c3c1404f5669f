"""Regretful (Ma 2019 CVPR): Self-Monitoring that weighs going on against going back.

Regret module: when progress falls, the decision moves towards the candidate that leads back,

    m = w_r g(u_back) + w_f W_a [x^, h_t],   (w_r, w_f) = softmax(W (p_t - p_{t-1}))

Progress marker: every candidate carries the progress that was made there, 1 where not visited, 0 for stop,

    logit_k = [g(u_k), p_t - mark_k] . W_m m,   the difference repeated 32 times

p_0 before the first step is 0, u_back of the first step is stop. Progress enters both without gradient. After
steps from A to B and back the next one may not lead to B; the release lifts that in training where B is
right, here nothing is blocked in training. Everything else is Self-Monitoring's. Read in the released code.

Shape letters: R decision steps, K candidate slots, N nodes, A width of an embedded action.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import scenemem.extend as ext
from scenemem.zoo.recipes import published, shared
from scenemem.zoo.self_monitoring import SelfMonitoring, SelfMonitoringConfig

MARKS = 32
"""How often a difference of progress is repeated."""


@dataclass(frozen=True)
class RegretfulConfig(SelfMonitoringConfig):
    """Settings of Regretful."""

    block: bool = True
    """when evaluated, after steps from A to B and back to A the next step may not lead to B"""


class RememberingActions(ext.MemoryActions):
    """The neighbours of here, or stop, with a memory of all places visited; these may be chosen again."""

    def __init__(self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, block: bool) -> None:
        super().__init__(world, episodes, max_decisions, ext.WalkOptions(allow_revisits=True))
        self._block = block
        # (B, 2) the last two places, the newest last
        self._came_from = torch.full((episodes, 2), ext.NONE, device=world.device)

    def choose(self, pose: ext.Pose, action: Tensor, episodes: Tensor, decide: ext.Decide) -> Tensor:
        """Every episode chooses a neighbour or stops."""
        self.decisions_left[episodes] -= 1
        action = self.choose_neighbour(pose, action, episodes, decide)
        here = pose.viewpoint[episodes]
        self._came_from[episodes] = torch.stack([self._came_from[episodes, 1], here], dim=1)
        return action

    def neighbours(self, pose: ext.Pose, episodes: Tensor) -> ext.DecisionRequest:
        """Options: the neighbours that may be stepped to, or stop."""
        request = super().neighbours(pose, episodes)
        if not self._block:
            return request
        before, last = self._came_from[episodes].unbind(1)
        back = ((before == pose.viewpoint[episodes]) & (last != ext.NONE)).unsqueeze(1)
        return replace(request, options=request.options & ~(back & (request.viewpoint == last.unsqueeze(1))))


@dataclass(frozen=True)
class Regret:
    """What the regret module reads at R decision steps."""

    progress: Tensor  # (R,) p_t
    before: Tensor  # (R,) p_{t-1}
    back: Tensor  # (R,) the option that leads back; stop at the first step
    marks: Tensor  # (R, K + 1)


class Regretful(SelfMonitoring):
    """Self-Monitoring with a regret module and a progress marker."""

    config: RegretfulConfig

    def __init__(self, config: RegretfulConfig, sizes: ext.DataSizes) -> None:
        super().__init__(config, sizes)
        self.regret = nn.Linear(1, 2)
        self.move = nn.Linear(config.action_width, config.action_width + MARKS, bias=False)

    def action_space(
        self, world: ext.World, episodes: int, max_decisions: ext.Limit, *, learning: bool = False
    ) -> ext.ActionSpace:
        """The neighbours of here, or stop, with a memory of the progress made at places."""
        return RememberingActions(world, episodes, max_decisions, block=self.config.block and not learning)

    def node_features(self, observations: ext.Observations) -> dict[str, Tensor]:
        """The progress is remembered at every place  ->  (X, 1)"""
        return {"progress": observations.cached(self.progress).detach().unsqueeze(-1)}

    def look_back(self, point: ext.DecisionPoint) -> Regret:
        """The progress now, one step before, and at every candidate."""
        graph, seen = point.memory(), point.observations
        world, rows = seen.environment.world, torch.arange(len(point.row), device=point.row.device)
        remembered = graph.column("progress").squeeze(-1)  # (R, N)
        previous = seen.previous[point.row]
        at_previous = (graph.viewpoint == previous.unsqueeze(1)) & (previous != ext.NONE).unsqueeze(1)
        places = world.neighbour[point.viewpoint]  # (R, K)
        visited = (places.unsqueeze(2) == graph.viewpoint.unsqueeze(1)) & (places != ext.NONE).unsqueeze(2)
        marks = torch.where(visited.any(dim=2), (visited * remembered.unsqueeze(1)).sum(dim=2), 1.0)
        leads_back = (places == previous.unsqueeze(1)) & (previous != ext.NONE).unsqueeze(1)
        stop = places.shape[1]
        return Regret(
            progress=remembered[rows, graph.here],
            before=(at_previous * remembered).sum(dim=1),
            back=torch.where(leads_back.any(dim=1), leads_back.int().argmax(dim=1), stop),
            marks=nn.functional.pad(marks, (0, 1)),
        )

    def weights(self, regret: Regret) -> Tensor:
        """(w_r, w_f) of going back and of going on  ->  (R, 2)"""
        weights: Tensor = self.regret((regret.progress - regret.before).unsqueeze(-1))
        return weights.softmax(dim=-1)

    def score(self, point: ext.DecisionPoint) -> Tensor:
        """Actions: (R, K + 1)"""
        regret = self.look_back(point)
        rows = torch.arange(len(point.row), device=point.row.device)
        embedded = point.observations.cached(self.embedded)[point.row]  # (R, K + 1, A)
        back, on = self.weights(regret).unsqueeze(-1).unbind(1)
        move = back * embedded[rows, regret.back] + on * point.per_observation(self.query)
        of_action, of_marks = self.move(move).split([embedded.shape[-1], MARKS], dim=-1)
        difference = regret.progress.unsqueeze(1) - regret.marks
        # the difference stands 32 times beside g(u): one product with the summed columns
        logits: Tensor = ext.dots(embedded, of_action) + difference * of_marks.sum(dim=-1, keepdim=True)
        return logits

    def explain(self, point: ext.DecisionPoint) -> ext.Explanation:
        """The grounded words, the progress, and how much it regrets the last step."""
        shown = super().explain(point)
        regret = self.weights(self.look_back(point))[:, 0]
        return ext.Explanation(shown.words, numbers={**shown.numbers, "regret": regret})


AGENTS = {"regretful": ext.AgentSpec(Regretful, RegretfulConfig)}
ROWS = {"regretful": shared("regretful", RegretfulConfig, {"progress_metres": 0.5})}
AS_PUBLISHED = published(
    "regretful",
    RegretfulConfig(width=512, feature_dropout=0.0, co_grounded=True, action_width=1024),
    {"student_forcing": 0.5, "progress_metres": 0.5, "negative_entropy": 0.01},
    iterations=60_000,
)
