"""The states of whole walks: plain autograd and the hand-written gradient are held equal here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import dropout

from scenemem.errors import SettingError
from scenemem.models.navigator import (
    POSE_WIDTH,
    AheadOnly,
    DropoutMasks,
    EpisodeSelection,
    FusedStateLog,
    HiddenState,
    Instructions,
    LSTMState,
    LSTMUpdater,
    Observation,
    PanoramaQuery,
    State,
    StateLog,
    StateUpdater,
    selected,
)
from scenemem.world.graph import VIEWS

EPISODES, STEPS, VIEWPOINTS, VISUAL, WIDTH, WORDS = 4, 5, 6, 3, 4, 5

LENGTHS = [3, 5, 1, 4]
"""Observations of each episode: the active set shrinks, and episode 2 has a single step."""

Restored = Sequence[dict[int, int]]
"""For every step, which episodes restore the state of which step before they observe."""

equal = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)


def _shrinking(lengths: list[int]) -> list[Tensor]:
    """The episodes that are still walking, step by step."""
    length = torch.tensor(lengths)
    return [(length > step).nonzero().squeeze(1) for step in range(max(lengths))]


@dataclass(frozen=True)
class Walks:
    """An updater, its instructions, what there is to see, and where episodes go; 64-bit numbers."""

    updater: LSTMUpdater
    instructions: Instructions
    masks: DropoutMasks
    panoramas: Tensor  # (V, 36, D)
    active: list[Tensor]  # who observes at every step
    viewpoint: Tensor  # (T, B)
    view: Tensor  # (T, B)
    restored: Restored = field(default_factory=lambda: [{}] * STEPS)

    def lookup(self, viewpoint: Tensor) -> Tensor:
        return self.panoramas[viewpoint]

    def plain(self, *, learns: bool = True) -> StateLog:
        initial = self.updater.initial_state(self.instructions)
        return StateLog(self.updater, initial, self.instructions, self.masks, self.lookup, learns=learns)

    def fused(self) -> FusedStateLog:
        return FusedStateLog(self.updater, self.instructions, self.masks, self.lookup)

    def walk(self, log: StateLog) -> StateLog:
        """Let a log observe everything."""
        made: set[tuple[int, int]] = set()
        for step, active in enumerate(self.active):
            back = {e: then for e, then in self.restored[step].items() if (e, then) in made}
            if back:
                log.restore(torch.tensor(list(back)), torch.tensor(list(back.values())))
            self.observe(log, step)
            made |= {(episode, step) for episode in active.tolist()}
        return log

    def observe(self, log: StateLog, step: int) -> None:
        active = self.active[step]
        log.observe(active, self.viewpoint[step, active], self.view[step, active], step)

    def one_by_one(self) -> dict[tuple[int, int], LSTMState]:
        """Every state by the updater alone, one episode at a time; keys are episode and step.

        The states before the first observation have step -1.
        """
        made: dict[tuple[int, int], LSTMState] = {}
        for episode in torch.arange(EPISODES).unsqueeze(1):
            number, words = int(episode), selected(self.instructions, episode)
            made[number, -1] = now = self.updater.initial_state(words)
            for step, active in enumerate(self.active):
                now = made.get((number, self.restored[step].get(number, STEPS)), now)
                if number in active.tolist():
                    observation = Observation(
                        self.viewpoint[step, episode],
                        torch.tensor([-1]),
                        self.view[step, episode],
                        self.lookup(self.viewpoint[step, episode]),
                        words,
                        self.masks.select(episode),
                    )
                    now = made[number, step] = self.updater(now, observation)
        return made

    def expected(self) -> LSTMState:
        """The states of ``one_by_one``, step after step  ->  (X, ...)"""
        made = self.one_by_one()
        rows = [made[episode, step] for step, active in enumerate(self.active) for episode in active.tolist()]
        return LSTMState(*(torch.cat([getattr(row, f.name) for row in rows]) for f in fields(LSTMState)))

    def gradients(self, rows: Tensor, upstream: Tensor) -> dict[str, Tensor]:
        """Of everything that learns, from the gradient of ``rows``; both (X, H)."""
        words = self.instructions
        own = {"context": words.context, "hidden": words.hidden, "cell": words.cell}
        learned = {**own, **dict(self.updater.named_parameters())}
        return dict(zip(learned, torch.autograd.grad(rows, list(learned.values()), upstream), strict=True))


def _random_walks(
    active: list[Tensor], *, ahead: bool = False, rate: float = 0.4, restored: Restored | None = None
) -> Walks:
    """ahead: only the view ahead is seen  rate: of dropout"""
    torch.manual_seed(0)
    updater = LSTMUpdater(VISUAL, WIDTH, AheadOnly() if ahead else PanoramaQuery(VISUAL, WIDTH)).double()
    for parameter in updater.parameters():
        torch.nn.init.normal_(parameter, std=0.5)

    def learned(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def kept(*shape: int) -> Tensor:
        return dropout(torch.ones(shape, dtype=torch.float64), rate)

    mask = torch.arange(WORDS) < torch.tensor([5, 2, 1, 4]).unsqueeze(1)
    return Walks(
        updater,
        Instructions(
            learned(EPISODES, WORDS, WIDTH), mask, learned(EPISODES, WIDTH), learned(EPISODES, WIDTH)
        ),
        DropoutMasks(
            feature=kept(VISUAL),
            rows={
                "lstm_input": kept(EPISODES, POSE_WIDTH + VISUAL),
                "view_query": kept(EPISODES, WIDTH),
                "word_query": kept(EPISODES, WIDTH),
            },
        ),
        torch.randn(VIEWPOINTS, VIEWS, VISUAL, dtype=torch.float64),
        active,
        torch.randint(0, VIEWPOINTS, (len(active), EPISODES)),
        torch.randint(0, VIEWS, (len(active), EPISODES)),
        restored or [{}] * len(active),
    )


def _assert_equal(walks: Walks) -> None:
    """Both logs and the updater by itself: the same states, and the same gradients of everything."""
    plain, fused = walks.walk(walks.plain()), walks.walk(walks.fused())
    expected = walks.expected()
    hidden = {"plain": plain.stacked().hidden, "fused": fused.stacked().hidden}
    upstream = torch.randn_like(expected.hidden)
    gradients = walks.gradients(expected.hidden, upstream)
    for rows in hidden.values():
        equal(rows, expected.hidden)
        equal(walks.gradients(rows, upstream), gradients)
    for item in fields(LSTMState):
        equal(getattr(fused.state, item.name), getattr(plain.state, item.name).detach())
    equal(fused.earlier, plain.earlier)
    for name in ("episode", "step"):
        assert torch.equal(getattr(fused.packing, name), getattr(plain.packing, name))


@pytest.fixture(params=[False, True], ids=["around", "ahead"])
def ahead(request: pytest.FixtureRequest) -> bool:
    """Whether the agent sees only the view it faces."""
    return bool(request.param)


@pytest.fixture
def walks(ahead: bool) -> Walks:
    """Four walks that end at different steps."""
    return _random_walks(_shrinking(LENGTHS), ahead=ahead)


LogOf = Callable[[Walks], StateLog]
either_log = pytest.mark.parametrize("log_of", [Walks.plain, Walks.fused], ids=["plain", "fused"])


def test_both_logs_give_the_same_states_and_gradients(walks: Walks) -> None:
    _assert_equal(walks)


def test_both_logs_agree_when_nothing_is_dropped(ahead: bool) -> None:
    _assert_equal(_random_walks(_shrinking(LENGTHS), ahead=ahead, rate=0.0))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, STEPS), min_size=EPISODES, max_size=EPISODES).filter(any), st.booleans())
def test_both_logs_agree_whenever_episodes_end(lengths: list[int], ahead: bool) -> None:
    _assert_equal(_random_walks(_shrinking(lengths), ahead=ahead))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, EPISODES - 1), unique=True), min_size=1, max_size=STEPS).filter(any))
def test_both_logs_agree_when_episodes_wait_and_stand_in_any_order(active: list[list[int]]) -> None:
    _assert_equal(_random_walks([torch.tensor(episodes, dtype=torch.long) for episodes in active]))


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, STEPS), min_size=EPISODES, max_size=EPISODES),
    restored=st.lists(
        st.dictionaries(st.integers(0, EPISODES - 1), st.integers(0, STEPS - 1)),
        min_size=STEPS,
        max_size=STEPS,
    ),
    ahead=st.booleans(),
)
def test_both_logs_agree_on_walks_that_restore_states(
    lengths: list[int], restored: list[dict[int, int]], ahead: bool
) -> None:
    """A state that several later states go on from gathers the gradients of all of them."""
    _assert_equal(_random_walks(_shrinking(lengths), ahead=ahead, restored=restored))


def test_both_logs_agree_when_one_state_is_restored_again_and_again(ahead: bool) -> None:
    """All episodes go on from their first state at every step; episode 3 from its second at the last."""
    restored = [{}, {}, *[dict.fromkeys(range(EPISODES), 0)] * 2, {0: 0, 1: 0, 2: 0, 3: 1}]
    _assert_equal(_random_walks(_shrinking([STEPS] * EPISODES), ahead=ahead, restored=restored))


@either_log
def test_every_parameter_and_every_word_learns(log_of: LogOf, walks: Walks) -> None:
    """So that the comparisons above compare something; padding of the words learns nothing."""
    rows = walks.walk(log_of(walks)).stacked().hidden
    gradients = walks.gradients(rows, torch.randn_like(rows))
    for name, gradient in gradients.items():
        assert gradient.any(), name
    assert torch.equal(gradients["context"].any(dim=2), walks.instructions.mask)


@either_log
def test_gradients_are_there_although_acting_happens_without_them(log_of: LogOf, walks: Walks) -> None:
    """Policies observe under ``no_grad``; what is learnt from afterwards must not depend on it."""
    log, expected = log_of(walks), walks.expected().hidden
    with torch.no_grad():
        walks.walk(log)
    rows, upstream = log.stacked().hidden, torch.randn_like(expected)
    equal(walks.gradients(rows, upstream), walks.gradients(expected, upstream))


def test_gradients_are_there_when_a_state_was_restored_without_them(ahead: bool) -> None:
    restored: list[dict[int, int]] = [{}, {}, {0: 0, 3: 1}, {1: 0}, {}]
    walks = _random_walks(_shrinking([STEPS] * EPISODES), ahead=ahead, restored=restored)
    log, expected = walks.plain(), walks.expected().hidden
    with torch.no_grad():
        walks.walk(log)
    rows, upstream = log.stacked().hidden, torch.randn_like(expected)
    equal(walks.gradients(rows, upstream), walks.gradients(expected, upstream))


def test_autograd_differentiates_every_field_of_a_state(walks: Walks) -> None:
    stacked, expected = walks.walk(walks.plain()).stacked(), walks.expected()
    assert isinstance(stacked, LSTMState)
    equal(stacked.cell, expected.cell)
    equal(stacked.word_attention, expected.word_attention)
    upstream = torch.randn(len(expected.cell), 2 * WIDTH + WORDS, dtype=torch.float64)
    equal(walks.gradients(_all_fields(stacked), upstream), walks.gradients(_all_fields(expected), upstream))


def _all_fields(state: LSTMState) -> Tensor:
    """(X, 2H + L)"""
    return torch.cat([state.hidden, state.cell, state.word_attention], dim=1)


def test_the_fused_gradient_refuses_to_hand_out_what_it_has_no_gradient_of(walks: Walks) -> None:
    state = walks.walk(walks.fused()).stacked()
    assert type(state) is HiddenState
    with pytest.raises(
        SettingError,
        match=r"the fused gradient only has 'hidden', not 'cell'; switch it off with --learning\.no-fused",
    ):
        _ = state.cell
    with pytest.raises(SettingError, match="not 'word_attention'"):
        _ = state.word_attention


def test_states_of_the_fused_gradient_are_selected_like_others(walks: Walks) -> None:
    state, rows = walks.walk(walks.fused()).stacked(), torch.tensor([3, 0, 3])
    chosen = state.select(rows)
    assert type(chosen) is HiddenState
    assert torch.equal(chosen.hidden, state.hidden[rows])
    assert chosen.hidden.requires_grad
    assert chosen.attention == {}


@either_log
def test_only_states_with_a_gradient_are_learnt_from(log_of: LogOf, walks: Walks) -> None:
    """Only episode 3 has one, so no other episode's words and initial states learn anything."""
    log = walks.walk(log_of(walks))
    rows = log.stacked().hidden
    found = walks.gradients(rows, (log.packing.episode == 3).double().unsqueeze(1).expand_as(rows))
    for name in ("context", "hidden", "cell"):
        assert found[name].flatten(1).any(dim=1).tolist() == [False, False, False, True]


