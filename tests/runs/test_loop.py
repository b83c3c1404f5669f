from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import scenemem.learning.trainer
from scenemem.errors import DataError, Interrupted, UserError
from scenemem.evaluation.evaluate import walk_split
from scenemem.formats.folder import DataFolder
from scenemem.learning.checkpoint import read_checkpoint
from scenemem.learning.trainer import Trainer, WeightAverage
from scenemem.presets import PRESETS, Preset
from scenemem.runs.experiment import new_experiment
from scenemem.runs.folder import RunFolder
from scenemem.runs.loop import TrainingLoop, TrainingStatus, differences, measured_cost
from tests.runs.outcomes import assert_same_run, outcome

ITERATIONS = 12


def _preset(**learning: Any) -> Preset[Any]:
    base = PRESETS["ssm"]
    return replace(
        base,
        model=replace(base.model, word_width=8, width=16, node_width=8),
        data=replace(base.data, min_count=1),
        learning=replace(base.learning, **{"iterations": ITERATIONS, "batch": 6, **learning}),
        selection=replace(base.selection, every=4, save_every=2),
    )


def _loop(data: Path, out: Path, seed: int = 0, stop_at: int | None = None, **learning: Any) -> TrainingLoop:
    """A loop on the tiny world; ``stop_at`` raises in the middle of it, as a crash would."""
    torch.set_num_threads(1)
    experiment = new_experiment(_preset(**learning), DataFolder(data), seed)
    episodes = experiment.episodes("dev_unseen")

    def validate() -> dict[str, float]:
        return walk_split(experiment.agent, episodes).measured(experiment.environment.world).means()

    def watch(status: TrainingStatus) -> None:
        if status.iteration == stop_at:
            raise KeyboardInterrupt

    trainer = Trainer(experiment.agent, experiment.episodes("train"), experiment.preset.learning, seed)
    return TrainingLoop(
        trainer,
        RunFolder(out),
        validate,
        experiment.preset.selection,
        {**experiment.metadata, "seed": seed},
        watch,
    )


