"""Every benchmark runs on the tiny world and reports all its quantities; how large they are is not tested."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import turns
from benchmarks.eval import EvalOptions, measure_evaluation
from benchmarks.machine import Options
from benchmarks.measure import PARTS, OperationCounter, Speed, flop_counter
from benchmarks.memory import MemoryOptions, measure_memory, slope
from benchmarks.processes import WAYS, ProcessOptions, measure_processes
from benchmarks.speak import KINDS, SpeakerWorkload, SpeakOptions, fresh_speaker, measure_speaking
from benchmarks.train import REFERENCES, TrainOptions, compared, measure_training
from benchmarks.workload import MODES
from scenemem.errors import UserError
from scenemem.features.store import open_store

ROOT = Path(__file__).parents[2]
Run = Callable[..., Any]


def _plausible(speed: dict[str, Any]) -> None:
    assert tuple(speed["parts"]) == PARTS
    assert sum(speed["parts"].values()) == pytest.approx(1.0)
    for name in ("episodes_per_second", "gigaflops_per_second", "operations_per_step", "utilisation"):
        assert math.isfinite(speed[name])
        assert speed[name] > 0


def test_training_report_has_every_quantity(run: Run) -> None:
    cases = run(TrainOptions, measure_training, widths=("everyday",), batches=(4,))
    assert [case["preset"] for case in cases] == ["ssm", "basic"]
    for case in cases:
        assert tuple(case["modes"]) == MODES
        assert (case["feature_columns"], case["features"], case["scans"]) == (8, "random numbers", 3)
        for speed in case["modes"].values():
            _plausible(speed)
            assert speed["observations_per_episode"] >= 1
            assert "times_reference" not in speed, "nobody measured this width"
    ssm, basic = (case["modes"]["mixed"]["parts"] for case in cases)
    assert basic["reasoning"] == basic["memory"] == 0.0
    assert min(ssm["reasoning"], ssm["memory"]) > 0


def test_at_the_width_of_the_paper_speeds_are_compared(run: Run, tmp_path: Path) -> None:
    flags = {"presets": ("ssm",), "widths": ("paper",), "batches": (2,), "modes": ("greedy",)}
    (case,) = run(
        TrainOptions,
        measure_training,
        **flags,
        reference_observations={"greedy": 4.0},
        trace=tmp_path / "trace.json",
    )
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    greedy = case["modes"]["greedy"]
    assert (case["feature_columns"], case["features"]) == (2048, "made up")
    assert greedy["reference_episodes_per_second"] == 0.49
    ratio = greedy["normalised_episodes_per_second"] / 0.49
    assert greedy["times_reference"] == pytest.approx(ratio)
    longer = greedy["observations_per_episode"] / 4.0
    assert greedy["times_reference_per_observation"] == pytest.approx(ratio * longer)


def test_ratios_per_observation_need_the_observations_of_the_reference() -> None:
    speed = Speed(1, 1, 1, 1.0, 1.0, 1.0, 5.1, 6.0, 1.0, 1.0, 1.0, 1.0, 1.0, None, {})
    teacher = compared(speed, "ssm", 2048, "teacher")
    assert teacher["times_reference"] == teacher["times_reference_per_observation"] == pytest.approx(10.0)
    assert teacher["reference_observations_per_episode"] == 6.0
    sampled = compared(speed, "ssm", 2048, "sampled")
    assert sampled["times_reference_per_observation"] == pytest.approx(5.1 / 0.165 * 6.0 / 12.6)
    assert compared(speed, "ssm", 2048, "sampled", 12.0)["times_reference_per_observation"] == pytest.approx(
        5.1 / 0.165 / 2
    )
    assert compared(speed, "basic", 2048, "mixed")["times_reference_per_observation"] is None
    assert compared(speed, "ssm", 500, "teacher") == compared(speed, "ssm-local", 2048, "teacher") == {}
    assert len({(row.agent, row.mode) for row in REFERENCES}) == len(REFERENCES)


def test_memory_report(run: Run) -> None:
    (case,) = run(MemoryOptions, measure_memory, capacities=(2, 4))
    assert list(case["modes"]) == ["2 places", "4 places"]
    assert all(numbers["visits_per_second"] > 0 for numbers in case["modes"].values())
    assert math.isfinite(case["seconds_per_visit_slope"])
    assert 0 < case["memory_share"] < 1
    assert 0 < case["rollout_share"] < 1


@given(
    exponent=st.floats(-2, 3), factor=st.floats(0.01, 100), sizes=st.sets(st.integers(1, 4096), min_size=2)
)
def test_the_slope_of_a_power_law_is_its_exponent(exponent: float, factor: float, sizes: set[int]) -> None:
    costs = [factor * size**exponent for size in sorted(sizes)]
    assert slope(sorted(sizes), costs) == pytest.approx(exponent, abs=1e-6)


def test_evaluation_report(run: Run) -> None:
    (case,) = run(EvalOptions, measure_evaluation, agent="basic", split="val_seen", batch=5)
    assert (case["agent"], case["trained"], case["split"]) == ("basic", False, "r2r val_seen")
    speed = case["modes"]["greedy"]
    _plausible(speed)
    assert speed["steps"] == math.ceil(speed["episodes"] / 5) > 1
    assert speed["seconds"] * speed["episodes_per_second"] == pytest.approx(speed["episodes"])
    assert speed["wall_seconds"] == pytest.approx(speed["seconds"] / speed["cpus"])


def test_speaker_report(run: Run) -> None:
    speaker, basic, ssm = run(SpeakOptions, measure_speaking, beam=2)
    assert (speaker["speaker"], speaker["feature_columns"]) == ("fresh, texts of one length", 8)
    modes = speaker["modes"]
    assert tuple(modes) == KINDS
    assert len({modes[kind]["words"] for kind in ("greedy", "sampled", "beam")}) == 1, "texts of one length"
    assert modes["beam"]["gigaflops_per_episode"] > modes["greedy"]["gigaflops_per_episode"]
    for speed in modes.values():
        _plausible(speed)
    for case, preset in ((basic, "basic"), (ssm, "ssm")):
        speed = case["modes"]["mixed"]
        assert case["preset"] == preset
        assert speed["episodes"] == 4 * 2 * 2, "two walks of an episode, its own and a described one"
        assert 0 < speed["speaker_share"] == speed["parts"]["speaker"] < 1
        assert speed["below_goal"] == (speed["speaker_share"] < speed["share_goal"])


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_descriptions_are_the_same_work(kind: str, tiny_trainable: Path) -> None:
    load = SpeakerWorkload(fresh_speaker(Options(data=tiny_trainable)), batch=5, beam=2)
    load.run(kind, 2)  # makes the state of the optimiser
    before = [weights.clone() for weights in load.speaker.network.parameters()]
    counts = []
    for _ in range(2):
        with flop_counter() as products, OperationCounter() as operations:
            done = load.run(kind, 2)
        counts.append((done, products.get_total_flops(), operations.count))
    assert counts[0] == counts[1]
    assert counts[0][0].steps == 2
    for old, new in zip(before, load.speaker.network.parameters(), strict=True):
        torch.testing.assert_close(old, new)


def test_processes_are_compared_with_the_best_single_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings that write 10, 20 and 30 episodes/s into the metrics of their run."""
    speeds = iter([10.0, 20.0, 30.0] * 2)

    def train(words: list[str], env: dict[str, str], **_: Any) -> SimpleNamespace:
        folder = Path(words[words.index("--out") + 1])
        assert env["OMP_NUM_THREADS"] == words[words.index("--threads") + 1]
        line = {"episodes_per_second": next(speeds), "losses": {"a2c": 1.0}}
        folder.mkdir()
        (folder / "metrics.jsonl").write_text(json.dumps({}) + "\n" + json.dumps(line) + "\n")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", train)
    (case,) = run(ProcessOptions, measure_processes, repeats=2)
    assert case["processes_of_best_single"] == 1.5
    assert tuple(case["modes"]) == tuple(WAYS)
    assert case["modes"]["two threads"] == {"episodes_per_second": [20.0, 20.0], "losses": {"a2c": 1.0}}
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=2))
    with pytest.raises(UserError, match=r"^the training with one thread failed with exit code 2; see above$"):
        measure_processes(ProcessOptions())