@either_log
def test_the_current_states_are_the_last_ones_made(log_of: LogOf, walks: Walks) -> None:
    log, made = walks.walk(log_of(walks)), walks.one_by_one()
    last = [made[episode, length - 1] for episode, length in enumerate(LENGTHS)]
    assert isinstance(log.state, LSTMState)
    for item in fields(LSTMState):
        equal(getattr(log.state, item.name), torch.cat([getattr(state, item.name) for state in last]))


def test_the_current_states_of_the_fused_log_have_no_gradient(walks: Walks) -> None:
    log = walks.walk(walks.fused())
    assert isinstance(log.state, LSTMState)
    for item in fields(LSTMState):
        assert not getattr(log.state, item.name).requires_grad


@either_log
def test_the_hidden_states_one_observation_ago_are_known(log_of: LogOf, walks: Walks) -> None:
    """Episodes that no longer observe keep theirs; before the first observation it is the initial state."""
    log, made = log_of(walks), walks.one_by_one()
    assert torch.equal(log.earlier, walks.instructions.hidden)
    for step in range(len(walks.active)):
        walks.observe(log, step)
        before = [made[episode, min(step, length - 1) - 1] for episode, length in enumerate(LENGTHS)]
        equal(log.earlier, torch.cat([state.hidden for state in before]))
    assert not log.earlier.requires_grad


