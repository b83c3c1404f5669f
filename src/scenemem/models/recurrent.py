"""State updaters (paper, Eq. 1): what an agent carries through a walk, and how an observation changes it.

``LSTMUpdater`` is the recurrent navigator of the paper's baseline. ``StateLog`` keeps the states of walks for
plain autograd; ``FusedStateLog`` offers those of ``LSTMUpdater`` with a hand-written gradient, and a test
holds the two equal. Shape letters: B episodes, M episodes that observe, X = sum of M, T steps, D visual
columns, H state width, L words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from scenemem.errors import SettingError
from scenemem.features.store import Environment, PanoramaLookup
from scenemem.models.attention import dots, masked_softmax
from scenemem.models.language import Instructions, Packing, gate_order
from scenemem.world.graph import (
    ANGLE_WIDTH,
    HEADINGS,
    NONE,
    STEP,
    VIEWS,
    angle_feature,
    view_elevation,
    view_heading,
)

POSE_WIDTH = 64  # of the embedding of where the agent looks
ANGLES = 4  # different numbers in an orientation feature

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound="Instructions | State")


def selected(record: RecordT, rows: Tensor) -> RecordT:
    """Some rows of a dataclass of tensors.  rows: (M,)"""
    return type(record)(*(getattr(record, item.name).index_select(0, rows) for item in fields(record)))


@dataclass(frozen=True)
class State:
    """What an agent carries from observation to observation: tensors with one row per episode.

    Subclasses add fields; all of them are selected, restored and recorded row by row.
    """

    hidden: Tensor  # (B, H) queries everything an agent decides on

    def select(self, rows: Tensor) -> Self:
        """The states of the given rows.  rows: (M,)"""
        return selected(self, rows)

    def with_rows(self, rows: Tensor, new: Self) -> Self:
        """These states with some rows replaced.  rows: (M,)  new: M states"""
        return type(self)(
            *(getattr(self, item.name).index_copy(0, rows, getattr(new, item.name)) for item in fields(self))
        )

    @property
    def attention(self) -> dict[str, Tensor]:
        """What the last update attended to, for viewers: name -> (B, L) weights of the words."""
        return {}


@dataclass(frozen=True)
class LSTMState(State):
    """The state of ``LSTMUpdater``; ``hidden`` is h~, the LSTM's output joined with what the words say."""

    cell: Tensor  # (B, H)
    word_attention: Tensor  # (B, L) the words the last update attended to

    @property
    def attention(self) -> dict[str, Tensor]:
        """The attention of the recurrent navigator over the words."""
        return {"navigator": self.word_attention}


@dataclass(frozen=True)
class DropoutMasks:
    """Dropout masks drawn once per rollout, so that acting and learning see the same network.

    Each is already scaled by 1 / (1 - p); ones when nothing is dropped. Angles are never dropped.
    """

    feature: Tensor  # (D,) environment dropout: one mask for all views, viewpoints and steps
    rows: Mapping[str, Tensor]  # name -> (B, W), one mask per episode for all its steps

    def __getitem__(self, name: str) -> Tensor:
        """(B, W) the masks of that name"""
        return self.rows[name]

    def select(self, episodes: Tensor) -> DropoutMasks:
        """The masks of the given episodes."""
        return DropoutMasks(
            self.feature, {name: mask.index_select(0, episodes) for name, mask in self.rows.items()}
        )


@dataclass(frozen=True)
class Observation:
    """What a batch of agents sees when it arrives somewhere."""

    viewpoint: Tensor  # (M,) where they stand
    previous: Tensor  # (M,) where they stood one step ago; -1 at the start
    view: Tensor  # (M,) the view they face
    panorama: Tensor  # (M, 36, D) visual features of all views
    instructions: Instructions  # of these episodes
    masks: DropoutMasks  # of these episodes
    cache: dict[Any, Any] = field(default_factory=dict)  # shared by all observations of a rollout
    environment: Environment | None = None  # what else can be seen, for cores that look at more than here
    of_rollout: tuple[Instructions, Tensor] | None = None  # all instructions, and whose ones (M,) these are

    def per_instruction(self, compute: Callable[[Instructions], Tensor]) -> Tensor:
        """What ``compute`` says about instructions, computed once per rollout  ->  M rows of it"""
        if self.of_rollout is None:
            return compute(self.instructions)
        everyone, episodes = self.of_rollout
        return self.once_per_rollout(partial(compute, everyone), compute).index_select(0, episodes)

    def once_per_rollout(self, compute: Callable[[], T], key: Any = None) -> T:
        """What ``compute`` returns, computed at the first observation of a rollout only.

        ``key`` tells things apart that are computed by functions made anew each time.
        """
        key = key or compute
        if key not in self.cache:
            self.cache[key] = compute()
        result: T = self.cache[key]
        return result


