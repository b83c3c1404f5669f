"""The navigator over whole walks, with one hand-written gradient for all observations (paper, Eq. 1).

Automatic differentiation would update every weight's gradient once per observation, and the gradient of the
encoded words with it. Here the way back through time only carries the state; the weights' gradients are one
matrix product each over all observations of all lanes. A test holds it to what autograd computes.

Shape letters: B lanes, T observations of the longest walk, M lanes under way, X = sum of M, H state width,
L words, D visual columns.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from scenemem.models.attention import dots
from scenemem.models.language import Instructions
from scenemem.models.navigator import (
    ANGLES,
    POSE_WIDTH,
    Navigator,
    NavigatorState,
    NavigatorWeights,
    Noise,
    Panorama,
    Step,
    observe,
)
from scenemem.models.place_attention import Look
from scenemem.models.seating import Seating
from scenemem.world.graph import NONE


@dataclass(frozen=True)
class _Observation:
    """Who observed, when and from where."""

    tick: int
    lanes: Tensor  # (M,)
    parent: Tensor  # (M,) row of the state before, of all observations; -1 for the state at the beginning
    viewpoint: Tensor  # (M,)
    view: Tensor  # (M,)


class LaneSelection:
    """The words and the noise of the lanes under way; copied again only when their set has changed."""

    def __init__(self, instructions: Instructions, noise: Noise) -> None:
        self._all = (instructions, noise)
        self._lanes: Tensor | None = None
        self._selected = self._all

    def select(self, lanes: Tensor) -> tuple[Instructions, Noise]:
        """lanes: (M,)"""
        if self._lanes is None or not torch.equal(lanes, self._lanes):
            instructions, noise = self._all
            self._lanes = lanes
            self._selected = (instructions.select(lanes), noise.select(lanes))
        return self._selected


class Unrolling:
    """A navigator under way on a batch of walks, without gradients until they are asked for.

    Args:
        navigator: the parameters; they must not change before ``learnable`` has been differentiated.
        instructions: one per lane.
        noise: the dropout masks of the walks.
        look: what can be seen from a viewpoint.
        keeps: whether ``learnable`` will be called; needs memory for every observation.
    """

    def __init__(
        self, navigator: Navigator, instructions: Instructions, noise: Noise, look: Look, *, keeps: bool
    ) -> None:
        self.navigator = navigator
        self.instructions = instructions
        self.noise = noise
        self.look = look
        self.hidden = instructions.hidden.detach().clone()  # (B, H) attended states
        self.earlier = self.hidden.clone()  # (B, H) one observation ago
        self.cell = instructions.cell.detach().clone()  # (B, H)
        self.weights = navigator.weights()
        self.observations: list[_Observation] = []
        self.steps: list[Step] = []
        self._keeps = keeps
        self._made: list[tuple[Tensor, Tensor]] = []  # (M, H) hidden and cell after every observation
        self._row = torch.full_like(instructions.mask[:, 0], NONE, dtype=torch.long)  # (B,) of the state now
        self._row_at = self._row.unsqueeze(1)[:, :0]  # (B, T) the row made at each tick
        self._under_way = LaneSelection(instructions.detached(), noise)

    @torch.no_grad()
    def observe(self, lanes: Tensor, viewpoint: Tensor, view: Tensor, tick: int) -> None:
        """At ``tick``, which only grows, ``lanes`` stand at ``viewpoint`` and face ``view``, all (M,)."""
        words, noise = self._under_way.select(lanes)
        seen = self.navigator.around(self.look(viewpoint), view)
        before = self.hidden[lanes]
        step = observe(self.weights, NavigatorState(before, self.cell[lanes]), seen, words, noise)
        self.earlier[lanes] = before
        self.hidden[lanes] = step.hidden
        self.cell[lanes] = step.cell
        if self._keeps:
            self.observations.append(_Observation(tick, lanes, self._row[lanes], viewpoint, view))
            self.steps.append(step)
        self._note(lanes, tick, step)

    def _note(self, lanes: Tensor, tick: int, step: Step) -> None:
        """Number the states just made, so that they can be recalled."""
        first = sum(len(hidden) for hidden, _ in self._made)
        self._made.append((step.hidden, step.cell))
        self._row[lanes] = torch.arange(first, first + len(lanes), device=lanes.device)
        missing = tick + 1 - self._row_at.shape[1]
        self._row_at = torch.nn.functional.pad(self._row_at, (0, missing), value=NONE)
        self._row_at[lanes, tick] = self._row[lanes]

    @torch.no_grad()
    def recall(self, lanes: Tensor, ticks: Tensor) -> None:
        """Lanes ``lanes`` (M,) have the state again that they made at ``ticks`` (M,)."""
        rows = self._row_at[lanes, ticks]
        hidden, cell = (torch.cat(parts) for parts in zip(*self._made, strict=True))
        self._row[lanes] = rows
        self.hidden[lanes] = hidden[rows]
        self.cell[lanes] = cell[rows]

    @property
    def seating(self) -> Seating:
        """Who made which observation when, tick after tick."""
        ticks = [torch.full_like(seen.lanes, seen.tick) for seen in self.observations]
        lanes = torch.cat([seen.lanes for seen in self.observations])
        return Seating(lanes, torch.cat(ticks), len(self.hidden), self.observations[-1].tick + 1)

    def learnable(self) -> Tensor:
        """The attended state after every observation, with gradients; rows as ``seating`` says  ->  (X, H)"""
        if not self.steps:
            raise ValueError("nothing was kept to learn from; observe something, with keeps=True")
        weights = [getattr(self.weights, item.name) for item in fields(NavigatorWeights)]
        words = self.instructions
        hidden: Tensor = _Unrolled.apply(  # type: ignore[no-untyped-call]
            self, words.context, words.hidden, words.cell, *weights
        )
        return hidden


class _Unrolled(torch.autograd.Function):
    """Hands out the states of an unrolling and knows their gradient."""

    @staticmethod
    def forward(ctx: Any, unrolling: Unrolling, context: Tensor, hidden: Tensor, *_: Tensor | None) -> Tensor:
        del context, hidden
        ctx.unrolling = unrolling
        return torch.cat([step.hidden for step in unrolling.steps])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back = _WayBack(ctx.unrolling, gradients[0])
        ctx.unrolling = None  # what was kept is needed only once
        return None, back.words(), back.hidden, back.cell, *back.weights()


@dataclass(frozen=True)
class _StepGradient:
    """What one observation contributes to the gradients of weights and words."""

    pose: Tensor  # (M, 64)
    wanted: Tensor | None  # (M, D + 4)
    sums: Tensor  # (M, 4H) of the gates before their squashing
    asked: Tensor  # (M, H)
    scores: Tensor  # (M, L) of the words
    heard: Tensor  # (M, H)
    joined: Tensor  # (M, H) before its squashing


class _WayBack:
    """From the last observation to the first."""

    def __init__(self, unrolling: Unrolling, gradient: Tensor) -> None:
        """gradient: (X, H) of the states handed out"""
        self._unrolling = unrolling
        under_way = LaneSelection(unrolling.instructions.detached(), unrolling.noise)
        # a state may have several successors, so gradients gather per state; the first ones stand at the end
        hidden = torch.cat([gradient, torch.zeros_like(unrolling.hidden)])
        cell = torch.zeros_like(hidden)
        steps, end = [], len(gradient)
        for seen, step in zip(reversed(unrolling.observations), reversed(unrolling.steps), strict=True):
            rows = slice(end - len(seen.lanes), end)
            end = rows.start
            around = unrolling.navigator.around(unrolling.look(seen.viewpoint), seen.view)
            state = NavigatorState(hidden[rows], cell[rows])
            before, found = _before(unrolling.weights, step, state, around, *under_way.select(seen.lanes))
            parent = torch.where(seen.parent == NONE, len(gradient) + seen.lanes, seen.parent)
            hidden.index_add_(0, parent, before.hidden)
            cell.index_add_(0, parent, before.cell)
            steps.append(found)
        self._steps = steps[::-1]
        self.hidden, self.cell = hidden[len(gradient) :], cell[len(gradient) :]

    def words(self) -> Tensor:
        """The gradient of the encoded words  ->  (B, L, H)"""
        seating, steps = self._unrolling.seating, self._unrolling.steps

        def table(rows: list[Tensor]) -> Tensor:
            return seating.table(torch.cat(rows))

        attention, heard = table([step.heard for step in steps]), table([item.heard for item in self._steps])
        scores, asked = table([item.scores for item in self._steps]), table([step.asked for step in steps])
        return torch.bmm(attention.transpose(1, 2), heard).baddbmm_(scores.transpose(1, 2), asked)

    def weights(self) -> tuple[Tensor | None, ...]:
        """The gradients of ``NavigatorWeights``, in its order."""
        steps, found = self._unrolling.steps, self._steps
        sums = torch.cat([item.sums for item in found])
        wanted = [item.wanted for item in found if item.wanted is not None]
        joined = torch.cat([item.joined for item in steps])
        listening = joined[:, joined.shape[1] // 2 :]
        pose = torch.zeros_like(self._unrolling.weights.pose)
        return (
            torch.cat(wanted).t() @ torch.cat([item.query for item in steps]) if wanted else None,
            pose.index_add_(
                0,
                torch.cat([item.view for item in self._unrolling.observations]),
                torch.cat([item.pose for item in found]),
            ),
            sums.t() @ torch.cat([item.entered for item in steps]),
            sums.sum(dim=0),
            torch.cat([item.asked for item in found]).t() @ listening,
            torch.cat([item.joined for item in found]).t() @ joined,
        )


def _before(
    weights: NavigatorWeights,
    step: Step,
    after: NavigatorState,
    seen: Panorama,
    words: Instructions,
    noise: Noise,
) -> tuple[NavigatorState, _StepGradient]:
    """The gradients of the state before an observation, from those of the state after it."""
    joined = after.hidden * (1 - step.hidden.square())
    heard, listening = (joined @ weights.join).chunk(2, dim=1)
    scores = _softmax_gradient(step.heard, dots(words.context, heard))
    asked = torch.bmm(scores.unsqueeze(1), words.context).squeeze(1)
    output = (listening + asked @ weights.listen) * noise.listening

    let_in, keep, let_out, candidate = step.gates.chunk(4, dim=1)
    cell = after.cell + output * let_out * (1 - step.squashed.square())
    sums = torch.cat(
        [
            cell * candidate * let_in * (1 - let_in),
            cell * step.before * keep * (1 - keep),
            output * step.squashed * let_out * (1 - let_out),
            cell * let_in * (1 - candidate.square()),
        ],
        dim=1,
    )
    visual = seen.visual.shape[2]
    dropped, angle, hidden = (sums @ weights.enter).split_with_sizes(
        [POSE_WIDTH + visual, ANGLES, step.hidden.shape[1]], dim=1
    )
    pose, view = (dropped * noise.entered).split_with_sizes([POSE_WIDTH, visual], dim=1)
    wanted = None
    if weights.ask is not None:
        wanted = _wanted_gradient(step.looked, view * noise.feature, angle, seen, noise.feature)
        hidden = hidden + (wanted @ weights.ask) * noise.looking
    return (
        NavigatorState(hidden, cell * keep),
        _StepGradient(pose, wanted, sums, asked, scores, heard, joined),
    )


def _wanted_gradient(
    looked: Tensor, view: Tensor, angle: Tensor, seen: Panorama, feature_mask: Tensor
) -> Tensor:
    """looked: (M, 36)  view: (M, D) and angle: (M, 4), gradients of what was seen  ->  (M, D + 4)"""
    scores = _softmax_gradient(looked, dots(seen.visual, view) + dots(seen.angles, angle))
    wanted = torch.bmm(scores.unsqueeze(1), seen.visual).squeeze(1) * feature_mask
    return torch.cat([wanted, torch.bmm(scores.unsqueeze(1), seen.angles).squeeze(1)], dim=1)


def _softmax_gradient(weights: Tensor, gradient: Tensor) -> Tensor:
    """Of the scores, from that of the weights.  (M, n), (M, n)  ->  (M, n)"""
    product = weights * gradient
    return product - weights * product.sum(dim=-1, keepdim=True)