@either_log
def test_states_are_packed_step_after_step(log_of: LogOf, walks: Walks) -> None:
    log = walks.walk(log_of(walks))
    packing = log.packing
    assert (packing.episodes, packing.steps) == (EPISODES, max(LENGTHS))
    expected = [(episode, step) for step, active in enumerate(walks.active) for episode in active.tolist()]
    assert list(zip(packing.episode.tolist(), packing.step.tolist(), strict=True)) == expected
    last = log.row_at[torch.arange(EPISODES), torch.tensor(LENGTHS) - 1]
    equal(log.stacked().hidden[last], log.state.hidden)


@either_log
def test_the_row_of_a_state_is_found_by_its_episode_and_step(log_of: LogOf, walks: Walks) -> None:
    """-1 where no state was made; rows that are known never change."""
    log = log_of(walks)
    assert log.row_at.shape == (EPISODES, 0)
    for step in range(len(walks.active)):
        before = log.row_at
        walks.observe(log, step)
        assert log.row_at.shape == (EPISODES, step + 1)
        assert torch.equal(log.row_at[:, :step], before)
    packing = log.packing
    where = (packing.episode, packing.step)
    assert torch.equal(log.row_at[where], torch.arange(len(packing.episode)))
    observed = torch.zeros_like(log.row_at).index_put(where, torch.tensor(1)).bool()
    assert (log.row_at[~observed] == -1).all()


