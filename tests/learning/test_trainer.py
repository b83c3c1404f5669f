"""The trainer: what a step learns, from which walks, with which weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scenemem.agents.agent import ActionSpace
from scenemem.agents.rollout import ACTION, FRONTIER, DecisionRequest, Decisions, Rollout
from scenemem.agents.walker import LabelRule, TrainedAgent, WalkConfig
from scenemem.errors import UserError
from scenemem.evaluation.metrics import measure
from scenemem.features.store import Environment
from scenemem.learning.augmentation import StoredEpisodes
from scenemem.learning.objectives import (
    LABEL_RULES,
    LOSSES,
    REWARDS,
    ClosestToGoal,
    LearningConfig,
    LossContext,
    RewardConfig,
    Stage,
    loss,
)
from scenemem.learning.trainer import Trainer
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.world.graph import World
from tests.agents.helpers import Setting, packaged

BATCH = 6
MIXED = {"teacher_forcing": 0.7, "student_forcing": 0.3, "a2c": 1.6}
TEACHER, A2C = Stage(losses={"teacher_forcing": 1.0}), Stage(losses={"a2c": 1.0})


class Learning(Setting):
    """The tiny world, with trainers of small agents."""

    def fresh(self, name: str = "ssm", seed: int = 0, **settings: Any) -> TrainedAgent:
        """Weights as a run begins with; nothing is dropped unless asked for."""
        made = packaged(name, **{"dropout": 0.0, "feature_dropout": 0.0, **settings})
        network = self.network(made, seed=seed, std=None)
        return TrainedAgent(network, self.environment, self.vocabulary, WalkConfig(8, 20, 20))

    def trainer(
        self,
        agent: TrainedAgent | None = None,
        stage: Stage | None = None,
        seed: int = 0,
        episodes: EpisodeSet | None = None,
        **learning: Any,
    ) -> Trainer:
        values = {"iterations": 8, "batch": BATCH, "max_decisions": 6, "max_steps": 12, **learning}
        config = LearningConfig(stages=(stage or Stage(losses=MIXED),), **values)
        return Trainer(
            agent or self.fresh(),
            episodes or self.episodes,
            config,
            seed,
            augmentation=StoredEpisodes(self.episodes, seed=5),
        )

    def gradients(self, stage: Stage, **learning: Any) -> dict[str, Tensor]:
        """Of one step of a fresh trainer, not clipped."""
        trainer = self.trainer(stage=stage, clip=1e9, **learning)
        trainer.step()
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for name, parameter in trainer.network.named_parameters()
        }

    def losses(self, stage: Stage, **learning: Any) -> dict[str, float]:
        return self.trainer(stage=stage, **learning).step().losses


@pytest.fixture(scope="module")
def setting(tiny_trainable: Path) -> Learning:
    return Learning.load(tiny_trainable)


@pytest.fixture
def registries() -> Iterator[None]:
    """What a test registers is gone after it."""
    changed: list[Any] = [LOSSES, LABEL_RULES, REWARDS]
    kept = [dict(registry) for registry in changed]
    yield
    for registry, entries in zip(changed, kept, strict=True):
        registry._objects = entries


def _close(seen: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, value in expected.items():
        scale = float(value.abs().max())
        assert torch.allclose(seen[name], value, atol=1e-5 + 1e-4 * scale, rtol=1e-3), name


# weights of losses


def test_a_step_follows_the_weighted_sum_of_the_losses(setting: Learning) -> None:
    """The gradient of all losses together is that of each alone, times its weight."""
    alone = {name: setting.gradients(Stage(losses={name: 1.0})) for name in MIXED}
    together = setting.gradients(Stage(losses=MIXED))
    expected = {
        name: torch.stack([MIXED[kind] * alone[kind][name] for kind in MIXED]).sum(dim=0) for name in together
    }
    _close(together, expected)
    for kind in MIXED:
        assert any(float(gradient.abs().max()) > 1e-3 for gradient in alone[kind].values()), kind
    single = {name: setting.losses(Stage(losses={name: 1.0}))[name] for name in MIXED}
    assert setting.losses(Stage(losses=MIXED)) == pytest.approx(single), "reported without their weights"


@pytest.mark.parametrize(
    ("losses", "walks"),
    [
        ({"teacher_forcing": 1.0, "a2c": 0.0}, 1),
        ({"student_forcing": 1.0, "a2c": 1.0}, 1),
        (MIXED, 2),
    ],
)
def test_a_batch_is_walked_once_by_teacher_and_agent_as_the_losses_need(
    setting: Learning, losses: dict[str, float], walks: int
) -> None:
    assert setting.trainer(stage=Stage(losses=losses)).step().episodes == walks * BATCH
    both = Stage(losses=losses, augmented={"teacher_forcing": 0.5})
    assert setting.trainer(stage=both).step().episodes == (walks + 1) * BATCH
    described = setting.trainer(stage=Stage(losses={}, augmented=losses)).step()
    assert described.episodes == walks * BATCH
    assert described.losses.keys() == {f"augmented {name}" for name, weight in losses.items() if weight}


def test_augmented_episodes_have_losses_of_their_own(setting: Learning) -> None:
    own, others = {"teacher_forcing": 1.0, "student_forcing": 0.3}, {"teacher_forcing": 0.6, "a2c": 0.5}
    stage = Stage(losses=own, augmented=others)
    trainer = setting.trainer(stage=stage)
    rows = next(trainer.batches)
    weighted, _ = trainer.batch_losses(rows)
    expected = {**own, **{f"augmented {name}": weight for name, weight in others.items()}}
    assert {name: weight for name, (weight, _) in weighted.items()} == expected
    assert trainer.step().episodes == 4 * BATCH


# what losses are given


@dataclass
class Seen:
    """What a loss was given."""

    rollout: Rollout
    context: LossContext


def _spy(name: str, walks: Any) -> list[Seen]:
    """Register a loss that keeps what it is given, and teaches nothing."""
    seen: list[Seen] = []

    @loss(name, walks=walks)
    def keep(rollout: Rollout, context: LossContext) -> Tensor:
        seen.append(Seen(rollout, context))
        return rollout.heads["value"].sum() * 0.0

    return seen


# labels and rewards by name


def _loop(setting: Learning) -> EpisodeSet:
    """Episodes whose reference path makes a detour: from g10 round to g00 beside it."""
    world = setting.world
    names = "g10 g20 g21 g11 g10 g00"
    path = torch.tensor([[world.index_of("grid", name) for name in names.split()]]).repeat(BATCH, 1)
    rows = setting.episodes.select([0] * BATCH)
    return replace(
        rows, start=path[:, 0], goal=path[:, -1], path=path, path_length=torch.full((BATCH,), path.shape[1])
    )


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(("labels", "first"), [("goal", "g00"), ("path", "g20")])
def test_labels_of_own_walks_follow_the_rule_of_the_run_and_teachers_the_path(
    setting: Learning, labels: str, first: str
) -> None:
    student, teacher, world = _spy("spy", "student"), _spy("led", "teacher"), setting.world
    stage = Stage(losses={"student_forcing": 1.0, "spy": 1.0, "led": 1.0})
    setting.trainer(setting.fresh("basic"), stage, episodes=_loop(setting), labels=labels).step()
    table = student[0].rollout.decisions[ACTION]
    places = world.neighbour[_loop(setting).start, table.label[table.step == 0]]
    assert {world.viewpoints[place] for place in places.tolist()} == {first}
    assert torch.equal(teacher[0].rollout.walked, _loop(setting).path)
    table = teacher[0].rollout.decisions[ACTION]
    assert torch.equal(table.choice, table.label)
    assert torch.equal(table.logits.isfinite(), table.options), "scored where a teacher decides"


class StopAtOnce(ClosestToGoal):
    """Nothing is better than staying at home."""

    def __call__(self, request: DecisionRequest, _space: ActionSpace, _distance: Tensor, /) -> Tensor:
        return torch.full_like(request.episode, request.stop)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("loss_name", "learning"),
    [
        ("student_forcing", {"iterations": 30, "labels": "stop at once"}),
        ("a2c", {"iterations": 60, "reward": RewardConfig(rule="for stopping")}),
    ],
)
def test_rules_from_outside_are_used_by_their_names(
    setting: Learning, loss_name: str, learning: dict[str, Any]
) -> None:
    @LABEL_RULES.register("stop at once")
    def stop_at_once(world: World, episodes: EpisodeSet, _space: ActionSpace) -> LabelRule:
        return StopAtOnce(world, episodes.goal)

    @REWARDS.register("for stopping")
    def for_stopping(table: Decisions, rollout: Rollout, context: LossContext) -> Tensor:
        assert len(context.episodes) == len(rollout.alive)
        return torch.where(table.stops, 5.0, -1.0)

    agent = setting.fresh("basic")
    trainer = setting.trainer(agent, Stage(losses={loss_name: 1.0}), learning_rate=0.03, **learning)
    for _ in range(trainer.config.iterations):
        trainer.step()
    walked = agent.walk(setting.episodes)
    assert float((walked.length == 1).double().mean()) > 0.9, "it has learnt to stop where it starts"


@pytest.mark.usefixtures("registries")
def test_a_loss_from_outside_is_used_by_its_name_on_the_walks_it_asks_for(setting: Learning) -> None:
    seen = {walks: _spy(f"spy {walks}", walks) for walks in ("teacher", "student", "all")}

    @loss("value towards 3", walks="all")
    def towards_3(rollout: Rollout, _context: LossContext) -> Tensor:
        return (rollout.heads["value"][rollout.alive] - 3.0).square().mean()

    losses = {"value towards 3": 1.0, **{f"spy {walks}": 1.0 for walks in seen}}
    trainer = setting.trainer(stage=Stage(losses=losses), iterations=40, learning_rate=0.03)
    found = [trainer.step().losses["value towards 3"] for _ in range(40)]
    assert found[-1] < 0.02 * found[0]
    for walks, count in (("teacher", BATCH), ("student", BATCH), ("all", 2 * BATCH)):
        given = seen[walks][0]
        assert given.context.config is trainer.config
        assert given.context.stage == trainer.config.stages[0]
        assert len(given.rollout.alive) == len(given.context.episodes) == count
        assert given.rollout.heads["value"].shape == given.rollout.alive.shape
        assert given.context.decisions == sum(len(t.episode) for t in given.rollout.decisions.values())
        for table in given.rollout.decisions.values():
            assert torch.equal(table.logits.isfinite(), table.options)
    teacher, student = seen["teacher"][0], seen["student"][0]
    assert teacher.context.episodes.instruction_ids == student.context.episodes.instruction_ids
    assert FRONTIER in teacher.rollout.decisions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stage": Stage(losses={"a2d": 1.0})}, "unknown loss 'a2d'; did you mean a2c"),
        ({"labels": "goals"}, "unknown label rule 'goals'; did you mean goal"),
        ({"reward": RewardConfig(rule="distances")}, "unknown reward rule 'distances'; did you mean dist"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_trained(
    setting: Learning, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        setting.trainer(**settings)


# the optimiser


def test_the_learning_rate_falls_to_0_along_a_cosine(setting: Learning) -> None:
    trainer = setting.trainer(stage=TEACHER, iterations=4, learning_rate=0.02)
    rates, moved = [], []
    for _ in range(4):
        before = torch.cat([p.detach().flatten().clone() for p in trainer.network.parameters()])
        trainer.step()
        after = torch.cat([p.detach().flatten() for p in trainer.network.parameters()])
        rates.append(trainer.optimiser.param_groups[0]["lr"])
        moved.append(float((after - before).abs().max()))
    half = math.sqrt(0.5)
    assert rates == pytest.approx([0.02, 0.01 * (1 + half), 0.01, 0.01 * (1 - half)])
    assert moved[0] == pytest.approx(0.02, rel=0.05), "the first step of Adam is as long as its rate"
    assert moved[3] < 0.3 * moved[0]


@pytest.mark.parametrize("clip", [0.01, 1e9])
def test_gradients_are_clipped_to_the_largest_norm_allowed(setting: Learning, clip: float) -> None:
    trainer = setting.trainer(clip=clip, weight_decay=0.3)
    assert isinstance(trainer.optimiser, torch.optim.AdamW)
    assert trainer.optimiser.param_groups[0]["weight_decay"] == 0.3
    report = trainer.step()
    gradients = [p.grad.flatten() for p in trainer.network.parameters() if p.grad is not None]
    norm = float(torch.cat(gradients).norm())
    assert report.gradient > 0.1, "reported as it was before clipping"
    assert norm == pytest.approx(min(clip, report.gradient), rel=1e-3)


def test_dropout_is_drawn_anew_in_every_step(setting: Learning) -> None:
    """A trainer drops what the agent's settings say, with masks of its own in every step."""
    agent = setting.fresh(dropout=0.5, feature_dropout=0.4)
    agent.network.eval()
    trainer = setting.trainer(agent, TEACHER)
    masks, draw = [], agent.network.dropout_masks

    def spy(episodes: int, own: Tensor | None = None) -> Any:
        masks.append(draw(episodes, own))
        return masks[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent.network, "dropout_masks", spy)
        trainer.step()
        trainer.step()
    first, second = masks
    assert (first["decision"] == 0.0).any()
    assert not torch.equal(first["decision"], second["decision"])
    assert agent.network.training


