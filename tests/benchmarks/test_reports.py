"""Every benchmark runs on the tiny world and reports all its quantities; how large they are is not tested."""

from __future__ import annotations

import json
import math
import re
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
from torch import Tensor, nn

from benchmarks import published, simulator, turns
from benchmarks.eval import EvalOptions, measure_evaluation
from benchmarks.machine import Options
from benchmarks.measure import PARTS, Amount, Speed
from benchmarks.memory import MemoryOptions, measure_memory, slope
from benchmarks.operations import OperationOptions, WaitCounter, count_operations
from benchmarks.processes import WAYS, ProcessOptions, measure_processes
from benchmarks.published import PublishedOptions, hours, measure_published
from benchmarks.simulator import (
    SimulatorOptions,
    measure_gathering,
    measure_simulator,
    measure_tables,
    random_walk,
)
from benchmarks.speak import KINDS, SpeakerWorkload, SpeakOptions, fresh_speaker, measure_speaking
from benchmarks.train import REFERENCES, TrainOptions, compared, measure_training
from benchmarks.workload import MODES, Mode, Workload, made_up_store
from scenemem import zoo
from scenemem.errors import UserError
from scenemem.features.store import open_store
from scenemem.presets import PUBLISHED
from scenemem.world.build import load_world
from tests.benchmarks.conftest import Run, repeated
from tests.zoo.helpers import small as small_published