class StateUpdater(nn.Module, ABC):
    """How a state begins and how an observation changes it; subclass it for another recurrent core."""

    width: int
    """H of the states."""

    def mask_widths(self) -> dict[str, int]:
        """Name and width of the dropout masks an update wants, one row per episode."""
        return {}

    @abstractmethod
    def initial_state(self, instructions: Instructions) -> State:
        """The states before the first observation."""

    @abstractmethod
    def forward(self, state: Any, observation: Observation) -> State:
        """The states after an observation."""


@dataclass(frozen=True)
class LSTMWeights:
    """The updater's parameters as its arithmetic uses them.

    Orientation features repeat four numbers 32 times; a layer on them is the same layer on the four numbers
    with its columns summed. Gates stand in the order input, forget, output, candidate.
    """

    view_query: Tensor | None  # (D + 4, H); None when only the view ahead is seen
    pose: Tensor  # (36, 64) the embedding of every direction an agent can face
    lstm: Tensor  # (4H, 64 + D + 4 + H) on pose, attended view, its direction and the previous state
    bias: Tensor  # (4H,)
    word_query: Tensor  # (H, H)
    join: Tensor  # (H, 2H)


@dataclass(frozen=True)
class LSTMStep:
    """One update and all that its gradient needs."""

    query: Tensor  # (M, H) the state that attends to the views
    view_attention: Tensor  # (M, 36)
    lstm_input: Tensor  # (M, 64 + D + 4 + H)
    gates: Tensor  # (M, 4H) input, forget, output, candidate
    previous_cell: Tensor  # (M, H)
    cell: Tensor  # (M, H)
    tanh_cell: Tensor  # (M, H)
    word_query: Tensor  # (M, H)
    word_attention: Tensor  # (M, L)
    joined: Tensor  # (M, 2H) attended words, and the LSTM's output
    hidden: Tensor  # (M, H)

    @property
    def state(self) -> LSTMState:
        """The state after the update."""
        return LSTMState(self.hidden, self.cell, self.word_attention)


class PanoramaQuery(nn.Module):
    """The query of the state about all 36 views, visual and orientation features together."""

    def __init__(self, visual: int, width: int) -> None:
        super().__init__()
        self.visual = nn.Linear(width, visual, bias=False)
        self.angle = nn.Linear(width, ANGLE_WIDTH, bias=False)

    def folded(self) -> Tensor | None:
        """(D + 4, H)"""
        return torch.cat([self.visual.weight, untiled(self.angle.weight.t()).t()])


class AheadOnly(nn.Module):
    """No query: only the view ahead is seen, as by the sequence-to-sequence baseline of R2R."""

    def folded(self) -> Tensor | None:
        """None"""
        return None


class LSTMUpdater(StateUpdater):
    """h_t = LSTM([X, O_t], h_{t-1}).

    The previous state attends to the views, the LSTM reads the attended view and where the agent faces, and
    attention over the words gives the new state h~ = tanh(W [sum_l a_l x_l, h]).

    Args:
        visual: columns D of the view features.
        width: H of the state.
        view_query: how the state attends to the views: ``PanoramaQuery`` or ``AheadOnly``.
    """

    def __init__(self, visual: int, width: int, view_query: PanoramaQuery | AheadOnly) -> None:
        super().__init__()
        self.visual = visual
        self.width = width
        self.view_query = view_query
        self.pose = nn.Linear(ANGLE_WIDTH, POSE_WIDTH)
        self.lstm = nn.LSTMCell(POSE_WIDTH + visual + ANGLE_WIDTH, width)
        self.word_query = nn.Linear(width, width, bias=False)
        self.join = nn.Linear(2 * width, width, bias=False)
        self.register_buffer("view_angles", _view_angles(), persistent=False)
        self.register_buffer("pose_angles", _pose_angles(), persistent=False)

    view_angles: Tensor
    pose_angles: Tensor

    def mask_widths(self) -> dict[str, int]:
        """Masks on what enters the LSTM, on the query about views, and on the query about words."""
        return {
            "lstm_input": POSE_WIDTH + self.visual,
            "view_query": self.width,
            "word_query": self.width,
        }

    def initial_state(self, instructions: Instructions) -> LSTMState:
        """The summaries of the instruction."""
        return LSTMState(
            instructions.hidden, instructions.cell, torch.zeros_like(instructions.context[..., 0])
        )

    def folded_weights(self) -> LSTMWeights:
        """The parameters as ``lstm_step`` uses them; gradients flow through the folding."""
        plain, angles = self.lstm.weight_ih.split_with_sizes([POSE_WIDTH + self.visual, ANGLE_WIDTH], dim=1)
        return LSTMWeights(
            view_query=self.view_query.folded(),
            pose=torch.tanh(self.pose(self.pose_angles)),
            lstm=gate_order(torch.cat([plain, untiled(angles), self.lstm.weight_hh], dim=1)),
            bias=gate_order(self.lstm.bias_ih + self.lstm.bias_hh),
            word_query=self.word_query.weight,
            join=self.join.weight,
        )

    def relative_angles(self, view: Tensor) -> Tensor:
        """Directions of the 36 views, relative to the view faced.  view: (M,)  ->  (M, 36, 4)"""
        return self.view_angles[view % HEADINGS]

    def forward(self, state: LSTMState, observation: Observation) -> LSTMState:
        """One update."""
        weights = observation.once_per_rollout(self.folded_weights)
        return lstm_step(weights, state, observation, self.relative_angles(observation.view)).state