# runs


@pytest.mark.parametrize("name", ["basic", "ssm"])
def test_an_agent_learns_a_tiny_world(setting: Learning, name: str) -> None:
    episodes = setting.episodes.select(range(0, 60, 5))
    agent = setting.fresh(name, width=32)

    def success() -> float:
        walked = agent.walk(episodes).walked
        return measure(setting.world, walked, episodes.path).means()["sr"]

    before = success()
    stage = Stage(losses={"teacher_forcing": 1.0, "student_forcing": 0.3, "a2c": 0.3})
    trainer = setting.trainer(agent, stage, episodes=episodes, batch=12, iterations=50, learning_rate=0.01)
    found = [trainer.step().losses["teacher_forcing"] for _ in range(50)]
    assert found[-1] < 0.3 * found[0]
    assert before < 0.6
    assert success() > max(0.7, before + 0.3)


def test_the_same_seed_gives_the_same_run(setting: Learning) -> None:
    def run(seed: int) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
        plus = {"hints": True, "restore_state": True}
        agent = setting.fresh("ssm-plus", seed=3, dropout=0.3, feature_dropout=0.2, **plus)
        torch.manual_seed(seed)
        trainer = setting.trainer(agent, seed=seed)
        return [trainer.step().losses for _ in range(3)], dict(agent.network.state_dict())

    (losses, weights), (same_losses, same_weights), (other_losses, _) = run(1), run(1), run(2)
    assert losses == same_losses
    assert all(torch.equal(weights[name], same_weights[name]) for name in weights)
    assert losses != other_losses


