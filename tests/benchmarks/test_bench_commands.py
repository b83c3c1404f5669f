"""Every benchmark runs on the tiny world and reports all its quantities; how large they are is not tested."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scenemem.benchmarks import growth, process_memory
from scenemem.benchmarks.clock import now
from scenemem.benchmarks.evaluating import EvaluationReport
from scenemem.benchmarks.flops import Product
from scenemem.benchmarks.growth import slope
from scenemem.benchmarks.machine import torch_threads
from scenemem.benchmarks.parts import PARTS
from scenemem.benchmarks.products import measure_products
from scenemem.benchmarks.reference import REFERENCES, reference_speed
from scenemem.benchmarks.scene_memory import MemoryReport
from scenemem.benchmarks.speed import Speed
from scenemem.benchmarks.training import TrainingReport
from scenemem.commands.bench_eval import bench_eval
from scenemem.commands.bench_memory import bench_memory
from scenemem.commands.bench_train import bench_train
from scenemem.errors import UserError

Captured = pytest.CaptureFixture[str]


def _plausible(speed: Speed) -> None:
    assert sum(part.share for part in speed.parts.values()) == pytest.approx(1.0)
    assert sum(part.gigaflops_per_episode for part in speed.parts.values()) == pytest.approx(
        speed.gigaflops_per_episode
    )
    assert speed.shapes is not None
    assert speed.shapes.share >= 0.5
    assert speed.utilisation_of_square > 0
    assert speed.observations_per_episode >= 1


def test_training_report_has_every_quantity(tiny_trainable: Path, tmp_path: Path, capsys: Captured) -> None:
    bench_train(
        ("ssm", "basic"),
        tiny_trainable,
        widths=("everyday",),
        batches=(4,),
        seconds=1e-6,
        repeats=1,
        json=True,
        out=tmp_path / "report.json",
    )
    shown = capsys.readouterr().out
    report = msgspec.json.decode(shown, type=TrainingReport)
    assert json.loads(shown) == json.loads((tmp_path / "report.json").read_text())
    assert report.machine.torch == torch.__version__
    for case in report.cases:
        assert list(case.modes) == ["teacher", "sampled", "mixed", "greedy"]
        assert (case.feature_columns, case.features, case.scans, case.growth) == (8, "random numbers", 3, [])
        for mode in case.modes.values():
            _plausible(mode.speed)
            assert mode.times_reference is None
    ssm, basic = (case.modes["mixed"].speed.parts for case in report.cases)
    assert basic["reasoning"].share == basic["memory"].share == 0.0
    assert ssm["reasoning"].gigaflops_per_episode > 0


def test_growth_and_tables_for_people(
    tiny_trainable: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "BATCHES", (2, 4))
    monkeypatch.setattr(growth, "COLUMNS", (4, 8))
    monkeypatch.setattr(growth, "ROUNDS", (2, 4))
    monkeypatch.setattr(growth, "_STEPS", 1)
    bench_train(
        ("ssm",),
        tiny_trainable,
        widths=("everyday",),
        batches=(4,),
        modes=("teacher",),
        seconds=1e-6,
        repeats=1,
        growth=True,
    )
    shown = capsys.readouterr().out
    for words in ("ssm, everyday width, 8 columns, batch 4", "utilisation of square", *PARTS):
        assert words in shown
    for words in ("log-log slopes", "feature columns", "rounds", "scans"):
        assert words in shown


def test_at_the_width_of_the_paper_speeds_are_compared(tiny_trainable: Path, capsys: Captured) -> None:
    bench_train(
        ("ssm",),
        tiny_trainable,
        widths=("paper",),
        batches=(2,),
        modes=("greedy",),
        seconds=1e-6,
        repeats=1,
        json=True,
    )
    case = msgspec.json.decode(capsys.readouterr().out, type=TrainingReport).cases[0]
    greedy = case.modes["greedy"]
    assert (case.feature_columns, case.store_megabytes) == (2048, 32 * 36 * 2048 * 2 / 1e6)
    assert greedy.reference_episodes_per_second == 0.34
    assert greedy.times_reference == pytest.approx(greedy.speed.normalised_episodes_per_second / 0.34)


def test_memory_report(tiny_trainable: Path, capsys: Captured) -> None:
    bench_memory(tiny_trainable, batch=4, places=(2, 4), repeats=1, json=True)
    report = msgspec.json.decode(capsys.readouterr().out, type=MemoryReport)
    assert [(row.lanes, row.places) for row in report.visiting] == [(4, 2), (4, 4)]
    assert 0 < report.memory_share < 1
    assert 0 < report.world_share < 1
    bench_memory(tiny_trainable, batch=4, places=(2, 4), repeats=1)
    assert "4 memories of 2 places" in capsys.readouterr().out


def test_evaluation_report(tiny_trainable: Path, capsys: Captured) -> None:
    bench_eval("basic", "val_seen", tiny_trainable, batch=5, repeats=1, json=True)
    report = msgspec.json.decode(capsys.readouterr().out, type=EvaluationReport)
    assert (report.agent, report.trained, report.split) == ("basic", False, "r2r val_seen")
    assert report.speed.episodes == report.episodes > 5
    assert report.seconds * report.speed.episodes_per_second == pytest.approx(report.episodes)
    assert report.wall_seconds > 0
    _plausible(report.speed)
    bench_eval("basic", "val_seen", tiny_trainable, batch=5, repeats=1)
    assert "basic (fresh)" in capsys.readouterr().out


def test_mistakes_are_named(tiny_trainable: Path) -> None:
    with pytest.raises(UserError, match=r"^unknown preset 'ssn'; there are: ssm, "):
        bench_train(("ssn",), tiny_trainable)
    with pytest.raises(UserError, match=r"^unknown preset 'ssn'; there are: ssm, "):
        bench_memory(tiny_trainable, preset="ssn")
    with pytest.raises(UserError, match=r"^--presets needs at least one value$"):
        bench_train((), tiny_trainable)
    with pytest.raises(UserError, match=r"^--batches, --repeats and --feature-columns must be 1 or more$"):
        bench_train(("ssm",), tiny_trainable, batches=(0,))
    with pytest.raises(UserError, match=r"^--places needs two different sizes of 1 or more, got "):
        bench_memory(tiny_trainable, places=(4, 4))
    with pytest.raises(UserError, match=r"^--batch and --repeats must be 1 or more, got 0 and 7$"):
        bench_memory(tiny_trainable, batch=0)
    with pytest.raises(UserError, match=r"^--batch and --repeats must be 1 or more, got 256 and 0$"):
        bench_eval("ssm", data=tiny_trainable, repeats=0)
    with pytest.raises(UserError, match=r"^'nowhere' is neither a run folder with a checkpoint nor a preset"):
        bench_eval("nowhere", data=tiny_trainable)


@given(
    exponent=st.floats(-2, 3), factor=st.floats(0.01, 100), sizes=st.sets(st.integers(1, 4096), min_size=2)
)
def test_the_slope_of_a_power_law_is_its_exponent(exponent: float, factor: float, sizes: set[int]) -> None:
    costs = [factor * size**exponent for size in sorted(sizes)]
    assert slope(sorted(sizes), costs) == pytest.approx(exponent, abs=1e-6)


def test_the_heaviest_products_are_measured() -> None:
    heavy, light = Product(1, 64, 64, 64, left_turned=True), Product(2, 4, 4, 4, right_turned=True)
    found = measure_products(Counter({heavy: 10, light: 1}))
    assert found is not None
    assert found.products == 1
    assert found.share == pytest.approx(10 * heavy.flops / (10 * heavy.flops + light.flops))
    everything = measure_products(Counter({heavy: 10, light: 1}), share=1.0)
    assert everything is not None
    assert everything.products == 2
    assert measure_products(Counter()) is None


def test_references_only_count_at_their_width() -> None:
    assert reference_speed("frontier", 2048, "teacher") == 0.51
    assert reference_speed("frontier", 500, "teacher") is None
    assert reference_speed("local", 2048, "teacher") is None
    assert len({(row.agent, row.mode) for row in REFERENCES}) == len(REFERENCES)


def test_one_thread_is_timed_by_its_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 2.0)
    with torch_threads(1):
        assert now() == 1.0
    with torch_threads(2):
        assert now() == 2.0


def test_peak_memory_falls_back_to_what_the_system_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_memory.reset_peak()
    peak, now = process_memory.peak_megabytes(), process_memory.resident_megabytes()
    if now is not None:
        assert peak is not None
        assert peak >= 0.99 * now > 10, "the two are read one after the other"
    monkeypatch.setattr(process_memory, "_STATUS", tmp_path / "missing")
    monkeypatch.setattr(process_memory, "_RESET", tmp_path / "missing" / "too")
    process_memory.reset_peak()
    assert process_memory.resident_megabytes() is None
    assert (process_memory.peak_megabytes() or 0) > 10
