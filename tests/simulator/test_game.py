"""The rules of the navigation game: rewards, ends, metrics and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from scenemem.errors import DataError, UserError
from scenemem.simulator import NavigationGame, Transition, open_game, progress_reward
from scenemem.tasks.vocabulary import BOS, PAD, Vocabulary


@pytest.fixture(scope="module")
def game(tiny_data: Path) -> NavigationGame:
    return open_game(tiny_data)


def test_the_reward_is_metres_gained_and_a_verdict_on_stopping() -> None:
    table = [  # before, after, stopped, reward
        (9.0, 7.5, False, 1.5),
        (7.5, 9.0, False, -1.5),
        (7.5, 7.5, True, -2.0),
        (2.9, 2.9, True, 2.0),
        (3.0, 3.0, True, -2.0),  # nearer than 3 m, strictly, as in the R2R evaluation
        (2.9, 2.9, False, 0.0),
    ]
    before, after, stopped, reward = (torch.tensor(column) for column in zip(*table, strict=True))
    torch.testing.assert_close(progress_reward(Transition(before, after, stopped)), reward)


def test_metrics_of_a_walk_past_the_goal(game: NavigationGame) -> None:
    """There and two edges on: the goal was passed but not kept."""
    world = game.world
    start, goal, beyond = (world.index_of("grid", name) for name in ("g00", "g10", "g30"))
    crossing = replace(
        game,
        episodes=replace(game.episodes.select([0]), start=torch.tensor([start]), goal=torch.tensor([goal])),
    )
    play = crossing.begin(torch.tensor([0]))
    for _ in range(3):
        slot = world.next_slot(play.pose.viewpoint, torch.tensor([beyond]))
        play, _ = crossing.act(play, slot + 1)
    scores = {name: values[0] for name, values in crossing.metrics(play).items()}
    metres = float(world.geodesic(torch.tensor(start), torch.tensor(beyond)))
    assert scores["trajectory_length"] == pytest.approx(metres)
    assert scores["navigation_error"] == pytest.approx(
        float(world.geodesic(torch.tensor(beyond), torch.tensor(goal)))
    )
    assert (bool(scores["success"]), bool(scores["oracle_success"]), float(scores["spl"])) == (
        False,
        True,
        0.0,
    )


def test_stopping_where_one_should_be_already_is_perfect(game: NavigationGame) -> None:
    here = replace(game, episodes=replace(game.episodes, goal=game.episodes.start))
    play, _ = here.act(here.begin(torch.tensor([0])), torch.tensor([0]))
    assert here.metrics(play)["spl"].tolist() == [1.0]


def test_instructions_are_padded_token_numbers(game: NavigationGame, tiny_data: Path) -> None:
    vocabulary = Vocabulary.build(game.episodes.texts)
    assert game.words == len(vocabulary)
    numbers = vocabulary.encode(game.episodes.texts[3], 80)
    assert game.tokens.shape == (len(game.episodes), 80)
    assert game.tokens[3].tolist() == numbers + [PAD] * (80 - len(numbers))
    assert (open_game(tiny_data, max_tokens=5).tokens[:, 0] == BOS).all()


def test_all_splits_share_their_spaces(game: NavigationGame, tiny_data: Path) -> None:
    other = open_game(tiny_data, split="val_unseen")
    assert other.observation_space == game.observation_space
    assert other.action_space == game.action_space


def test_what_cannot_be_played_is_refused(game: NavigationGame, tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^the goals of r2r test are kept secret.*such as val_unseen$"):
        open_game(tiny_data, split="test")
    with pytest.raises(ValueError, match=r"^max_steps must be 1 or more, got 0; a usual choice is 30$"):
        open_game(tiny_data, max_steps=0)
    with pytest.raises(DataError, match="no such folder"):
        open_game(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no feature store 'resnet'"):
        open_game(tiny_data, features="resnet")
    with pytest.raises(UserError, match=r"^'r2r train' has no instruction 'x_9'; its ids look like '\d+_0'$"):
        game.episodes.row_of("x_9")


def test_without_a_data_folder_the_embedded_houses_are_played(
    tiny_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = SimpleNamespace(default_houses=lambda: tiny_data)
    monkeypatch.setitem(sys.modules, "scenemem.houses.build", stand_in)
    assert open_game().world.scans == ("grid", "spiral", "yard")


def test_a_line_for_people(game: NavigationGame) -> None:
    world = game.world
    start, goal = world.index_of("grid", "g11"), world.index_of("grid", "g10")
    named = replace(
        game,
        episodes=replace(
            game.episodes.select([0]),
            start=torch.tensor([start]),
            goal=torch.tensor([goal]),
            heading=torch.tensor([torch.pi / 2], dtype=torch.float64),
        ),
    )
    (line,) = named.describe(named.begin(torch.tensor([0])))
    assert line.startswith("grid_g11 facing 90 deg, 1.9 m to go | 0 stop | 1 ")
    assert line.count("|") == 5
    assert " deg right" in line
    assert " deg left" in line
