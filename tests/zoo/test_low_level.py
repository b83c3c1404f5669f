"""Low-level actions and their agents: what a camera sees, labels that lead to the goal, imagined views."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import LocalActions
from scenemem.agents.rollout import Rollout
from scenemem.agents.walker import FollowLabels, collect
from scenemem.features.store import Environment
from scenemem.formats.folder import DataFolder
from scenemem.learning.objectives import imitation
from scenemem.models.navigator import Observation, RolloutInputs
from scenemem.presets import PRESETS
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import build_world, load_world
from scenemem.world.graph import NONE, World
from scenemem.zoo import low_level
from scenemem.zoo.low_level import DOWN, END, FORWARD, LEFT, LOW_LEVEL, RIGHT, UP, LowLevelActions
from scenemem.zoo.objectives import LowLevelExpert, LowLevelPath, environment_model
from scenemem.zoo.pta import PTA, PastState
from scenemem.zoo.rpa import RPA
from scenemem.zoo.student_forcing import START, WALK, LowLevelAgent, ViewAheadUpdater
from tests.agents.helpers import walks_of
from tests.conftest import scan_from_graph
from tests.zoo.helpers import Setting, Walk, learnt_by, places_of, roam

DIRECTIONS = {
    # degrees to the right and up: what is right in the lowest row of views, in the middle and in the highest
    (25, 0): (FORWARD, FORWARD, FORWARD),
    (35, 0): (RIGHT, RIGHT, RIGHT),
    (-35, 0): (LEFT, LEFT, LEFT),
    (45, 0): (UP, RIGHT, DOWN),
    (-175, 0): (UP, LEFT, DOWN),
    (-5, 25): (UP, FORWARD, FORWARD),
    (5, 37): (UP, UP, FORWARD),
    (0, 75): (UP, UP, FORWARD),
    (-5, -35): (FORWARD, DOWN, DOWN),
    (0, -75): (FORWARD, DOWN, DOWN),
}
AHEAD = {
    # heading and elevation of the camera, and where a step forward leads
    (0, 0): (25, 0),
    (0, 30): (-5, 25),
    (0, -30): (-5, -35),
    (60, 0): (45, 0),
    (90, 0): None,
    (180, 0): (-175, 0),
    (180, 30): (-175, 0),
    (270, 0): None,
    (300, 0): (-35, 0),
}


@pytest.fixture(scope="module")
def star() -> World:
    """A place in the middle, and one in each of the directions."""
    graph = nx.star_graph(len(DIRECTIONS))
    graph.nodes[0]["position"] = (0.0, 0.0, 0.0)
    for node, angles in enumerate(DIRECTIONS, 1):
        aside, above = map(math.radians, angles)
        level = 3.0 * math.cos(above)
        position = (level * math.sin(aside), level * math.cos(aside), 3.0 * math.sin(above))
        graph.nodes[node]["position"] = position
    return build_world([scan_from_graph("star", graph)])


def test_forward_leads_to_the_neighbour_in_the_middle_of_the_picture(star: World) -> None:
    views = torch.tensor([heading // 30 + 12 * (elevation // 30 + 1) for heading, elevation in AHEAD])
    centre = torch.full_like(views, star.index_of("star", "0"))
    for slot, direction in zip(
        low_level.forward_slot(star, centre, views).tolist(), AHEAD.values(), strict=True
    ):
        assert (slot == NONE) == (direction is None)
        if direction is not None:
            place = star.viewpoints[int(star.neighbour[centre[0], slot])]
            assert list(DIRECTIONS)[int(place) - 1] == direction


def test_turns_and_tilts_move_the_camera_by_one_view_and_are_seen_from_it() -> None:
    view = torch.tensor([12, 12, 12, 12, 12, 23, 24, 0, 5])
    choice = torch.tensor([LEFT, RIGHT, UP, DOWN, FORWARD, RIGHT, UP, DOWN, END])
    assert low_level.turned(view, choice).tolist() == [23, 13, 24, 0, 12, 12, 24, 0, 5]
    before = torch.arange(36)
    for number in range(6):
        after = low_level.turned(before, torch.full_like(before, number))
        moved = torch.full_like(before, number == FORWARD, dtype=torch.bool)
        changed = (before != after) | moved
        assert torch.equal(low_level.action_between(before, after, moved), torch.where(changed, number, END))


def _led(world: World, episodes: EpisodeSet, limit: int, rule: LowLevelExpert | None = None) -> Rollout:
    """Walks that follow labels, by default those that lead to the goal."""
    space = LowLevelActions(world, len(episodes), limit)
    rule = rule or LowLevelExpert(world, episodes.goal)
    return collect(world, episodes, space, FollowLabels(), max_steps=limit + 6, label_rule=rule)


def _arrived(rollout: Rollout, goal: Tensor) -> Tensor:
    ends = rollout.viewpoint.gather(1, (rollout.length - 1).unsqueeze(1)).squeeze(1)
    return (ends == goal) & rollout.stopped


def test_the_expert_gets_to_every_goal(world: World, episodes: EpisodeSet) -> None:
    rollout = _led(world, episodes, 60)
    assert bool(_arrived(rollout, episodes.goal).all())
    assert _led(world, episodes, 3).length.tolist() == [4] * len(episodes), "cut off after its decisions"
    table = rollout.decisions[LOW_LEVEL]
    assert set(table.choice.tolist()) >= {LEFT, RIGHT, FORWARD, END}
    here, view = (places[table.episode, table.step] for places in (rollout.viewpoint, rollout.view))
    assert torch.equal(table.options[:, FORWARD], low_level.forward_slot(world, here, view) != NONE)
    assert bool(table.options[:, [LEFT, RIGHT, UP, DOWN, END]].all())
    # a turn keeps the place, a step keeps the view
    goes = table.choice != END
    episode, later, choice = table.episode[goes], table.step[goes] + 1, table.choice[goes]
    assert torch.equal(rollout.viewpoint[episode, later] != here[goes], choice == FORWARD)
    assert torch.equal(rollout.view[episode, later], low_level.turned(view[goes], choice))


def test_the_expert_of_a_path_visits_all_its_points(world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 9))
    rule = LowLevelPath(world, some.path, passes_over=False)
    for path, walked in zip(map(places_of, some.path), walks_of(_led(world, some, 80, rule)), strict=True):
        rest = iter(walked)
        assert all(point in rest for point in path), "in their order"
        assert walked[-1] == path[-1]


def test_in_r2r_the_labels_lead_to_nearly_every_goal_within_the_limits_of_the_family(real_data: Path) -> None:
    """So a low-level agent that learns little is not kept from it by its labels or by the length of walks."""
    folder = DataFolder(real_data)
    world = load_world(folder.connectivity)
    episodes = load_split(folder, world, "r2r", "val_unseen")
    limits = WALK.max_decisions, PRESETS["student-forcing"].learning.max_decisions
    walks = (_led(world, episodes, limit) for limit in limits)
    reached = [float(_arrived(rollout, episodes.goal).double().mean()) for rollout in walks]
    assert reached == pytest.approx([0.990, 0.927], abs=0.001)  # evaluated, and while learning


def test_the_expert_turns_before_it_tilts_before_it_walks(star: World) -> None:
    goals = torch.tensor([star.index_of("star", str(node)) for node in range(1, len(DIRECTIONS) + 1)])
    centre = torch.full_like(goals, star.index_of("star", "0"))
    for row in range(3):
        label = low_level.low_level_expert(star, centre, torch.full_like(goals, 12 * row), goals)
        assert label.tolist() == [labels[row] for labels in DIRECTIONS.values()]
    assert low_level.low_level_expert(star, goals, torch.full_like(goals, 12), goals).tolist() == [END] * len(
        goals
    )


def test_other_spaces_have_no_low_level_labels(world: World, episodes: EpisodeSet) -> None:
    space = LocalActions(world, len(episodes), 3)
    rule = LowLevelExpert(world, episodes.goal)
    with pytest.raises(TypeError, match="LocalActions has no low-level actions to label"):
        collect(world, episodes, space, FollowLabels(), max_steps=4, label_rule=rule)


# student forcing


@pytest.mark.parametrize("name", ["student-forcing", "student-forcing-as-published"])
def test_only_the_view_ahead_is_seen(name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = setting.loud(LowLevelAgent, name)
    inputs, here = setting.inputs(agent), setting.episodes.start
    view, panorama = torch.full_like(here, 14), setting.environment.panorama(here)

    def hidden(changed: Tensor) -> Tensor:
        monkeypatch.setattr(Environment, "panorama", lambda *_: changed)
        seen = Observation.of(inputs, torch.arange(len(here)), here, here * 0 - 1, view)
        state: Tensor = agent.updater(agent.updater.initial_state(inputs.instructions), seen).hidden
        return state

    other = torch.randn_like(panorama)
    other[:, 14] = panorama[:, 14]
    with torch.no_grad():
        torch.testing.assert_close(hidden(other), hidden(panorama))
        other[:, 14] += 1.0
        assert not torch.allclose(hidden(other), hidden(panorama))


def test_the_action_taken_enters_the_lstm(setting: Setting) -> None:
    embedded: list[Tensor] = []
    agent = setting.loud(LowLevelAgent, "student-forcing-as-published")
    assert isinstance(agent.updater, ViewAheadUpdater)
    agent.updater.action.register_forward_hook(lambda _module, inputs, _output: embedded.append(inputs[0]))
    rollout = setting.walk(agent, roam(1), learning=True).rollout
    table = rollout.decisions[LOW_LEVEL]
    choice = torch.full(rollout.alive.shape, -1)
    choice[table.episode, table.step] = table.choice
    assert set(embedded[0].tolist()) == {START}
    for step in range(1, len(embedded)):
        active = rollout.alive[:, step]
        taken = choice[active, step - 1]
        still = (rollout.view[:, step] == rollout.view[:, step - 1])[active] & (taken != FORWARD)
        # a tilt beyond the highest view changes nothing
        assert torch.equal(embedded[step], torch.where(still, END, taken))
    assert {LEFT, FORWARD} & set(embedded[2].tolist())


def test_a_teacher_turns_and_steps_to_the_goal(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """What forced walks do is what the labels say, and it ends at the goal."""
    name = "student-forcing"
    trainer = setting.trainer(setting.agent(name), PRESETS[name], batch=8, max_decisions=24, max_steps=25)
    walked, walk = list[tuple[EpisodeSet, Rollout]](), trainer._walk

    def spy(batch: EpisodeSet, inputs: RolloutInputs, forced: Tensor) -> Rollout:
        walked.append((batch, walk(batch, inputs, forced)))
        return walked[-1][1]

    monkeypatch.setattr(trainer, "_walk", spy)
    assert trainer.step().losses["teacher_forcing"] > 0
    ((batch, rollout),) = walked
    table = rollout.decisions[LOW_LEVEL]
    led = table.episode < 8
    assert torch.equal(table.choice[led], table.label[led])
    assert bool(_arrived(rollout, batch.goal)[:8].all())
    assert bool((rollout.length > batch.path_length)[:8].any()), "they turn, too"
    assert not torch.equal(table.choice[~led], table.label[~led]), "the others walk by themselves"


# RPA: look before you leap


@pytest.fixture(scope="module")
def rpa(setting: Setting) -> RPA:
    agent: RPA = setting.loud(RPA, "rpa")
    return agent


@pytest.fixture(scope="module")
def imagined(rpa: RPA, setting: Setting) -> Walk:
    return setting.walk(rpa, roam(1), learning=True)


def test_the_error_is_that_of_the_next_view_and_the_metres_won(
    rpa: RPA, imagined: Walk, setting: Setting
) -> None:
    rollout, table = imagined.rollout, imagined.rollout.decisions[LOW_LEVEL]
    views = setting.environment.store.gather_views(rollout.viewpoint.clamp_min(0), rollout.view.clamp_min(0))
    expected = torch.zeros(rollout.alive.shape)
    for row, (episode, step) in enumerate(zip(table.episode.tolist(), table.step.tolist(), strict=True)):
        if not table.stops[row] and step + 1 < int(rollout.length[episode]):
            chance = torch.eye(6)[table.choice[row : row + 1]]
            view, reward = rpa.model(views[episode, step : step + 1], chance)
            missed = float(reward.detach()) - float(table.before[row] - table.after[row])
            off = (view[0] - views[episode, step + 1]).square().sum().detach()
            expected[episode, step] = float(off) + missed**2
    assert int((expected > 0).sum()) > 30
    torch.testing.assert_close(imagined.heads["model_error"].detach(), expected, rtol=1e-3, atol=1e-4)
    loss = environment_model(rollout, setting.context(rollout))
    assert float(loss.detach()) == pytest.approx(float(expected.sum() / rollout.alive.sum()), rel=1e-3)
    learns, decides = (learnt_by(rpa, cost) for cost in (loss, imitation(rollout, {})))
    parts = [{name.partition(".")[0] for name in names} for names in (learns, decides)]
    assert parts[0] == {"model"}
    assert "ahead" in parts[1]
    assert "model" not in parts[1], "decisions never change it"


def test_stopping_is_not_imagined(rpa: RPA, imagined: Walk) -> None:
    chances: list[Tensor] = []
    rpa.model.register_forward_hook(lambda _module, inputs, _output: chances.append(inputs[1]))
    rpa.imagine(imagined.seen[1])
    each = torch.cat(chances)
    assert not each[:, END].any()
    torch.testing.assert_close(each.sum(dim=1), torch.ones(len(each)))


def test_squashed_views_lie_between_0_and_1(setting: Setting) -> None:
    agent = setting.loud(RPA, "rpa", squash=True)
    view, _ = agent.model(torch.randn(5, setting.environment.width), torch.eye(6)[:5])
    assert 0 < float(view.min().detach()) < float(view.max().detach()) < 1


# PTA


@torch.no_grad()
def _observed(agent: PTA, setting: Setting, steps: int, *, noise: float = 0.0) -> list[PastState]:
    """The states of all episodes, turning on the spot for some steps, after noise for a past."""
    inputs, here = setting.inputs(agent), setting.episodes.start
    begin = agent.updater.initial_state(inputs.instructions)
    assert isinstance(begin, PastState)
    found = [replace(begin, past=begin.past + noise * torch.randn_like(begin.past))]
    for step in range(steps):
        previous = here if step else torch.full_like(here, -1)
        view = torch.full_like(here, 12 + step % 12)
        seen = Observation.of(inputs, torch.arange(len(here)), here, previous, view)
        found.append(agent.updater(found[-1], seen))
    return found[1:]


def test_the_newest_tokens_of_the_past_are_kept_and_attended_to(setting: Setting) -> None:
    agent = setting.loud(PTA, "pta", history=5)
    states = _observed(agent, setting, 7)
    for step, state in enumerate(states):
        kept = min(step + 1, 5)
        assert state.count.tolist() == [kept] * len(setting.episodes)
        assert not state.past[:, : 5 - kept].any()
        if step:
            torch.testing.assert_close(state.past[:, -2], states[step - 1].past[:, -1])
        torch.testing.assert_close(state.word_attention.sum(1), torch.ones(len(setting.episodes)))
        assert state.attention.keys() == {"perception", "action"}
    begin = agent.updater.start.expand(len(setting.episodes), -1)
    torch.testing.assert_close(states[0].past[:, -1], begin)
    assert not torch.allclose(states[0].hidden, states[2].hidden), "the past matters"
    (noisy,) = _observed(agent, setting, 1, noise=1.0)
    torch.testing.assert_close(noisy.hidden, states[0].hidden, msg="empty places of the window do not")
