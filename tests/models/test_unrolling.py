"""The hand-written gradient of whole walks against autograd, one lane and one observation at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scenemem.models.navigator import POSE_WIDTH, LookAhead, LookAround, Navigator, NavigatorState, Noise
from scenemem.models.unrolling import LaneSelection, Unrolling
from torch import Tensor
from torch.nn.functional import dropout

from scenemem.models.language import Instructions
from scenemem.world.graph import VIEWS

LANES, TICKS, VIEWPOINTS, VISUAL, WIDTH, WORDS = 4, 5, 6, 3, 4, 5

LIFETIMES = [3, 5, 1, 4]


def _under_way(lifetimes: list[int]) -> list[Tensor]:
    """The lanes that are still walking, tick by tick."""
    alive = torch.tensor(lifetimes)
    return [(alive > tick).nonzero().squeeze(1) for tick in range(max(lifetimes))]


@dataclass(frozen=True)
class Walks:
    """A navigator, what it is told, what there is to see, and where lanes go; 64-bit numbers."""

    navigator: Navigator
    instructions: Instructions
    noise: Noise
    world: Tensor  # (V, 36, D)
    lanes: list[Tensor]  # who observes at every tick
    viewpoint: Tensor  # (T, B)
    view: Tensor  # (T, B)

    def look(self, viewpoint: Tensor) -> Tensor:
        return self.world[viewpoint]

    def begin(self, *, keeps: bool = True) -> Unrolling:
        return Unrolling(self.navigator, self.instructions, self.noise, self.look, keeps=keeps)

    def unrolled(self, *, keeps: bool = True) -> Unrolling:
        unrolling = self.begin(keeps=keeps)
        for tick in range(len(self.lanes)):
            self.observe(unrolling, tick)
        return unrolling

    def observe(self, unrolling: Unrolling, tick: int) -> None:
        lanes = self.lanes[tick]
        unrolling.observe(lanes, self.viewpoint[tick, lanes], self.view[tick, lanes], tick)

    def stepped(self) -> list[list[NavigatorState]]:
        """The states of every lane by ``Navigator.forward`` alone, the first one included."""
        words, walks = self.instructions, []
        for lane in torch.arange(len(words.hidden)).unsqueeze(1):
            alone, noise = words.select(lane), self.noise.select(lane)
            states = [NavigatorState(alone.hidden, alone.cell)]
            for tick, lanes in enumerate(self.lanes):
                if lane in lanes:
                    seen = self.look(self.viewpoint[tick, lane])
                    states.append(self.navigator(states[-1], seen, self.view[tick, lane], alone, noise))
            walks.append(states)
        return walks

    def expected_rows(self) -> Tensor:
        """The attended states of all observations, tick after tick  ->  (X, H)"""
        walks = [iter(states[1:]) for states in self.stepped()]
        return torch.cat([next(walks[lane]).hidden for lanes in self.lanes for lane in lanes.tolist()])

    def learned(self) -> dict[str, Tensor]:
        """Everything that has a gradient."""
        words = self.instructions
        own = {"context": words.context, "hidden": words.hidden, "cell": words.cell}
        return {**own, **dict(self.navigator.named_parameters())}

    def gradients(self, rows: Tensor, matters: Tensor) -> dict[str, Tensor]:
        """Of the sum of ``rows``, each number times how much it matters; both (X, H)."""
        learned = self.learned()
        found = torch.autograd.grad((rows * matters).sum(), list(learned.values()))
        return dict(zip(learned, found, strict=True))


def _random_walks(lanes: list[Tensor], *, ahead: bool, rate: float = 0.4) -> Walks:
    """rate: of dropout"""
    torch.manual_seed(0)
    look = LookAhead() if ahead else LookAround(VISUAL, WIDTH)
    navigator = Navigator(VISUAL, WIDTH, look).double()
    for parameter in navigator.parameters():
        torch.nn.init.normal_(parameter, std=0.5)

    def number(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def kept(*shape: int) -> Tensor:
        return dropout(torch.ones(shape, dtype=torch.float64), rate)

    mask = torch.arange(WORDS) < torch.tensor([5, 2, 1, 4]).unsqueeze(1)
    return Walks(
        navigator,
        Instructions(number(LANES, WORDS, WIDTH), mask, number(LANES, WIDTH), number(LANES, WIDTH)),
        Noise(
            feature=kept(VISUAL),
            entered=kept(LANES, POSE_WIDTH + VISUAL),
            looking=kept(LANES, WIDTH),
            listening=kept(LANES, WIDTH),
            deciding=kept(LANES, WIDTH),
        ),
        torch.randn(VIEWPOINTS, VIEWS, VISUAL, dtype=torch.float64),
        lanes,
        torch.randint(0, VIEWPOINTS, (len(lanes), LANES)),
        torch.randint(0, VIEWS, (len(lanes), LANES)),
    )


def _assert_gradients_of_autograd(walks: Walks) -> None:
    rows, expected = walks.unrolled().learnable(), walks.expected_rows()
    torch.testing.assert_close(rows, expected)
    matters = torch.randn_like(rows)
    found, wanted = walks.gradients(rows, matters), walks.gradients(expected, matters)
    torch.testing.assert_close(found, wanted)


@pytest.fixture(params=[False, True], ids=["around", "ahead"])
def ahead(request: pytest.FixtureRequest) -> bool:
    """Whether the navigator sees only the view it faces."""
    return bool(request.param)


@pytest.fixture
def walks(ahead: bool) -> Walks:
    """Four walks that end at different ticks."""
    return _random_walks(_under_way(LIFETIMES), ahead=ahead)


def test_states_and_gradients_are_those_of_autograd(walks: Walks) -> None:
    _assert_gradients_of_autograd(walks)


def test_every_parameter_and_every_word_learns(walks: Walks) -> None:
    """So that the comparison above compares something."""
    rows = walks.unrolled().learnable()
    for name, gradient in walks.gradients(rows, torch.randn_like(rows)).items():
        assert gradient.any(), name


def test_gradients_are_those_of_autograd_when_nothing_is_dropped(ahead: bool) -> None:
    _assert_gradients_of_autograd(_random_walks(_under_way(LIFETIMES), ahead=ahead, rate=0.0))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, TICKS), min_size=LANES, max_size=LANES).filter(any), st.booleans())
def test_lanes_may_end_whenever_they_like(lifetimes: list[int], ahead: bool) -> None:
    _assert_gradients_of_autograd(_random_walks(_under_way(lifetimes), ahead=ahead))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(0, LANES - 1), unique=True), min_size=1, max_size=TICKS).filter(any))
def test_lanes_may_wait_and_stand_in_any_order(attendance: list[list[int]]) -> None:
    lanes = [torch.tensor(tick, dtype=torch.long) for tick in attendance]
    _assert_gradients_of_autograd(_random_walks(lanes, ahead=False))


def test_only_the_states_that_matter_are_learned_from(walks: Walks) -> None:
    """Only lane 2 matters, so no other lane's words and beginnings learn anything."""
    unrolling = walks.unrolled()
    rows, seating = unrolling.learnable(), unrolling.seating
    found = walks.gradients(rows, (seating.lane == 2).double().unsqueeze(1).expand_as(rows))
    for name in ("context", "hidden", "cell"):
        assert found[name].flatten(1).any(dim=1).tolist() == [False, False, True, False]


