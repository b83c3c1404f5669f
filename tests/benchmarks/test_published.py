"""Hours of the rows as published: every stage is timed and has its share of the steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import published
from benchmarks.measure import Amount
from benchmarks.published import PublishedOptions, hours, measure_published
from benchmarks.workload import Mode, Workload
from scenemem import zoo
from scenemem.errors import UserError
from scenemem.presets import PUBLISHED
from tests.benchmarks.conftest import Run
from tests.zoo.helpers import small

NAME = "speaker-follower"


def test_stages_have_their_shares_of_the_hours() -> None:
    preset = PUBLISHED[NAME]
    described, tuned = (stage.name for stage in preset.learning.stages)
    only = hours(preset, {described: 3600.0, tuned: 0.0})
    assert only == pytest.approx(50_000)
    assert hours(preset, {described: 3600.0, tuned: 3600.0}) == pytest.approx(70_000)


def test_steps_of_every_stage_are_timed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = small(PUBLISHED[NAME])
    learning = replace(preset.learning, batch=3, iterations=1000)
    monkeypatch.setitem(PUBLISHED._objects, NAME, replace(preset, learning=learning))
    clock = iter(float(tick) for tick in range(100))  # a second from look to look
    monkeypatch.setattr(published, "now", lambda _device: next(clock))
    done: list[tuple[str, int]] = []

    class Watched(Workload):
        def run(self, mode: Mode, steps: int) -> Amount:
            done.append((self.trainer(mode).config.stage_at(0).name, steps))
            return super().run(mode, steps)

    monkeypatch.setattr(published, "Workload", Watched)
    (case,) = run(PublishedOptions, measure_published, presets=(NAME,), columns=8, steps=2)
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


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="--columns and --steps must be 1 or more, got 0 and 2"):
        PublishedOptions(columns=0)
