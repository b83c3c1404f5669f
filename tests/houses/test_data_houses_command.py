"""The command: thin, says what it wrote, one JSON object on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenemem.commands import data as command
from scenemem.commands.data import data_houses
from scenemem.houses.build import HousesSummary
from scenemem.houses.config import HousesConfig


def test_json_is_one_object_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_houses(tmp_path / "out", houses=2, jobs=1, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["houses"] == 2
    assert printed["instructions"] == {"train": 180, "val_seen": 12, "val_unseen": 90}
    assert printed["folder"] == str(tmp_path / "out")
    assert (tmp_path / "out" / "r2r" / "R2R_train.json").is_file()


def test_people_get_one_line_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(target: Path, config: HousesConfig, **_: object) -> HousesSummary:
        assert (config.houses, config.seed) == (9, 4)
        return HousesSummary(str(target), 9, 400, 500, 223, {"train": 3}, {"train": 9})

    monkeypatch.setattr(command, "build_houses", build)
    data_houses(Path("x[/y]"), houses=9, seed=4)
    printed = capsys.readouterr()
    assert "written to x[/y]" in printed.err.replace("\n", " ")
    assert printed.out == ""
    assert "9 houses, 400 viewpoints, 500 edges" in printed.err
