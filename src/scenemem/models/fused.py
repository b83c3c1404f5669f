"""The states of ``LSTMUpdater`` with a hand-written gradient; a test holds it equal to that of autograd.

Shape letters: B episodes, M episodes that observe, X = sum of M, D visual columns, H state width, L words.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from scenemem.errors import SettingError
from scenemem.features.store import PanoramaLookup
from scenemem.models.attention import dots
from scenemem.models.language import Instructions
from scenemem.models.recurrent import (
    ANGLES,
    POSE_WIDTH,
    LSTMState,
    LSTMStep,
    LSTMUpdater,
    LSTMWeights,
    lstm_step,
)
from scenemem.models.states import DropoutMasks, EpisodeSelection, Observation, State, StateLog
from scenemem.world.graph import NONE


class FusedStateLog(StateLog):
    """The states of ``LSTMUpdater`` with one hand-written gradient for all observations.

    Autograd adds to the gradient of every weight, and of the encoded words, once per observation. Here the
    way back through time only carries the state; the weights' gradients are one matrix product each over all
    observations of all episodes. Only ``hidden`` has a gradient.

    Args:
        updater: the parameters; they must not change before ``stacked`` has been differentiated.
        instructions: one per episode.
        masks: the dropout masks of the walks.
        lookup: viewpoints (M,)  ->  the visual features of their views (M, 36, D).
    """

    def __init__(
        self, updater: LSTMUpdater, instructions: Instructions, masks: DropoutMasks, lookup: PanoramaLookup
    ) -> None:
        super().__init__(
            updater, updater.initial_state(instructions), instructions, masks, lookup, learns=False
        )
        self.updater = updater
        self.weights = updater.folded_weights()
        # episodes, row of the state before, viewpoint and view of every observation, (M,) each
        self.observed: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.steps: list[LSTMStep] = []
        self._row = torch.full_like(self._viewpoint, NONE)  # (B,) of the current state; -1 at the start

    def _update(self, active: Tensor, before: State, observation: Observation) -> State:
        assert isinstance(before, LSTMState)  # made by initial_state
        angles = self.updater.relative_angles(observation.view)
        step = lstm_step(self.weights, before, observation, angles)
        self.observed.append((active, self._row[active], observation.viewpoint, observation.view))
        self.steps.append(step)
        self._row[active] = torch.arange(self._many, self._many + len(active), device=active.device)
        return step.state

    def restore(self, active: Tensor, steps: Tensor) -> None:
        """The episodes ``active`` (M,) have the states again that they made at ``steps`` (M,)."""
        super().restore(active, steps)
        self._row[active] = self.row_at[active, steps]

    def stacked(self) -> State:
        """All states made, in the order of ``packing``; only their ``hidden`` is there, with its gradient."""
        if not self.steps:
            raise ValueError("no state was made yet; observe something first")
        weights = [getattr(self.weights, item.name) for item in fields(LSTMWeights)]
        words = self.instructions
        hidden: Tensor = _Unrolled.apply(  # type: ignore[no-untyped-call]
            self, words.context, words.hidden, words.cell, *weights
        )
        return HiddenState(hidden)


@dataclass(frozen=True)
class HiddenState(State):
    """What the fused gradient hands out: asking for more is an error instead of a missing gradient."""

    def __getattr__(self, name: str) -> Any:
        raise SettingError(
            f"the fused gradient only has 'hidden', not '{name}'; switch it off with --learning.no-fused"
        )


class _Unrolled(torch.autograd.Function):
    """Hands out the states of a log and knows their gradient."""

    @staticmethod
    def forward(ctx: Any, log: FusedStateLog, context: Tensor, hidden: Tensor, *_: Tensor | None) -> Tensor:
        del context, hidden
        ctx.log = log
        return torch.cat([step.hidden for step in log.steps])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back = _Backward(ctx.log, gradients[0])
        ctx.log = None  # what was kept is needed only once
        return None, back.words(), back.hidden, back.cell, *back.weights()


@dataclass(frozen=True)
class _StepGradient:
    """What one observation contributes to the gradients of weights and words."""

    pose: Tensor  # (M, 64)
    view_query: Tensor | None  # (M, D + 4)
    gates: Tensor  # (M, 4H) before their squashing
    word_query: Tensor  # (M, H)
    word_scores: Tensor  # (M, L)
    attended_words: Tensor  # (M, H)
    joined: Tensor  # (M, H) before its squashing


class _Backward:
    """From the last observation to the first."""

    def __init__(self, log: FusedStateLog, gradient: Tensor) -> None:
        """gradient: (X, H) of the states handed out"""
        self._log = log
        selection = EpisodeSelection(log.instructions, log.masks)
        # a state may have several successors, so gradients gather per state; the first ones stand at the end
        hidden = torch.cat([gradient, torch.zeros_like(log.state.hidden)])
        cell = torch.zeros_like(hidden)
        steps, end = [], len(gradient)
        for (episodes, parent, viewpoint, view), step in zip(
            reversed(log.observed), reversed(log.steps), strict=True
        ):
            rows = slice(end - len(episodes), end)
            end = rows.start
            # panoramas and words are looked up again, so that not all of them are in memory
            words, masks = selection.instructions(episodes), selection.masks(episodes)
            seen = Observation(viewpoint, viewpoint, view, log.lookup(viewpoint), words, masks)
            angles = log.updater.relative_angles(view)
            before_hidden, before_cell, found = _before(
                log.weights, step, hidden[rows], cell[rows], seen, angles
            )
            parent = torch.where(parent == NONE, len(gradient) + episodes, parent)
            hidden.index_add_(0, parent, before_hidden)
            cell.index_add_(0, parent, before_cell)
            steps.append(found)
        self._steps = steps[::-1]
        self.hidden, self.cell = hidden[len(gradient) :], cell[len(gradient) :]

    def words(self) -> Tensor:
        """The gradient of the encoded words  ->  (B, L, H)"""
        packing, steps = self._log.packing, self._log.steps

        def table(rows: list[Tensor]) -> Tensor:
            return packing.table(torch.cat(rows))

        attention = table([step.word_attention for step in steps])
        attended = table([item.attended_words for item in self._steps])
        scores = table([item.word_scores for item in self._steps])
        query = table([step.word_query for step in steps])
        return torch.bmm(attention.transpose(1, 2), attended).baddbmm_(scores.transpose(1, 2), query)

    def weights(self) -> tuple[Tensor | None, ...]:
        """The gradients of ``LSTMWeights``, in its order."""
        steps, found = self._log.steps, self._steps
        gates = torch.cat([item.gates for item in found])
        view_query = [item.view_query for item in found if item.view_query is not None]
        joined = torch.cat([item.joined for item in steps])
        output = joined[:, joined.shape[1] // 2 :]
        pose = torch.zeros_like(self._log.weights.pose)
        views = torch.cat([view for *_, view in self._log.observed])
        return (
            torch.cat(view_query).t() @ torch.cat([item.query for item in steps]) if view_query else None,
            pose.index_add_(0, views, torch.cat([item.pose for item in found])),
            gates.t() @ torch.cat([item.lstm_input for item in steps]),
            gates.sum(dim=0),
            torch.cat([item.word_query for item in found]).t() @ output,
            torch.cat([item.joined for item in found]).t() @ joined,
        )


def _before(
    weights: LSTMWeights,
    step: LSTMStep,
    hidden: Tensor,
    cell: Tensor,
    seen: Observation,
    angles: Tensor,
) -> tuple[Tensor, Tensor, _StepGradient]:
    """The gradients of the state before an observation, from those of the state after it, each (M, H)."""
    masks, words, panorama = seen.masks, seen.instructions, seen.panorama
    joined = hidden * (1 - step.hidden.square())
    attended_words, output = (joined @ weights.join).chunk(2, dim=1)
    word_scores = _softmax_gradient(step.word_attention, dots(words.context, attended_words))
    word_query = torch.bmm(word_scores.unsqueeze(1), words.context).squeeze(1)
    output = (output + word_query @ weights.word_query) * masks["word_query"]

    input_gate, forget_gate, output_gate, candidate = step.gates.chunk(4, dim=1)
    cell = cell + output * output_gate * (1 - step.tanh_cell.square())
    gates = torch.cat(
        [
            cell * candidate * input_gate * (1 - input_gate),
            cell * step.previous_cell * forget_gate * (1 - forget_gate),
            output * step.tanh_cell * output_gate * (1 - output_gate),
            cell * input_gate * (1 - candidate.square()),
        ],
        dim=1,
    )
    visual = panorama.shape[2]
    dropped, angle, before = (gates @ weights.lstm).split_with_sizes(
        [POSE_WIDTH + visual, ANGLES, step.hidden.shape[1]], dim=1
    )
    pose, view = (dropped * masks["lstm_input"]).split_with_sizes([POSE_WIDTH, visual], dim=1)
    view_query = None
    if weights.view_query is not None:
        view_query = _view_query_gradient(
            step.view_attention, view * masks.feature, angle, panorama, angles, masks.feature
        )
        before = before + (view_query @ weights.view_query) * masks["view_query"]
    found = _StepGradient(pose, view_query, gates, word_query, word_scores, attended_words, joined)
    return before, cell * forget_gate, found


def _view_query_gradient(
    attention: Tensor, view: Tensor, angle: Tensor, panorama: Tensor, angles: Tensor, feature_mask: Tensor
) -> Tensor:
    """attention: (M, 36)  view: (M, D) and angle: (M, 4), gradients of what was attended  ->  (M, D + 4)"""
    scores = _softmax_gradient(attention, dots(panorama, view) + dots(angles, angle))
    visual = torch.bmm(scores.unsqueeze(1), panorama).squeeze(1) * feature_mask
    return torch.cat([visual, torch.bmm(scores.unsqueeze(1), angles).squeeze(1)], dim=1)


def _softmax_gradient(weights: Tensor, gradient: Tensor) -> Tensor:
    """Of the scores, from that of the weights.  (M, n), (M, n)  ->  (M, n)"""
    product = weights * gradient
    return product - weights * product.sum(dim=-1, keepdim=True)