ROOT = Path(__file__).parents[2]


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
            assert "times_reference" not in speed, "not measured at this width"
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

    def ratio(preset: str, mode: Any, *observations: float) -> Any:
        return compared(speed, preset, 2048, mode, *observations)["times_reference_per_observation"]

    teacher = compared(speed, "ssm", 2048, "teacher")
    assert teacher["times_reference"] == ratio("ssm", "teacher") == pytest.approx(10.0)
    assert teacher["reference_observations_per_episode"] == 6.0
    assert ratio("ssm", "sampled") == pytest.approx(5.1 / 0.165 * 6.0 / 12.6)
    assert ratio("ssm", "sampled", 12.0) == pytest.approx(5.1 / 0.165 / 2)
    assert ratio("basic", "mixed") is None
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
    assert repeated(lambda: load.run(kind, 2), load.speaker.network).steps == 2


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


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no preset": (
        lambda _: TrainOptions(presets=()),
        "presets, --widths, --batches and --modes need at least one value each",
    ),
    "no batch": (
        lambda _: TrainOptions(batches=(0,)),
        "--batches and --columns must be 1 or more, got (0,) and None",
    ),
    "one capacity": (
        lambda _: MemoryOptions(capacities=(4, 4)),
        "--capacities needs two different sizes of 1 or more, got (4, 4)",
    ),
    "beam": (lambda _: SpeakOptions(beam=1), "--beam must be 2 or more, got 1"),
    "no step": (lambda _: SimulatorOptions(steps=0), "--steps must be 1 or more, got 0"),
    "no column": (
        lambda _: PublishedOptions(columns=0),
        "--columns and --steps must be 1 or more, got 0 and 2",
    ),
    "repeats": (lambda _: Options(repeats=-2), "--repeats must be 1 or more, got -2"),
    "threads": (lambda _: Options(threads=-2), "--threads must be 1 or more, got -2"),
    "preset": (
        lambda data: measure_training(TrainOptions(presets=("ssn",), data=data)),
        "unknown preset 'ssn'; did you mean ssm",
    ),
    "run": (lambda data: measure_evaluation(EvalOptions(agent=str(data), data=data)), "holds no run"),
    "speaker": (lambda data: measure_speaking(SpeakOptions(speaker=str(data), data=data)), "holds no run"),
    "store": (
        lambda data: measure_simulator(SimulatorOptions(data=data, features="resnet")),
        "no feature store 'resnet'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_is_named(case: str, tiny_trainable: Path) -> None:
    measure, message = REFUSED[case]
    with pytest.raises(UserError, match=re.escape(message)):
        measure(tiny_trainable)


# The simulator


@pytest.mark.parametrize(
    ("features", "gathered"), [(None, ("made up", 8)), ("tiny", ("random numbers", 8))], ids=str
)
def test_simulator_report(
    features: str | None, gathered: tuple[str, int], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulator, "MADE_UP", {"viewpoints": 40, "width": 8})
    flags = {"batch": 16, "steps": 3, "features": features}
    tables, stepping, gathering = run(SimulatorOptions, measure_simulator, **flags)
    assert (tables["scans"], tables["viewpoints"]) == (3, 32)
    assert (stepping["batch"], stepping["steps"]) == (16, 3)
    assert (gathering["source"], gathering["width"]) == gathered
    for case in (tables, stepping, gathering):
        for numbers in case["modes"].values():
            for name, value in numbers.items():
                assert name == "peak_growth_megabytes" or value > 0, name


def test_tables_are_counted_to_the_byte(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "peak_megabytes", lambda: None)
    world, build = measure_tables(tiny_data / "connectivity")
    viewpoints, slots = world.neighbour.shape
    pairs = len(world.pair_distance)
    # three int64 columns, a position, two int64 / two float32 / one float64 per slot, 10 bytes per pair
    expected = viewpoints * (3 * 8 + 3 * 8 + slots * (2 * 8 + 2 * 4 + 8)) + pairs * 10
    assert build["tables_megabytes"] * 1e6 == pytest.approx(expected)
    assert build["peak_growth_megabytes"] is None


def test_random_walks_are_legal(tiny_data: Path) -> None:
    world = load_world(tiny_data / "connectivity")
    start, viewpoints, actions = random_walk(world, 6, 5)
    assert len(viewpoints) == len(actions) == 5
    assert torch.equal(viewpoints[0], start.viewpoint)
    for here, action, there in zip(viewpoints, actions, viewpoints[1:], strict=False):
        assert torch.equal(world.neighbour[here, action], there)


def test_a_last_smaller_batch_is_gathered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    store = made_up_store(10, 4, half=True)
    gathered: list[int] = []
    gather = type(store).gather

    def counted(self: Any, viewpoints: torch.Tensor) -> torch.Tensor:
        gathered.append(len(viewpoints))
        return gather(self, viewpoints)

    monkeypatch.setattr(type(store), "gather", counted)
    assert measure_gathering(store, repeats=1, batch=3)["gather_of_copy"] > 0
    assert gathered == [3, 3, 3, 1] * 2


# Operations


def test_operations_and_waits_are_counted() -> None:
    """A sum is one operation; everything that needs a look at the result waits once."""
    mask, values, before = torch.tensor([True, False, True]), torch.arange(3.0), Tensor.cpu
    waiting: tuple[tuple[Callable[[], object], int], ...] = (
        (lambda: values.sum(), 0),
        (lambda: mask.nonzero(), 1),
        (lambda: values[mask], 1),
        (lambda: values.masked_select(mask), 1),
        (lambda: torch.equal(values, values), 1),
        (lambda: int(mask.sum()), 1),
        (lambda: values.cpu(), 1),
        (lambda: values.tolist(), 1),
    )
    for work, waits in waiting:
        counter = WaitCounter()
        with counter.counting(nn.Identity()):
            work()
        assert sum(counter.waits.values()) == waits
        assert waits or sum(counter.operations.values()) == 1
    with pytest.raises(RuntimeError), WaitCounter().counting(nn.Identity()):
        raise RuntimeError
    assert Tensor.cpu is before, "nothing is patched afterwards"


def test_a_step_is_counted_by_part(run: Run) -> None:
    (case,) = run(OperationOptions, count_operations, preset="ssm", batch=2)
    step, parts = case["modes"].pop("step"), case["modes"].values()
    for counted in ("operations", "synchronisations"):
        assert step[counted] == sum(part[counted] for part in parts)
    assert step["operations"] > 20 * step["steps_of_the_walk"] > 0
    assert case["modes"]["memory"]["operations"] > 0
    assert 0 < step["operations_per_step_of_the_walk"] * step["steps_of_the_walk"] < step["operations"]


def test_lines_are_those_of_the_package(tiny_trainable: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count_operations(OperationOptions(data=tiny_trainable, preset="ssm", batch=2, lines=3))
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 3
    pattern = r" +\d+ operations, +\d+ synchronisations  \w+/\w+\.py:\d+"
    assert all(re.fullmatch(pattern, line) for line in shown)


# Rows as published

PUBLISHED_NAME = "speaker-follower"


def test_stages_have_their_shares_of_the_hours() -> None:
    preset = PUBLISHED[PUBLISHED_NAME]
    described, tuned = (stage.name for stage in preset.learning.stages)
    only = hours(preset, {described: 3600.0, tuned: 0.0})
    assert only == pytest.approx(50_000)
    assert hours(preset, {described: 3600.0, tuned: 3600.0}) == pytest.approx(70_000)


def test_steps_of_every_stage_are_timed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = small_published(PUBLISHED[PUBLISHED_NAME])
    learning = replace(preset.learning, batch=3, iterations=1000)
    monkeypatch.setitem(PUBLISHED._objects, PUBLISHED_NAME, replace(preset, learning=learning))
    clock = iter(float(tick) for tick in range(100))  # a second from look to look
    monkeypatch.setattr(published, "now", lambda _device: next(clock))
    done: list[tuple[str, int]] = []

    class Watched(Workload):
        def run(self, mode: Mode, steps: int) -> Amount:
            done.append((self.trainer(mode).config.stage_at(0).name, steps))
            return super().run(mode, steps)

    monkeypatch.setattr(published, "Workload", Watched)
    (case,) = run(PublishedOptions, measure_published, presets=(PUBLISHED_NAME,), columns=8, steps=2)
    assert case["modes"] == {
        "described": {"seconds_per_step": 0.5},
        "fine-tuning": {"seconds_per_step": 0.5},
    }
    assert done == [("described", 1), ("described", 2), ("fine-tuning", 1), ("fine-tuning", 2)], "warmed up"
    assert case["hours"] == pytest.approx(0.5 * 1000 / 3600)
    assert (case["batch"], case["iterations"], case["feature_columns"]) == (3, 1000, 8)


def test_all_rows_as_published_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def no_time(preset: Any, _options: PublishedOptions) -> dict[str, float]:
        seen.append(preset.agent)
        return {stage.name: 1.0 for stage in preset.learning.stages}

    monkeypatch.setattr(published, "seconds_per_step", no_time)
    cases = measure_published(PublishedOptions())
    assert [case["preset"] for case in cases] == [name for name in zoo.rows() if name in PUBLISHED]
    assert len(seen) == len(cases) >= len(zoo.systems())


# Larger groups

MEASURED = ROOT / "benchmarks" / "results" / "train-batches-2026-11-16.json"


def _scaling(result: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.scaling", str(result), *flags]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def _table(text: str) -> list[list[float]]:
    rows = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    return [[float(cell) for cell in row.strip("| ").split("|")] for row in rows]


def test_the_page_about_several_processes_says_what_was_computed() -> None:
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    assert _table(_scaling(MEASURED).stdout) == _table(page)


def test_a_group_gains_what_a_step_shares(tmp_path: Path) -> None:
    """0.5 s a step, 10 ms an episode, and 1 s to send a million parameters over 4 MB/s."""

    def result(*batches: int) -> Path:
        cases = []
        for batch in batches:
            speed = {"mixed": {"episodes_per_second": 2 * batch / (0.5 + 0.01 * batch)}}
            cases.append({"preset": "ssm", "batch": batch, "parameters": 10**6, "modes": speed})
        (tmp_path / "result.json").write_text(json.dumps({"cases": cases}))
        return tmp_path / "result.json"

    flags = ("--batch", "50", "--link", "0.004", "--processes", "1", "2")
    assert _table(_scaling(result(50, 150), *flags).stdout) == [[1, 1.0, 1.0], [2, round(1 / 1.75, 1), 1.0]]
    one = _scaling(result(50))
    assert one.returncode == 2
    assert "measure two or more" in one.stderr, "one size does not tell how a step grows"