def test_the_seed_of_a_trainer_chooses_batches_and_samples(setting: Learning) -> None:
    """Nothing is dropped here, so runs differ in nothing else; of equal episodes every batch is the same."""
    for stage, episodes in ((TEACHER, setting.episodes), (A2C, _loop(setting))):
        one, other = (setting.losses(stage, seed=seed, episodes=episodes) for seed in (4, 5))
        assert one != other


def test_stages_follow_each_other(setting: Learning) -> None:
    config = LearningConfig(
        iterations=4,
        batch=BATCH,
        stages=(
            Stage("first", losses={"teacher_forcing": 1.0}),
            Stage("second", share=3.0, losses={"a2c": 1.0}),
        ),
    )
    trainer = Trainer(setting.fresh(), setting.episodes, config, seed=0)
    assert [list(trainer.step().losses) for _ in range(4)] == [["teacher_forcing"], *[["a2c"]] * 3]
    assert trainer.iteration == 4


@pytest.mark.usefixtures("registries")
def test_walks_to_learn_from_are_cut_off_by_their_limits(setting: Learning) -> None:
    seen = _spy("spy", "student")
    stage = Stage(losses={"spy": 1.0, "student_forcing": 1.0})
    tight: list[dict[str, Any]] = [{"max_decisions": 2}, {"max_steps": 3}]
    for limits in tight:
        setting.trainer(stage=stage, **limits).step()
        rollout = seen[-1].rollout
        assert int(torch.bincount(rollout.decisions[ACTION].episode).max()) == 2
        assert not rollout.stopped.all()
    assert int(rollout.length.max()) == 3