def test_the_state_is_carried_without_gradients(walks: Walks) -> None:
    unrolling = walks.unrolled()
    last = [states[-1] for states in walks.stepped()]
    torch.testing.assert_close(unrolling.hidden, torch.cat([state.hidden for state in last]))
    torch.testing.assert_close(unrolling.cell, torch.cat([state.cell for state in last]))
    assert not unrolling.hidden.requires_grad
    assert not unrolling.cell.requires_grad


def test_the_state_one_observation_ago_is_remembered(walks: Walks) -> None:
    """Lanes that no longer observe keep theirs; before the first observation it is the state itself."""
    unrolling, stepped = walks.begin(), walks.stepped()
    assert torch.equal(unrolling.earlier, walks.instructions.hidden)
    for tick in range(len(walks.lanes)):
        walks.observe(unrolling, tick)
        seen = [min(tick + 1, life) for life in LIFETIMES]
        before = [states[count - 1].hidden for states, count in zip(stepped, seen, strict=True)]
        torch.testing.assert_close(unrolling.earlier, torch.cat(before))


def test_rows_are_seated_tick_after_tick(walks: Walks) -> None:
    unrolling = walks.unrolled()
    seating = unrolling.seating
    assert (seating.lanes, seating.ticks) == (LANES, max(LIFETIMES))
    expected = [(lane, tick) for tick, lanes in enumerate(walks.lanes) for lane in lanes.tolist()]
    assert list(zip(seating.lane.tolist(), seating.tick.tolist(), strict=True)) == expected
    last = torch.tensor(LIFETIMES) - 1
    torch.testing.assert_close(seating.at(unrolling.learnable(), torch.arange(LANES), last), unrolling.hidden)


def test_walks_that_will_not_be_learned_from_keep_nothing(walks: Walks) -> None:
    forgetful = walks.unrolled(keeps=False)
    assert forgetful.steps == []
    assert forgetful.observations == []
    assert torch.equal(forgetful.hidden, walks.unrolled().hidden)
    with pytest.raises(ValueError, match="nothing was kept to learn from; observe something"):
        forgetful.learnable()


