"""Low-level actions: what a camera sees, where forward leads, and an expert that gets to the goal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import LocalActions
from scenemem.agents.rollout import Rollout
from scenemem.agents.walker import FollowLabels, collect
from scenemem.formats.folder import DataFolder
from scenemem.presets import PRESETS
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, STAY, Simulator, World
from scenemem.zoo.low_level import (
    DOWN,
    END,
    FORWARD,
    LEFT,
    LOW_LEVEL,
    RIGHT,
    UP,
    LowLevelActions,
    action_between,
    forward_slot,
    low_level_expert,
    turned,
)
from scenemem.zoo.objectives import LowLevelExpert, LowLevelPath
from scenemem.zoo.student_forcing import WALK
from tests.agents.helpers import walks_of
from tests.zoo.helpers import places_of


def _relative(world: World, place: int, slot: int, view: int) -> tuple[float, float]:
    """Heading and elevation of a neighbour, in degrees from the middle of the picture."""
    heading = math.degrees(float(world.neighbour_heading[place, slot])) - 30 * (view % 12)
    elevation = math.degrees(float(world.neighbour_elevation[place, slot])) - 30 * (view // 12 - 1)
    return (heading + 180) % 360 - 180, elevation


def test_forward_leads_to_the_neighbour_in_the_middle_of_the_picture(world: World) -> None:
    places, views = torch.meshgrid(torch.arange(len(world.viewpoints)), torch.arange(36), indexing="ij")
    found = forward_slot(world, places.flatten(), views.flatten()).view(places.shape)
    nothing = 0
    for place in range(len(world.viewpoints)):
        for view in range(36):
            seen = {
                slot: math.hypot(*_relative(world, place, slot, view))
                for slot in range(int(world.degree[place]))
                if abs(_relative(world, place, slot, view)[0]) <= 40
            }
            if not seen:
                assert int(found[place, view]) == NONE
                nothing += 1
            else:
                assert seen[int(found[place, view])] == pytest.approx(min(seen.values()), abs=1e-3)
    assert nothing > 0


def test_turns_and_tilts_move_the_camera_by_one_view() -> None:
    view = torch.tensor([12, 12, 12, 12, 12, 23, 24, 0, 5])
    choice = torch.tensor([LEFT, RIGHT, UP, DOWN, FORWARD, RIGHT, UP, DOWN, END])
    assert turned(view, choice).tolist() == [23, 13, 24, 0, 12, 12, 24, 0, 5]


def test_what_was_done_is_seen_from_the_views() -> None:
    for choice in range(6):
        before = torch.arange(36)
        after = turned(before, torch.full_like(before, choice))
        moved = torch.full_like(before, choice == FORWARD, dtype=torch.bool)
        done = action_between(before, after, moved)
        changed = (before != after) | moved
        assert bool((done[changed] == choice).all())
        assert bool((done[~changed] == END).all())


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
    table = rollout.decisions[LOW_LEVEL]
    assert set(table.choice.tolist()) >= {LEFT, RIGHT, FORWARD, END}
    ahead = forward_slot(
        world, rollout.viewpoint[table.episode, table.step], rollout.view[table.episode, table.step]
    )
    assert torch.equal(table.options[:, FORWARD], ahead != NONE), "where something is ahead"
    assert bool(table.options[:, [LEFT, RIGHT, UP, DOWN, END]].all())
    # a turn keeps the place, a step keeps the view
    for episode, step, choice in zip(table.episode, table.step, table.choice, strict=True):
        if int(choice) == END:
            continue
        places = rollout.viewpoint[episode, step : step + 2]
        views = rollout.view[episode, step : step + 2]
        assert bool(places[0] != places[1]) == (int(choice) == FORWARD)
        assert int(views[1]) == int(turned(views[:1], choice.view(1)))


def test_the_low_level_expert_of_a_path_visits_all_its_points(world: World, episodes: EpisodeSet) -> None:
    some = episodes.select(range(0, len(episodes), 9))
    rule = LowLevelPath(world, some.path, passes_over=False)
    for row, walked in enumerate(walks_of(_led(world, some, 80, rule))):
        rest = iter(walked)
        assert all(point in rest for point in places_of(some.path[row])), "in their order"
        assert walked[-1] == places_of(some.path[row])[-1]


def test_walks_are_cut_off_after_their_decisions(world: World, episodes: EpisodeSet) -> None:
    assert _led(world, episodes, 3).length.tolist() == [4] * len(episodes)


def test_in_r2r_the_labels_lead_to_nearly_every_goal_within_the_limits_of_the_family(real_data: Path) -> None:
    """So a low-level agent that learns little is not kept from it by its labels or by the length of walks."""
    folder = DataFolder(real_data)
    world = load_world(folder.connectivity)
    episodes = load_split(folder, world, "r2r", "val_unseen")
    limits = WALK.max_decisions, PRESETS["student-forcing"].learning.max_decisions
    walks = (_led(world, episodes, limit) for limit in limits)
    reached = [float(_arrived(rollout, episodes.goal).double().mean()) for rollout in walks]
    assert reached == pytest.approx([0.990, 0.927], abs=0.001)  # evaluated, and while learning


def test_the_expert_turns_before_it_tilts_before_it_walks(world: World, episodes: EpisodeSet) -> None:
    goal = episodes.goal
    for view in range(36):
        views = torch.full_like(goal, view)
        label = low_level_expert(world, episodes.start, views, goal)
        for row in range(len(goal)):
            place = int(episodes.start[row])
            slot = int(world.next_slot(episodes.start[row], goal[row]))
            aside, above = _relative(world, place, slot, view)
            if abs(abs(aside) - 40) < 1e-3 or abs(abs(aside) - 30) < 1e-3 or abs(abs(aside) - 180) < 1e-3:
                continue
            level = view // 12
            if abs(aside) > 40:
                expected = (UP if level < 1 else DOWN) if level != 1 else (RIGHT if aside > 0 else LEFT)
            elif abs(aside) > 30:
                expected = RIGHT if aside > 0 else LEFT
            elif above > 30 and level < 2:
                expected = UP
            elif above < -30 and level > 0:
                expected = DOWN
            else:
                expected = FORWARD
            assert int(label[row]) == expected
    at_goal = low_level_expert(world, goal, torch.full_like(goal, 12), goal)
    assert set(at_goal.tolist()) == {END}


def test_staying_is_no_step_and_no_stop(world: World, episodes: EpisodeSet) -> None:
    simulator = Simulator(world)
    pose = simulator.reset(episodes.start, episodes.heading)
    after = simulator.step(pose, torch.full_like(episodes.start, STAY))
    assert torch.equal(after.viewpoint, pose.viewpoint)
    assert torch.equal(after.view, pose.view)
    assert not after.done.any()


def test_other_spaces_have_no_low_level_labels(world: World, episodes: EpisodeSet) -> None:
    space = LocalActions(world, len(episodes), 3)
    rule = LowLevelExpert(world, episodes.goal)
    with pytest.raises(TypeError, match="LocalActions has no low-level actions to label"):
        collect(world, episodes, space, FollowLabels(), max_steps=4, label_rule=rule)
