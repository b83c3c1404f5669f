"""What is measured: a preset at a width, with batches that come again and walks of a usual length."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args
from unittest.mock import patch

import torch
from torch import Tensor
from torch.profiler import profile, record_function

from benchmarks.machine import Options
from benchmarks.measure import Amount, Work, repeatable, watched
from scenemem.agents.agent import ActionSpace
from scenemem.agents.build import AGENTS, DataSizes
from scenemem.agents.rollout import DecisionRequest, Recorder, Rollout
from scenemem.agents.walker import AgentPolicy, TrainedAgent
from scenemem.features.store import Environment, FeatureStore
from scenemem.formats.features import StoreInfo
from scenemem.learning.augmentation import Augmentation
from scenemem.learning.objectives import LOSSES, Stage
from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.learning.trainer import Trainer
from scenemem.presets import PRESETS, PUBLISHED, Preset
from scenemem.runs.experiment import new_experiment
from scenemem.tasks.episode_set import EpisodeSet, load_split
from scenemem.tasks.vocabulary import Vocabulary
from scenemem.world.build import load_world
from scenemem.world.graph import VIEWS, Pose

Width = Literal["everyday", "paper"]
Mode = Literal["teacher", "sampled", "mixed", "greedy"]
MODES: tuple[Mode, ...] = get_args(Mode)
PAPER_COLUMNS = 2048
STILL = 1e-12
"""A learning rate that leaves the network as it is, so that all repetitions do the same."""

_LOSSES = {"teacher": {"teacher_forcing": 1.0}, "sampled": {"student_forcing": 0.3, "a2c": 1.0}}
_VARIANT = ("panorama", "grounding", "reasoning_steps")  # settings that make an ablation, not a size
_MADE_UP_ROWS = 2048  # different viewpoints of made-up features; more than the caches of a processor hold


@dataclass(frozen=True)
class Habit:
    """How a measured agent walks, whatever its scores say; the numbers come from trained agents on R2R."""

    stop: float  # probability of stopping at an action decision
    leave: float  # probability of going elsewhere at a frontier decision


GREEDY = Habit(stop=0.12, leave=0.08)
"""About 7 action decisions and 7.5 observations per episode, as ``ssm`` has when it walks greedily."""
SAMPLED = Habit(stop=0.045, leave=0.45)
"""About 8 action decisions and 14 observations per episode, as ``ssm`` has when it samples."""


def preset_at(name: str, width: Width) -> Preset[Any]:
    """A preset as it is, or with the sizes, the walk and the learning of the paper.

    Raises:
        UserError: there is no such preset.
    """
    preset = PRESETS[name]
    if width == "everyday":
        return preset
    paper = PUBLISHED["ssm"]
    kept = {item.name: getattr(preset.model, item.name) for item in fields(preset.model)}
    model = type(preset.model)(**{name: value for name, value in kept.items() if name in _VARIANT})
    learning = replace(paper.learning, stages=preset.learning.stages)
    return replace(preset, model=model, walk=paper.walk, learning=learning)


class Workload:
    """An agent whose next training steps or walks can be repeated exactly.

    Args:
        preset: what to train; all of the training split is used.
        options: data folder, features, batch and device.
        columns: of made-up features; None takes the store of the data folder.
        augmentation: where a preset that learns from augmented episodes gets them from.
    """

    def __init__(
        self,
        preset: Preset[Any],
        options: Options,
        columns: int | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        if columns is None:
            data = replace(preset.data, features=options.features or preset.data.features)
            whole = replace(preset.selection, split="train")  # nothing is held out
            preset = replace(preset, data=data, selection=whole)
            experiment = new_experiment(preset, options.folder, 0, options.device)
            self.agent, self.episodes = experiment.agent, experiment.episodes("train")
        else:
            self.agent, self.episodes = _with_made_up_features(preset, options, columns)
        self.options = options
        self._augmentation = augmentation
        self._learning = replace(preset.learning, batch=options.batch, learning_rate=STILL)
        self._trainers: dict[Mode, Trainer] = {}

    def work(self, mode: Mode) -> Work:
        """Some steps, the same ones on every call."""
        return repeatable(lambda steps: self.run(mode, steps), self.options)

    def run(self, mode: Mode, steps: int) -> Amount:
        """Do the first ``steps`` steps of a training, or walk as many batches, again."""
        trainer = self.trainer(mode)
        rewind(trainer)
        kinds = {LOSSES[name].walks for name, weight in trainer.config.stage_at(0).losses.items() if weight}
        forced = trainer.config.batch if kinds & {"teacher", "all"} else 0
        habit, forced = (GREEDY, 0) if mode == "greedy" else (SAMPLED, forced)
        with walking_by(habit, forced=forced), counted_observations() as observations:
            episodes = sum(self._step(trainer, mode) for _ in range(steps))
        return Amount(episodes, steps, sum(observations))

    def trainer(self, mode: Mode) -> Trainer:
        """The trainer of a mode; greedy walks take the batches of a teacher."""
        if mode not in self._trainers:
            losses = _LOSSES.get("teacher" if mode == "greedy" else mode)
            stages = self._learning.stages if losses is None else (Stage(mode, losses=losses),)
            config = replace(self._learning, stages=stages)
            self._trainers[mode] = Trainer(
                self.agent, self.episodes, config, seed=0, augmentation=self._augmentation
            )
        return self._trainers[mode]

    def trace(self, mode: Mode, file: Path) -> None:
        """Write one step as a trace of torch's profiler, with a range per part, for chrome://tracing."""
        ranges = watched(self.agent.network, lambda part, function: record_function(part)(function))
        with ranges, profile() as recorded:
            self.run(mode, 1)
        recorded.export_chrome_trace(str(file))

    def _step(self, trainer: Trainer, mode: Mode) -> int:
        if mode != "greedy":
            return trainer.step().episodes
        batch = self.episodes.select(next(trainer.batches))
        self.agent.walk(batch)
        return len(batch)