@either_log
def test_steps_without_any_observation_may_be_left_out(log_of: LogOf, walks: Walks) -> None:
    """Episodes 1 and 3 observe at steps 0, 3 and 7; what was made at step 3 is restored by that number."""
    log, active = log_of(walks), torch.tensor([1, 3])
    for number, step in enumerate([0, 3, 7]):
        log.observe(active, walks.viewpoint[number, active], walks.view[number, active], step)
    assert (log.packing.steps, log.packing.step.tolist()) == (8, [0, 0, 3, 3, 7, 7])
    nothing = [-1] * 8
    assert log.row_at.tolist() == [
        nothing,
        [0, -1, -1, 2, -1, -1, -1, 4],
        nothing,
        [1, -1, -1, 3, -1, -1, -1, 5],
    ]
    log.restore(torch.tensor([3]), torch.tensor([3]))
    made = walks.one_by_one()
    equal(log.state.hidden[3], made[3, 1].hidden[0])
    equal(log.state.hidden[1], made[1, 2].hidden[0])


@either_log
def test_a_restored_state_is_the_one_made_then(log_of: LogOf, walks: Walks) -> None:
    log, made = log_of(walks), walks.one_by_one()
    for step in range(3):
        walks.observe(log, step)
    log.restore(torch.tensor([3, 1]), torch.tensor([0, 1]))
    assert isinstance(log.state, LSTMState)
    expected = [made[0, 2], made[1, 1], made[2, 0], made[3, 0]]
    for item in fields(LSTMState):
        equal(getattr(log.state, item.name), torch.cat([getattr(state, item.name) for state in expected]))


@either_log
def test_a_restored_state_is_the_one_before_the_next_observation(log_of: LogOf, walks: Walks) -> None:
    walks = replace(walks, restored=[{}, {}, {}, {3: 0}, {}])
    log, made = log_of(walks), walks.one_by_one()
    for step in range(3):
        walks.observe(log, step)
    log.restore(torch.tensor([3]), torch.tensor([0]))
    walks.observe(log, 3)
    before = [made[0, 1], made[1, 2], made[2, -1], made[3, 0]]
    equal(log.earlier, torch.cat([state.hidden for state in before]))
    equal(log.state.hidden[3], made[3, 3].hidden[0])