def lstm_step(weights: LSTMWeights, state: LSTMState, observation: Observation, angles: Tensor) -> LSTMStep:
    """Attend to the views, update the LSTM, attend to the words.  angles: (M, 36, 4)"""
    masks, words = observation.masks, observation.instructions
    query = state.hidden * masks["view_query"]
    view_attention = _view_attention(weights, query, observation, angles)
    view = torch.bmm(view_attention.unsqueeze(1), observation.panorama).squeeze(1) * masks.feature
    angle = torch.bmm(view_attention.unsqueeze(1), angles).squeeze(1)
    dropped = torch.cat([weights.pose[observation.view], view], dim=1) * masks["lstm_input"]
    lstm_input = torch.cat([dropped, angle, state.hidden], dim=1)

    sums = torch.addmm(weights.bias, lstm_input, weights.lstm.t())
    opened, candidate = sums.split_with_sizes([3 * state.hidden.shape[1], state.hidden.shape[1]], dim=1)
    gates = torch.cat([opened.sigmoid(), candidate.tanh()], dim=1)
    input_gate, forget_gate, output_gate, candidate = gates.chunk(4, dim=1)
    cell = forget_gate * state.cell + input_gate * candidate
    tanh_cell = cell.tanh()
    output = output_gate * tanh_cell * masks["word_query"]

    word_query = output @ weights.word_query.t()
    word_attention = masked_softmax(dots(words.context, word_query), words.mask)
    joined = torch.cat([torch.bmm(word_attention.unsqueeze(1), words.context).squeeze(1), output], dim=1)
    hidden = torch.tanh(joined @ weights.join.t())
    return LSTMStep(
        query=query,
        view_attention=view_attention,
        lstm_input=lstm_input,
        gates=gates,
        previous_cell=state.cell,
        cell=cell,
        tanh_cell=tanh_cell,
        word_query=word_query,
        word_attention=word_attention,
        joined=joined,
        hidden=hidden,
    )


def _view_attention(weights: LSTMWeights, query: Tensor, observation: Observation, angles: Tensor) -> Tensor:
    """query: (M, H)  angles: (M, 36, 4)  ->  (M, 36)"""
    if weights.view_query is None:
        return nn.functional.one_hot(observation.view, VIEWS).to(query.dtype)
    width = observation.panorama.shape[2]
    visual, angle = (query @ weights.view_query.t()).split_with_sizes([width, ANGLES], dim=1)
    # masking the query is masking the features, for a 36th of the work
    scores = dots(observation.panorama, visual * observation.masks.feature) + dots(angles, angle)
    return scores.softmax(dim=-1)


def _view_angles() -> Tensor:
    """Orientation features of the 36 views for each of the 12 steps an agent can face  ->  (12, 36, 4)"""
    views = torch.arange(VIEWS)
    relative = view_heading(views) - (torch.arange(HEADINGS) * STEP).unsqueeze(-1)
    return angle_feature(relative, view_elevation(views).expand_as(relative), width=4)


def _pose_angles() -> Tensor:
    """Orientation features of the direction an agent faces, per view  ->  (36, 128)"""
    views = torch.arange(VIEWS)
    return angle_feature(view_heading(views), view_elevation(views))


Observe = Callable[[Any, Observation], State]
"""The states of M episodes and what they see  ->  their next states"""


class EpisodeSelection:
    """The instructions and masks of some episodes; those of the last two indices are kept.

    Indices are told apart by identity: comparing them would make the host wait for the device.
    """

    def __init__(self, instructions: Instructions, masks: DropoutMasks) -> None:
        self._all = (instructions, masks)
        self._instructions: list[tuple[Tensor, Instructions]] = []
        self._masks: list[tuple[Tensor, DropoutMasks]] = []

    def instructions(self, episodes: Tensor) -> Instructions:
        """episodes: (M,)"""
        return _kept(self._instructions, episodes, lambda: selected(self._all[0], episodes))

    def masks(self, episodes: Tensor) -> DropoutMasks:
        """episodes: (M,)"""
        return _kept(self._masks, episodes, lambda: self._all[1].select(episodes))