def test_a_recalled_state_is_the_one_made_then(walks: Walks) -> None:
    unrolling, stepped = walks.begin(), walks.stepped()
    for tick in range(3):
        walks.observe(unrolling, tick)
    lanes = torch.tensor([3, 1])
    unrolling.recall(lanes, torch.tensor([0, 1]))
    expected = [stepped[3][1], stepped[1][2]]
    torch.testing.assert_close(unrolling.hidden[lanes], torch.cat([state.hidden for state in expected]))
    torch.testing.assert_close(unrolling.cell[lanes], torch.cat([state.cell for state in expected]))
    torch.testing.assert_close(unrolling.hidden[0], stepped[0][3].hidden[0])


def _recalling(walks: Walks, recalled: list[dict[int, int]]) -> tuple[Tensor, Tensor]:
    """The states of walks that recall, by an unrolling and by the navigator alone.

    recalled: for every tick, which lanes recall which tick before they observe
    """
    unrolling, rows = walks.begin(), []
    words = walks.instructions
    now = {
        lane: NavigatorState(words.hidden[lane : lane + 1], words.cell[lane : lane + 1])
        for lane in range(LANES)
    }
    made: dict[tuple[int, int], NavigatorState] = {}
    for tick, lanes in enumerate(walks.lanes):
        back = {lane: then for lane, then in recalled[tick].items() if (lane, then) in made}
        if back:
            unrolling.recall(torch.tensor(list(back)), torch.tensor(list(back.values())))
            now.update({lane: made[lane, then] for lane, then in back.items()})
        walks.observe(unrolling, tick)
        for lane in lanes.tolist():
            one = torch.tensor([lane])
            seen, view = walks.look(walks.viewpoint[tick, one]), walks.view[tick, one]
            alone, noise = words.select(one), walks.noise.select(one)
            now[lane] = made[lane, tick] = walks.navigator(now[lane], seen, view, alone, noise)
            rows.append(now[lane].hidden)
    return unrolling.learnable(), torch.cat(rows)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, LANES - 1), st.integers(0, TICKS - 1)), min_size=TICKS, max_size=TICKS
    )
)
def test_gradients_through_recalled_states_are_those_of_autograd(recalled: list[dict[int, int]]) -> None:
    walks = _random_walks(_under_way([TICKS] * LANES), ahead=False)
    rows, expected = _recalling(walks, recalled)
    torch.testing.assert_close(rows, expected)
    matters = torch.randn_like(rows)
    torch.testing.assert_close(walks.gradients(rows, matters), walks.gradients(expected, matters))


def test_instructions_stay_as_they_are(walks: Walks) -> None:
    before = [part.detach().clone() for part in (walks.instructions.hidden, walks.instructions.cell)]
    walks.unrolled()
    assert torch.equal(walks.instructions.hidden, before[0])
    assert torch.equal(walks.instructions.cell, before[1])


def test_a_lane_does_not_depend_on_the_others(walks: Walks) -> None:
    """Lane 3 walks alone, then among lanes that see, hear and drop something else."""
    matters = torch.randn(LIFETIMES[3], WIDTH, dtype=torch.float64)

    def learned(walks: Walks) -> tuple[Tensor, dict[str, Tensor]]:
        unrolling = walks.unrolled()
        rows = unrolling.learnable()
        own = unrolling.seating.lane == 3
        weight = torch.zeros_like(rows).index_put((own,), matters)
        return rows[own], walks.gradients(rows, weight)

    others = torch.arange(LANES).unsqueeze(1) < 3
    words, noise = walks.instructions, walks.noise
    elsewhere = replace(
        walks,
        instructions=replace(
            words, context=torch.where(others.unsqueeze(2), words.context.cos(), words.context)
        ),
        noise=replace(noise, listening=torch.where(others, 1.0, noise.listening)),
        viewpoint=torch.where(others.t(), 0, walks.viewpoint),
    )
    alone = replace(walks, lanes=[lanes[lanes == 3] for lanes in walks.lanes[: LIFETIMES[3]]])
    rows, gradients = learned(walks)
    for company in (alone, elsewhere):
        seen, found = learned(company)
        torch.testing.assert_close(seen, rows)
        torch.testing.assert_close(found, gradients)


def test_the_words_and_noise_of_lanes_are_copied_only_when_lanes_change(walks: Walks) -> None:
    selection = LaneSelection(walks.instructions, walks.noise)
    for lanes in (torch.tensor([0, 2]), torch.tensor([0, 2, 3]), torch.tensor([3, 2, 0])):
        words, noise = selection.select(lanes)
        assert torch.equal(words.context, walks.instructions.context[lanes])
        assert torch.equal(noise.entered, walks.noise.entered[lanes])
        again, _ = selection.select(lanes.clone())
        assert again is words