@either_log
def test_states_that_are_stacked_twice_learn_from_both_losses(log_of: LogOf, walks: Walks) -> None:
    log = walks.walk(log_of(walks))
    first, second = log.stacked().hidden, log.stacked().hidden
    upstream = torch.randn_like(first)
    found = walks.gradients(first + 2 * second, upstream)
    equal(found, walks.gradients(walks.expected().hidden, 3 * upstream))


@either_log
def test_the_instructions_stay_as_they_are(log_of: LogOf, walks: Walks) -> None:
    before = [getattr(walks.instructions, item.name).clone() for item in fields(Instructions)]
    log = walks.walk(log_of(walks))
    log.restore(torch.tensor([1]), torch.tensor([0]))
    for item, value in zip(fields(Instructions), before, strict=True):
        assert torch.equal(getattr(walks.instructions, item.name), value)


@either_log
def test_nothing_can_be_learnt_before_something_was_observed(log_of: LogOf, walks: Walks) -> None:
    with pytest.raises(ValueError, match="no state was made yet; observe something first"):
        log_of(walks).stacked()


def test_walks_that_will_not_be_learnt_from_have_no_gradients(walks: Walks) -> None:
    log = walks.walk(walks.plain(learns=False))
    stacked = log.stacked()
    equal(stacked.hidden, walks.expected().hidden.detach())
    for state in (stacked, log.state):
        assert isinstance(state, LSTMState)
        assert not any(getattr(state, item.name).requires_grad for item in fields(LSTMState))
    log.restore(torch.tensor([1]), torch.tensor([0]))
    assert not log.state.hidden.requires_grad


def test_panoramas_are_looked_up_again_for_the_fused_gradient(walks: Walks) -> None:
    """In the opposite order, so that not all of them are in memory."""
    lookups: list[list[int]] = []

    def lookup(viewpoint: Tensor) -> Tensor:
        lookups.append(viewpoint.tolist())
        return walks.lookup(viewpoint)

    log = walks.walk(FusedStateLog(walks.updater, walks.instructions, walks.masks, lookup))
    seen = list(lookups)
    assert len(seen) == len(walks.active)
    log.stacked().hidden.sum().backward()  # type: ignore[no-untyped-call]
    assert lookups == [*seen, *reversed(seen)]


@either_log
def test_an_episode_does_not_depend_on_the_others(log_of: LogOf, walks: Walks) -> None:
    """Episode 3 walks alone, then beside episodes that see, read and drop something else."""
    upstream = torch.randn(LENGTHS[3], WIDTH, dtype=torch.float64)

    def learned(walks: Walks) -> tuple[Tensor, dict[str, Tensor]]:
        log = walks.walk(log_of(walks))
        rows, own = log.stacked().hidden, log.packing.episode == 3
        return rows[own], walks.gradients(rows, torch.zeros_like(rows).index_put((own,), upstream))

    others = torch.arange(EPISODES).unsqueeze(1) < 3
    words, masks = walks.instructions, walks.masks
    elsewhere = replace(
        walks,
        instructions=replace(
            words, context=torch.where(others.unsqueeze(2), words.context.cos(), words.context)
        ),
        masks=replace(
            masks, rows={name: torch.where(others, 1.0, mask) for name, mask in masks.rows.items()}
        ),
        viewpoint=torch.where(others.t(), 0, walks.viewpoint),
    )
    alone = replace(walks, active=[active[active == 3] for active in walks.active[: LENGTHS[3]]])
    rows, gradients = learned(walks)
    for company in (alone, elsewhere):
        found, learnt = learned(company)
        equal(found, rows)
        equal(learnt, gradients)


def test_instructions_and_masks_are_selected_again_only_when_the_episodes_change(walks: Walks) -> None:
    selection = EpisodeSelection(walks.instructions, walks.masks)
    for episodes in (torch.tensor([0, 2]), torch.tensor([0, 2, 3]), torch.tensor([3, 2, 0])):
        words, masks = selection.instructions(episodes), selection.masks(episodes)
        assert torch.equal(words.context, walks.instructions.context[episodes])
        assert torch.equal(masks["lstm_input"], walks.masks["lstm_input"][episodes])
        assert selection.instructions(episodes) is words
        assert selection.masks(episodes) is masks


