"""The states of a batch of walks: the current one of every episode, and all that were made on the way.

Plain autograd is the way to learn from them; ``FusedStateLog`` offers the same states of ``LSTMUpdater`` with
a hand-written gradient, and a test holds the two equal. Shape letters: B episodes, M episodes that observe,
X = sum of M, T steps, H state width, L words, D visual columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from scenemem.errors import SettingError
from scenemem.models.attention import PanoramaLookup, dots
from scenemem.models.language import Instructions
from scenemem.models.packing import Packing
from scenemem.models.updater import (
    ANGLES,
    POSE_WIDTH,
    DropoutMasks,
    LSTMState,
    LSTMStep,
    LSTMUpdater,
    LSTMWeights,
    Observation,
    State,
    lstm_step,
)
from scenemem.world.graph import NONE

Observe = Callable[[Any, Observation], State]
"""The states of M episodes and what they see  ->  their next states"""


class EpisodeSelection:
    """The instructions and masks of some episodes; selected again only when the set has changed."""

    def __init__(self, instructions: Instructions, masks: DropoutMasks) -> None:
        self._all = (instructions, masks)
        self._episodes: Tensor | None = None
        self._selected = self._all

    def select(self, episodes: Tensor) -> tuple[Instructions, DropoutMasks]:
        """episodes: (M,)"""
        if self._episodes is None or not torch.equal(episodes, self._episodes):
            instructions, masks = self._all
            self._episodes = episodes
            self._selected = (instructions.select(episodes), masks.select(episodes))
        return self._selected


class StateLog:
    """The states of walks under way, kept with their gradients when something will be learnt from them.

    Args:
        observe: the agent's update.
        initial: the B states at the start.
        instructions: one per episode.
        masks: the dropout masks of the walks.
        lookup: viewpoints (M,)  ->  the visual features of their views (M, 36, D).
        learns: whether ``stacked`` will be differentiated; needs memory for every observation.
    """

    def __init__(
        self,
        observe: Observe,
        initial: State,
        instructions: Instructions,
        masks: DropoutMasks,
        lookup: PanoramaLookup,
        *,
        learns: bool,
    ) -> None:
        self.instructions = instructions
        self.masks = masks
        self.state = initial  # (B, ...) the current states
        self.earlier = initial.hidden  # (B, H) the hidden states one observation ago
        self._observe = observe
        self._learns = learns
        self.lookup = lookup
        self._selection = EpisodeSelection(instructions if learns else instructions.detached(), masks)
        self._cache: dict[Any, Any] = {}
        self._viewpoint = torch.full_like(instructions.mask[:, 0], NONE, dtype=torch.long)
        self._made: list[tuple[int, Tensor, State]] = []  # step, episodes (M,), their new states
        self._row_at = self._viewpoint.unsqueeze(1)[:, :0]  # (B, T) the row of the state made at each step

    def observe(self, active: Tensor, viewpoint: Tensor, view: Tensor, step: int) -> None:
        """At ``step``, which only grows, ``active`` stand at ``viewpoint`` and face ``view``, (M,) each."""
        with torch.set_grad_enabled(self._learns):
            after = self._observed(active, viewpoint, view)
        rows = sum(len(episodes) for _, episodes, _ in self._made)
        self._made.append((step, active, after))
        missing = step + 1 - self._row_at.shape[1]
        self._row_at = torch.nn.functional.pad(self._row_at, (0, missing), value=NONE)
        self._row_at[active, step] = torch.arange(rows, rows + len(active), device=active.device)

    def _observed(self, active: Tensor, viewpoint: Tensor, view: Tensor) -> State:
        """The new states of ``active`` (M,), which are the current ones from now on."""
        instructions, masks = self._selection.select(active)
        observation = Observation(
            viewpoint,
            self._viewpoint[active],
            view,
            self.lookup(viewpoint),
            instructions,
            masks,
            self._cache,
        )
        self._viewpoint[active] = viewpoint
        before = self.state.select(active)
        after = self._update(active, before, observation)
        self.earlier = self.earlier.detach().index_copy(0, active, before.hidden.detach())
        self.state = self.state.with_rows(active, after)
        return after

    def _update(self, active: Tensor, before: State, observation: Observation) -> State:
        """The states after an observation; active: (M,)"""
        del active
        return self._observe(before, observation)

    def restore(self, active: Tensor, steps: Tensor) -> None:
        """The episodes ``active`` (M,) have the states again that they made at ``steps`` (M,)."""
        rows = self._row_at[active, steps]
        with torch.set_grad_enabled(self._learns):
            self.state = self.state.with_rows(active, self._together().select(rows))

    @property
    def packing(self) -> Packing:
        """The episode and the step of every state made, step after step."""
        steps = [torch.full_like(episodes, step) for step, episodes, _ in self._made]
        episodes = torch.cat([episodes for _, episodes, _ in self._made])
        return Packing(episodes, torch.cat(steps), len(self._viewpoint), self._made[-1][0] + 1)

    def stacked(self) -> State:
        """All states made, in the order of ``packing``  ->  (X, ...)"""
        if not self._made:
            raise ValueError("no state was made yet; observe something first")
        return self._together()

    def _together(self) -> State:
        states = [state for _, _, state in self._made]
        return type(states[0])(
            *(torch.cat([getattr(state, item.name) for state in states]) for item in fields(states[0]))
        )


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
        initial = updater.initial_state(instructions.detached())
        super().__init__(updater, initial, instructions, masks, lookup, learns=False)
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
        rows = sum(len(kept.hidden) for kept in self.steps)
        self.observed.append((active, self._row[active], observation.viewpoint, observation.view))
        self.steps.append(step)
        self._row[active] = torch.arange(rows, rows + len(active), device=active.device)
        return step.state

    def restore(self, active: Tensor, steps: Tensor) -> None:
        """The episodes ``active`` (M,) have the states again that they made at ``steps`` (M,)."""
        super().restore(active, steps)
        self._row[active] = self._row_at[active, steps]

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
        selection = EpisodeSelection(log.instructions.detached(), log.masks)
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
            seen = Observation(viewpoint, viewpoint, view, log.lookup(viewpoint), *selection.select(episodes))
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