@pytest.fixture(scope="module")
def finished(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    _loop(tiny_trainable, out).run()
    return out


def _continue(data: Path, out: Path, **learning: Any) -> int:
    """Resume a run and finish it  ->  the iteration it went on from"""
    continued = _loop(data, out, **learning)
    continued.resume()
    resumed_at = continued.trainer.iteration
    continued.run()
    return resumed_at


def _interrupt(data: Path, out: Path, stop_at: int, **learning: Any) -> TrainingLoop:
    loop = _loop(data, out, stop_at=stop_at, **learning)
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    return loop


@pytest.mark.parametrize(("save_every", "saved"), [(100, [3, 6, 7]), (2, [2, 3, 4, 6, 7])])
def test_a_run_saves_when_it_validates_however_seldom_it_saves_otherwise(
    tiny_trainable: Path, tmp_path: Path, save_every: int, saved: list[int]
) -> None:
    loop = _loop(tiny_trainable, tmp_path, stop_at=7, iterations=7)
    loop.selection = replace(loop.selection, every=3, save_every=save_every)
    with pytest.raises(KeyboardInterrupt):  # before the last step is saved
        loop.run()
    assert read_checkpoint(RunFolder(tmp_path).last).metadata["progress"]["iteration"] == 6
    loop.watch = None
    loop.resume()
    loop.run()
    lines = list(RunFolder(tmp_path).logged())
    assert [line["iteration"] for line in lines] == saved
    assert [line["iteration"] for line in lines if "validation" in line] == [3, 6, 7]


def test_another_seed_gives_another_run(tiny_trainable: Path, finished: Path, tmp_path: Path) -> None:
    _loop(tiny_trainable, tmp_path, seed=1).run()
    mine, theirs = outcome(tmp_path)[0], outcome(finished)[0]
    assert not torch.equal(mine["network.updater.join.weight"], theirs["network.updater.join.weight"])
    with pytest.raises(UserError, match=r"another seed \(0 then, 5 now\); resume with the settings"):
        _loop(tiny_trainable, finished, seed=5).resume()


@pytest.mark.parametrize("stop_at", [1, 2, 3, 7, 11])
def test_a_resumed_run_equals_an_uninterrupted_one(
    tiny_trainable: Path, finished: Path, tmp_path: Path, stop_at: int
) -> None:
    _interrupt(tiny_trainable, tmp_path, stop_at)
    spent = [line["cpu_seconds"] for line in RunFolder(tmp_path).logged()]
    _continue(tiny_trainable, tmp_path)
    assert_same_run(tmp_path, finished)
    costs = [line["cpu_seconds"] for line in RunFolder(tmp_path).logged()]
    assert costs[: len(spent)] == spent, "the cost of a run counts all its processes"
    assert costs == sorted(costs)
    assert costs[-1] > 0


def test_averaged_weights_are_kept_beside_those_that_go_on_learning(
    tiny_trainable: Path, finished: Path, tmp_path: Path
) -> None:
    _loop(tiny_trainable, tmp_path / "whole", average=0.5).run()
    _interrupt(tiny_trainable, tmp_path / "cut", 7, average=0.5)
    _continue(tiny_trainable, tmp_path / "cut", average=0.5)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    measured = _loop(tiny_trainable, tmp_path / "measured", average=0.5)
    assert measured_cost(measured.trainer).startswith("12 steps, about ")
    measured.run()
    assert_same_run(tmp_path / "measured", tmp_path / "whole")

    averaged, last = (read_checkpoint(RunFolder(out).last) for out in (tmp_path / "whole", finished))
    trained = {
        name.removeprefix("trained."): tensor
        for name, tensor in averaged.tensors.items()
        if name.startswith("trained.")
    }
    for name, weights in trained.items():  # averaging does not change what is learnt
        assert torch.equal(weights, last.network()[name])
    assert not torch.equal(averaged.network()["updater.join.weight"], trained["updater.join.weight"])


def test_the_average_weighs_older_weights_by_its_decay() -> None:
    network = torch.nn.Linear(1, 1, bias=False)
    average = WeightAverage(network, decay=0.25)
    torch.nn.init.constant_(network.weight, begun := 2.0)
    by_hand = begun
    with average.applied():  # as a run that is saved before its first step
        assert float(network.weight.detach()) == begun
    for steps in range(1, 9):
        with torch.no_grad():
            network.weight.fill_(begun + steps)
        average.update(steps)
        decay = min(0.25, (1 + steps) / (10 + steps))
        by_hand = decay * by_hand + (1 - decay) * (begun + steps)
    with average.applied() as trained:
        assert float(network.weight.detach()) == pytest.approx(by_hand, abs=1e-5)
        assert float(trained["trained.weight"]) == begun + 8
    assert float(network.weight.detach()) == begun + 8


def _train_or_resume(data: Path, out: Path) -> None:
    if RunFolder(out).last.exists():
        _continue(data, out)
    else:
        _loop(data, out).run()


def test_a_run_killed_at_random_moments_ends_as_if_nothing_had_happened(
    tiny_trainable: Path, finished: Path, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scenemem.runs.experiment", "scenemem.evaluation.evaluate"])
    moments = random.Random(0)
    for _ in range(20):
        process = context.Process(target=_train_or_resume, args=(tiny_trainable, tmp_path))
        process.start()
        time.sleep(moments.uniform(0.05, 0.9))
        process.kill()
        process.join()
    _train_or_resume(tiny_trainable, tmp_path)
    assert_same_run(tmp_path, finished)


def test_the_best_weights_are_kept_with_their_metadata(finished: Path) -> None:
    best = read_checkpoint(RunFolder(finished).best)
    values = [line["validation"]["sr"] for line in RunFolder(finished).logged() if "validation" in line]
    assert best.metadata["progress"]["best"]["value"] == max(values)
    assert best.metadata["preset"]["agent"] == "ssm"
    assert not any(name.startswith("optimiser") for name in best.tensors)


def test_broken_features_stop_a_run_that_keeps_its_checkpoint(tiny_trainable: Path, tmp_path: Path) -> None:
    trainer = _interrupt(tiny_trainable, tmp_path, 5).trainer
    assert isinstance(trainer, Trainer)
    trainer.agent.environment.store.values[:] = torch.nan
    expected = "a score of decision 'action' is not a finite number at step 6; the last good"
    with pytest.raises(UserError, match=expected):
        trainer.step()
    assert read_checkpoint(RunFolder(tmp_path).last).metadata["progress"]["iteration"] == 4


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [_flip, lambda file: file.write_bytes(file.read_bytes()[:-9]), Path.unlink]
)
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(
    tiny_trainable: Path, finished: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    _interrupt(tiny_trainable, tmp_path, 7)
    damage(RunFolder(tmp_path).last)
    expected = r"last\.safetensors: .*; the run goes on from the one before it, .*previous"
    with pytest.warns(UserWarning, match=expected):
        assert _continue(tiny_trainable, tmp_path) == 4
    assert_same_run(tmp_path, finished)


def test_without_a_good_checkpoint_both_are_named(
    tiny_trainable: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    _flip(run.last)
    _flip(run.previous)
    expected = r"no good checkpoint: .*last\.saf.*differs from its checksum.*previous"
    with pytest.raises(DataError, match=expected):
        _loop(tiny_trainable, run.root).resume()
    with pytest.raises(DataError, match="no such checkpoint"):
        _loop(tiny_trainable, tmp_path / "empty").resume()


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        *((number, 3) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
        *((signal.SIGTERM, moment) for moment in (1, 4, "validation")),
    ],
)
def test_a_signal_saves_the_run_first(
    tiny_trainable: Path,
    finished: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    number: signal.Signals,
    moment: int | str,
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup, which is respected
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    loop = _loop(tiny_trainable, tmp_path)
    validate = loop.validate

    def interrupted() -> dict[str, float]:
        torch.rand(3)  # half a validation may draw numbers
        os.kill(os.getpid(), number)
        return validate()

    def watch(status: TrainingStatus) -> None:
        if status.iteration == moment:
            os.kill(os.getpid(), number)

    loop.watch = watch
    if moment == "validation":
        loop.validate = interrupted
    reached = 4 if moment == "validation" else moment
    expected = rf"is saved at iteration {reached}; continue with `resume=True`"
    with pytest.raises(Interrupted, match=expected) as caught:
        loop.run()
    assert caught.value.number == number
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "handlers are put back"
    assert _continue(tiny_trainable, tmp_path) == reached
    assert_same_run(tmp_path, finished)


@pytest.mark.parametrize("place", ["encode", "collect", "backward"])
def test_a_signal_does_not_wait_for_a_step(
    tiny_trainable: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    loop = _loop(tiny_trainable, tmp_path)
    owner, name = {
        "encode": (loop.trainer, "_losses"),
        "collect": (scenemem.learning.trainer, "collect"),
        "backward": (torch.autograd, "backward"),
    }[place]
    call = getattr(owner, name)

    def signalled(*arguments: Any, **named: Any) -> Any:
        if loop.trainer.iteration == 2:
            torch.rand(3)  # half a step draws numbers
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            raise AssertionError("the step went on")
        return call(*arguments, **named)

    with monkeypatch.context() as patched, pytest.raises(Interrupted, match="is saved at iteration 2"):
        patched.setattr(owner, name, signalled)
        loop.run()
    assert _continue(tiny_trainable, tmp_path) == 2
    assert_same_run(tmp_path, finished)


def test_differences_name_the_settings_that_differ_and_no_others() -> None:
    before = {"model": {"width": 64, "deep": {"kept": 1}}, "gone": True, "same": [1, 2]}
    now = {"model": {"width": 128, "deep": {"kept": 1}, "new": "a"}, "same": [1, 2]}
    assert differences(before, now) == [
        "gone: true then, nothing now",
        'model.new: nothing then, "a" now',
        "model.width: 64 then, 128 now",
    ]
    assert differences(3, 4) == ["3 then, 4 now"]
    assert differences("a" * 9000, None) == ['"' + "a" * 69 + "... then, nothing now"]
    assert differences(before, before) == []