def test_the_last_two_selections_are_kept(walks: Walks) -> None:
    """Episodes with a teacher observe as well, the others alone decide: both indices come again."""
    selection = EpisodeSelection(walks.instructions, walks.masks)
    first, second, third = (torch.tensor(numbers) for numbers in ([0], [1, 2], [3]))
    kept = selection.instructions(first), selection.instructions(second)
    assert (selection.instructions(first), selection.instructions(second)) == kept
    selection.instructions(third)
    assert selection.instructions(second) is kept[1]
    assert selection.instructions(first) is not kept[0]


def test_instructions_and_masks_may_be_selected_for_different_episodes(walks: Walks) -> None:
    """Agents that never read the words select masks only."""
    selection = EpisodeSelection(walks.instructions, walks.masks)
    some, others = torch.tensor([1, 3]), torch.tensor([2])
    masks, words = selection.masks(some), selection.instructions(others)
    assert torch.equal(masks["view_query"], walks.masks["view_query"][some])
    assert torch.equal(words.hidden, walks.instructions.hidden[others])
    assert selection.masks(some) is masks
    assert selection.instructions(others) is words
    assert torch.equal(selection.instructions(some).hidden, walks.instructions.hidden[some])
    assert selection.masks(some) is masks


@dataclass(frozen=True)
class _Visits(State):
    count: Tensor  # (B, 1)


class _Recording(StateUpdater):
    """Another recurrent core: it keeps what it was shown."""

    width = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[Observation] = []

    def initial_state(self, instructions: Instructions) -> _Visits:
        return _Visits(instructions.hidden, torch.zeros_like(instructions.hidden[:, :1]))

    def forward(self, state: _Visits, observation: Observation) -> _Visits:
        self.shown.append(observation)
        return _Visits(state.hidden * 2, state.count + 1)


def _recording_log(walks: Walks) -> tuple[_Recording, StateLog]:
    updater = _Recording()
    initial = updater.initial_state(walks.instructions)
    return updater, StateLog(updater, initial, walks.instructions, walks.masks, walks.lookup, learns=True)


def test_an_updater_is_shown_what_its_episodes_see(walks: Walks) -> None:
    """Where they stand and stood, what they face, their own words and masks, one cache for all."""
    updater, log = _recording_log(walks)
    walks.walk(log)
    previous = torch.full((EPISODES,), -1)
    for step, (active, shown) in enumerate(zip(walks.active, updater.shown, strict=True)):
        viewpoint = walks.viewpoint[step, active]
        assert torch.equal(shown.viewpoint, viewpoint)
        assert torch.equal(shown.previous, previous[active])
        assert torch.equal(shown.view, walks.view[step, active])
        assert torch.equal(shown.panorama, walks.panoramas[viewpoint])
        assert torch.equal(shown.instructions.context, walks.instructions.context[active])
        assert torch.equal(shown.masks["word_query"], walks.masks["word_query"][active])
        assert shown.cache is updater.shown[0].cache
        previous[active] = viewpoint


def test_who_restores_a_state_stands_where_it_was_made(walks: Walks) -> None:
    """Episode 3 goes back to where it stood at step 0; from there it sees the next place."""
    updater, log = _recording_log(walks)
    walks.viewpoint[:3, 3], walks.viewpoint[:3, 1] = torch.tensor([4, 5, 2]), torch.tensor([3, 1, 0])
    for step in (0, 1):
        walks.observe(log, step)
    log.restore(torch.tensor([3]), torch.tensor([0]))
    walks.observe(log, 2)
    previous = dict(zip(walks.active[2].tolist(), updater.shown[2].previous.tolist(), strict=True))
    assert previous[3] == 4
    assert previous[1] == 1


def test_all_fields_of_another_state_are_kept_and_restored(walks: Walks) -> None:
    _, log = _recording_log(walks)
    walks.walk(log)
    stacked = log.stacked()
    assert isinstance(stacked, _Visits)
    assert stacked.count.flatten().tolist() == [step + 1.0 for step in log.packing.step.tolist()]
    assert isinstance(log.state, _Visits)
    assert log.state.count.flatten().tolist() == LENGTHS
    log.restore(torch.tensor([1]), torch.tensor([2]))
    assert isinstance(log.state, _Visits)
    assert log.state.count.flatten().tolist() == [3.0, 3.0, 1.0, 4.0]
    (gradient,) = torch.autograd.grad(stacked.hidden.sum(), walks.instructions.hidden)
    assert gradient[:, 0].tolist() == [2.0 ** (length + 1) - 2 for length in LENGTHS]