def rewind(trainer: Trainer | SpeakerTrainer) -> None:
    """Back to the first batch, with the same random numbers."""
    trainer.batches.load_state_dict({**trainer.batches.state_dict(), "epoch": 0, "position": 0})
    trainer.sampling.manual_seed(1)
    trainer.iteration = 0
    torch.manual_seed(0)


@contextmanager
def walking_by(habit: Habit, *, forced: int = 0, seed: int = 0) -> Iterator[None]:
    """Inside the block, agents score their options as always, and then choose by ``habit``.

    A network that has learnt nothing stops early or wanders, and the cost of an episode is in its length.

    Args:
        habit: how to choose.
        forced: so many episodes of a batch, the first ones, follow their labels.
        seed: of the choices.
    """
    decide, random = AgentPolicy.decide, torch.Generator().manual_seed(seed)

    def by_habit(
        policy: AgentPolicy, request: DecisionRequest, label: Tensor, pose: Pose, space: ActionSpace
    ) -> tuple[Tensor, Tensor]:
        decided, logits = decide(policy, request, label, pose, space)
        return choose_by_habit(decided, request.episode < forced, request, space, habit, random), logits

    with patch.object(AgentPolicy, "decide", by_habit):
        yield


def choose_by_habit(
    decided: Tensor,
    follows: Tensor,
    request: DecisionRequest,
    space: ActionSpace,
    habit: Habit,
    random: torch.Generator,
) -> Tensor:
    """What was decided where an episode ``follows`` its label, a habitual choice elsewhere  ->  (M,)"""
    if bool(follows.all()):
        return decided
    return torch.where(follows, decided, _habitual(request, space, habit, random))


def _habitual(request: DecisionRequest, space: ActionSpace, habit: Habit, random: torch.Generator) -> Tensor:
    """(M,) one of the options of every episode: the usual one, to stay or to stop, or any other"""
    options, rows = request.options.cpu(), torch.arange(len(request.episode))
    if request.type.over_nodes and space.memory is not None:
        usual, probability = space.memory.here[request.episode].cpu(), 1 - habit.leave
    else:
        usual, probability = torch.full_like(rows, request.stop), habit.stop
    others = options.float()
    others[rows, usual] = 0.0
    only_one = others.sum(dim=1) == 0
    others[only_one, 0] = 1.0  # anything; it is not used
    other = torch.multinomial(others, 1, generator=random).squeeze(1)
    wanted = torch.rand(len(rows), generator=random) < probability
    chosen = torch.where(only_one | (wanted & options[rows, usual]), usual, other)
    return chosen.to(request.episode.device)


@contextmanager
def counted_observations() -> Iterator[list[int]]:
    """Inside the block, the observations of every rollout are added to the list."""
    counts: list[int] = []
    finished = Recorder.finished

    def counted(recorder: Recorder, *args: Any, **kwargs: Any) -> Rollout:
        rollout = finished(recorder, *args, **kwargs)
        counts.append(int(rollout.alive.sum()))
        return rollout

    with patch.object(Recorder, "finished", counted):
        yield counts


def made_up_store(
    viewpoints: int, width: int, *, rows: int = _MADE_UP_ROWS, half: bool = False
) -> FeatureStore:
    """Random features in memory, float16; viewpoints share ``rows`` where there are more of them."""
    rows = min(viewpoints, rows)
    info = StoreInfo(keys=(), width=width, source="none", encoder="made up", sha256="")
    values = torch.rand(rows, VIEWS, width, generator=torch.Generator().manual_seed(0)).half()
    return FeatureStore(info, values, torch.arange(viewpoints) % rows, half)


def _with_made_up_features(
    preset: Preset[Any], options: Options, columns: int
) -> tuple[TrainedAgent, EpisodeSet]:
    world = load_world(options.folder.connectivity)
    store = made_up_store(len(world.viewpoints), columns)
    if options.device != "cpu":
        world, store = world.to(options.device), store.to(options.device)
    episodes = load_split(options.folder, world, preset.data.task, "train")
    vocabulary = Vocabulary.build(episodes.texts, min_count=preset.data.min_count)
    torch.manual_seed(0)
    sizes = DataSizes(words=len(vocabulary), visual=columns)
    network = AGENTS[preset.agent].build(preset.model, sizes).to(options.device)
    return TrainedAgent(network, Environment(world, store), vocabulary, preset.walk), episodes