# what is refused


def test_secret_goals_cannot_be_learnt_from(setting: Learning) -> None:
    secret = replace(setting.episodes, goal=torch.full_like(setting.episodes.goal, -1))
    with pytest.raises(UserError, match="'r2r train' keeps its goals secret; train on a split that shows"):
        setting.trainer(episodes=secret)


def test_a_stage_with_augmented_episodes_needs_a_source(setting: Learning) -> None:
    config = LearningConfig(stages=(Stage(augmented={"a2c": 0.5}),))
    with pytest.raises(UserError, match="learns from augmented episodes; name a `speaker` or an `augment`"):
        Trainer(setting.fresh(), setting.episodes, config, seed=0)


def test_features_that_are_not_numbers_stop_the_run(setting: Learning) -> None:
    agent, store = setting.fresh(), setting.environment.store
    agent.environment = Environment(setting.world, replace(store, values=store.values * torch.nan))
    message = "a score of decision 'action' is not a finite number at step 1; the last good checkpoint is"
    with pytest.raises(UserError, match=message):
        setting.trainer(agent).step()


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda value: value.sum() * torch.nan, "loss 'broken' is not a finite number at step 1"),
        (
            lambda value: (value.abs() * 0.0).sqrt().sum(),
            r"gradient of 'encoder.* is not a finite number at step 1",
        ),
    ],
    ids=["loss", "gradient"],
)
def test_what_is_not_a_number_is_named(setting: Learning, function: Any, message: str) -> None:
    @loss("broken", walks="teacher")
    def broken(rollout: Rollout, _context: LossContext) -> Tensor:
        broken_loss: Tensor = function(rollout.heads["value"])
        return broken_loss

    with pytest.raises(UserError, match=message):
        setting.trainer(stage=Stage(losses={"broken": 1.0})).step()
