"""What an agent carries through a walk (paper, Eq. 1): states, what changes them, and the log of all of them.

``StateUpdater`` is the contract of a recurrent core. ``StateLog`` keeps the states of walks for plain
autograd. Shape letters: B episodes, M episodes that observe, X = sum of M, T steps, D visual columns, H state
width, L words.
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

from scenemem.features.store import Environment, PanoramaLookup
from scenemem.models.language import Instructions, Packing
from scenemem.world.graph import NONE

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
