"""The simulator benchmark reports sensible quantities; how large they are is not tested."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import simulator
from benchmarks.machine import torch_threads
from benchmarks.simulator import measure_gathering, measure_tables, synthetic_store
from scenemem.errors import DataError, UserError
from scenemem.formats.features import write_store
from scenemem.world.build import load_world


@pytest.fixture(autouse=True)
def small_made_up_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "synthetic_store", lambda: synthetic_store(rows=40, width=8))


def test_json_is_one_object_with_every_quantity(tiny_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulator.main(data=tiny_data, batch=16, steps=3, json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["threads"] == 1
    assert report["machine"]["torch"] == torch.__version__
    assert (report["tables"]["scans"], report["tables"]["viewpoints"]) == (3, 32)
    assert (report["stepping"]["batch"], report["stepping"]["steps"]) == (16, 3)
    gathering = report["gathering"]
    assert (gathering["source"], gathering["rows"], gathering["width"]) == ("synthetic", 40, 8)
    measured = {**report["tables"], **report["stepping"], **gathering}
    for name, value in measured.items():
        assert name in ("source", "peak_growth_megabytes") or value > 0, name


def test_without_json_a_table_for_people(tiny_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulator.main(data=tiny_data, batch=4, steps=2)
    shown = capsys.readouterr().out
    for words in ("tables of 3 scans, built", "steps, batch 4", "of a memory copy", "million/s"):
        assert words in shown


def test_features_of_the_data_folder_are_gathered_when_named(
    tiny_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "connectivity").symlink_to(tiny_data / "connectivity")
    keys = load_world(tmp_path / "connectivity").names
    rows = (np.zeros((36, 4)) for _ in keys)
    write_store(tmp_path / "features" / "zeros.npy", keys, rows, width=4, source="test", encoder="none")
    simulator.main(data=tmp_path, batch=4, steps=2, features="zeros", json=True)
    gathering = json.loads(capsys.readouterr().out)["gathering"]
    assert (gathering["source"], gathering["rows"], gathering["width"]) == ("zeros", len(keys), 4)


def test_mistakes_are_named(tiny_data: Path) -> None:
    with pytest.raises(UserError, match=r"^--batch must be 1 or more, got 0$"):
        simulator.main(data=tiny_data, batch=0)
    with pytest.raises(UserError, match=r"^--threads must be 1 or more, got -2$"):
        simulator.main(data=tiny_data, threads=-2)
    with pytest.raises(DataError, match="no feature store 'resnet'"):
        simulator.main(data=tiny_data, features="resnet")


def test_tables_are_counted_to_the_byte(tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "_peak_megabytes", lambda: None)
    world, build = measure_tables(tiny_data / "connectivity")
    viewpoints, slots = world.neighbour.shape
    pairs = len(world.pair_distance)
    # three int64 columns, a position, two int64 / two float32 / one float64 per slot, 10 bytes per pair
    expected = viewpoints * (3 * 8 + 3 * 8 + slots * (2 * 8 + 2 * 4 + 8)) + pairs * 10
    assert build.tables_megabytes * 1e6 == pytest.approx(expected)
    assert build.peak_growth_megabytes is None


def test_a_last_smaller_batch_is_gathered_too() -> None:
    store = synthetic_store(rows=10, width=4)
    assert (store.gather(torch.tensor([7])) == 7).all(), "made-up rows can be told apart"
    assert measure_gathering(store, name="made up", batch=3).rows == 10


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="inside"), torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError("inside")
    assert torch.get_num_threads() == before