def _kept(found: list[tuple[Tensor, T]], key: Tensor, select: Callable[[], T]) -> T:
    """What was found for this very tensor, or ``select`` it; two are kept."""
    for known, value in found:
        if known is key:
            return value
    found[:] = [*found[-1:], (key, select())]
    return found[-1][1]


class _Rows:
    """States that were made, row after row; room for twice as many is made when there is none.

    What was added is copied when rows are asked for, so that whoever never asks pays nothing.
    """

    def __init__(self) -> None:
        self._count = 0
        self._room: list[Tensor] = []  # (room, W) per field
        self._added: list[list[Tensor]] = []

    def add(self, columns: list[Tensor]) -> None:
        """M rows of every field."""
        self._added.append(columns)

    def select(self, rows: Tensor) -> list[Tensor]:
        """rows: (R,)  ->  R rows of every field"""
        if self._added:
            self._copy_added()
        return [kept.index_select(0, rows) for kept in self._room]

    def _copy_added(self) -> None:
        end = self._count + sum(len(columns[0]) for columns in self._added)
        if not self._room or end > len(self._room[0]):
            room = [values.new_empty(2 * end, *values.shape[1:]) for values in self._added[0]]
            for new, old in zip(room, self._room, strict=False):
                new[: self._count] = old[: self._count]
            self._room = room
        for kept, *added in zip(self._room, *self._added, strict=True):
            torch.cat(added, out=kept[self._count : end])
        self._count, self._added = end, []


class StateLog:
    """The states of walks under way, kept with their gradients when something will be learnt from them.

    Args:
        observe: the agent's update.
        initial: the B states at the start.
        instructions: one per episode.
        masks: the dropout masks of the walks.
        lookup: viewpoints (M,)  ->  the visual features of their views (M, 36, D).
        learns: whether ``stacked`` will be differentiated; needs memory for every observation.
        environment: handed to every observation.
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
        environment: Environment | None = None,
    ) -> None:
        self.instructions = instructions
        self.masks = masks
        self.state = initial  # (B, ...) the current states
        self.earlier = initial.hidden  # (B, H) the hidden states one observation ago
        self._observe = observe
        self._learns = learns
        self._environment = environment
        self.lookup = lookup
        self.selection = EpisodeSelection(instructions, masks)
        self._cache: dict[Any, Any] = {}
        self._viewpoint = torch.full_like(instructions.mask[:, 0], NONE, dtype=torch.long)
        self.previous = self._viewpoint.clone()  # (B,) where they stood before the last observation
        self._made: list[tuple[int, Tensor, State]] = []  # step, episodes (M,), their new states
        # the viewpoints where they were made and those one step before, and the states themselves
        self._rows = _Rows()
        self._many = 0  # states made
        self.row_at = self._viewpoint.unsqueeze(1)[:, :0]  # (B, T) the row of the state made at each step

    def observe(self, active: Tensor, viewpoint: Tensor, view: Tensor, step: int) -> None:
        """At ``step``, which only grows, ``active`` stand at ``viewpoint`` and face ``view``, (M,) each."""
        with torch.set_grad_enabled(self._learns):
            after = self._observed(active, viewpoint, view)
        self._made.append((step, active, after))
        values = [getattr(after, item.name).detach() for item in fields(after)]
        self._rows.add([viewpoint, self.previous[active], *values])
        missing = step + 1 - self.row_at.shape[1]
        self.row_at = torch.nn.functional.pad(self.row_at, (0, missing), value=NONE)
        self.row_at[active, step] = torch.arange(self._many, self._many + len(active), device=active.device)
        self._many += len(active)

    def _observed(self, active: Tensor, viewpoint: Tensor, view: Tensor) -> State:
        """The new states of ``active`` (M,), which are the current ones from now on."""
        observation = Observation(
            viewpoint,
            self._viewpoint[active],
            view,
            self.lookup(viewpoint),
            self.selection.instructions(active),
            self.selection.masks(active),
            self._cache,
            self._environment,
            (self.instructions, active),
        )
        self.previous[active] = observation.previous
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
        rows = self.row_at[active, steps]
        self._viewpoint[active], self.previous[active], *values = self._rows.select(rows)
        if self._learns:
            with torch.enable_grad():
                self.state = self.state.with_rows(active, self._together().select(rows))
        else:
            self.state = self.state.with_rows(active, type(self.state)(*values))

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


def untiled(query: Tensor) -> Tensor:
    """Fold a query for tiled orientation features, so that <tiled r, query> = <r, folded query> exactly.

    The paper tiles the four sines and cosines 32 times. Working with the four numbers and folding the
    learned query instead gives the same scores and gradients for a fraction of the arithmetic.

    query: (..., W), W a multiple of 4  ->  (..., 4)
    """
    return query.view(*query.shape[:-1], -1, 4).sum(dim=-2)