def test_two_checkouts_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take 3 seconds and 2, after slow ones that warm up."""
    seconds = iter([99.0, 99.0, *[3.0, 2.0] * 2])
    monkeypatch.setattr(turns, "_worker", lambda *_: SimpleNamespace(communicate=lambda: None))
    monkeypatch.setattr(turns, "_turn", lambda _worker, steps: steps * next(seconds))
    options = Namespace(batch=2, data="DIR", features="tiny", before=ROOT, turns=2, steps=5)
    row = turns._measured(options, "basic", "everyday")
    assert row["cpu_seconds_per_step"] == {"before": 3.0, "after": 2.0}
    assert row["times_before"] == 1.5
    assert [len(times) for times in row["turns"].values()] == [2, 2]


def test_a_worker_trains_when_told_to(tiny_trainable: Path) -> None:
    worker = turns._worker(ROOT, ["basic", "everyday", "2", str(tiny_trainable), "tiny"])
    assert turns._turn(worker, 1) > 0
    worker.communicate()
    assert worker.returncode == 0


def test_turns_widen_the_features_for_the_paper(
    tiny_trainable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MADE_UP_ROWS", 3)
    for module in list(sys.modules.values()):
        if getattr(module, "open_store", None) is open_store:
            monkeypatch.setattr(module, "open_store", open_store)  # put back afterwards
    trainer = turns._trainer("ssm", "paper", 2, str(tiny_trainable), "tiny")
    store, network = trainer.agent.environment.store, trainer.agent.network
    assert (store.width, network.config.width, network.config.node_width) == (2048, 512, None)
    assert trainer.step().episodes == 4


def test_mistakes_are_named(tiny_trainable: Path) -> None:
    with pytest.raises(UserError, match=r"^unknown preset 'ssn'; did you mean ssm"):
        measure_training(TrainOptions(presets=("ssn",), data=tiny_trainable))
    with pytest.raises(UserError, match=r"need at least one value each$"):
        TrainOptions(presets=())
    with pytest.raises(UserError, match=r"^--batches and --columns must be 1 or more, got \(0,\) and None$"):
        TrainOptions(batches=(0,))
    with pytest.raises(
        UserError, match=r"^--capacities needs two different sizes of 1 or more, got \(4, 4\)$"
    ):
        MemoryOptions(capacities=(4, 4))
    with pytest.raises(UserError, match="holds no run"):
        measure_evaluation(EvalOptions(agent=str(tiny_trainable), data=tiny_trainable))
    with pytest.raises(UserError, match=r"^--beam must be 2 or more, got 1$"):
        SpeakOptions(beam=1)
    with pytest.raises(UserError, match="holds no run"):
        measure_speaking(replace(SpeakOptions(data=tiny_trainable), speaker=str(tiny_trainable)))
