from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from scenemem.evaluation.metrics import Metrics
from scenemem.formats.folder import DataFolder
from scenemem.runs.comparison import Comparison, RowFacts, comparability, path_groups
from scenemem.tasks.episode_set import EpisodeSet

FACTS = RowFacts("ssm", "captions", "abc", "data", 100)


def test_rows_that_agree_have_no_remark() -> None:
    assert comparability([FACTS, replace(FACTS, row="basic")]) == []
    assert comparability([FACTS, replace(FACTS, row="old", data="", track="")]) == [], (
        "not noted is not other"
    )


def test_rows_of_other_tracks_data_or_steps_are_remarked() -> None:
    other = replace(FACTS, row="basic", track="oracle", features="def", steps=200)
    assert comparability([FACTS, other]) == [
        "the rows have different tracks (captions: ssm; oracle: basic)",
        "the rows have different numbers of steps (100: ssm; 200: basic)",
    ]
    assert comparability([FACTS, replace(FACTS, row="basic", features="def")]) == [
        "the rows have different features (abc: ssm; def: basic)"
    ]


def test_a_row_costs_what_its_runs_cost_on_average() -> None:
    metrics = Metrics(**{item.name: torch.zeros(2) for item in fields(Metrics)})
    costs = {"ssm": (10.0, 30.0), "basic": (5.0, None)}
    facts = [replace(FACTS, row=row, cpu_seconds=cost) for row, of_runs in costs.items() for cost in of_runs]
    where = torch.tensor([0, 1])
    compared = Comparison.of("val_unseen", [(one.row, metrics) for one in facts], facts, where, where)
    assert compared.cpu_seconds == {"ssm": 20.0}, "a mean of some of its runs would not be its cost"
    table = compared.tables()[0]
    column = table.header.index("cpu s")
    assert [(row[0], row[column]) for row in table.cells] == [("ssm", "20"), ("basic", "-")]


def _episodes(record: list[int]) -> EpisodeSet:
    return cast(EpisodeSet, SimpleNamespace(record=torch.tensor(record)))


def test_r4r_paths_that_share_a_half_are_one_group(tmp_path: Path) -> None:
    def joined(number: int, scan: str, first: int | None, second: int | None) -> dict[str, Any]:
        route = {"scan": scan, "path": ["a", "b"], "heading": 0.0, "path_id": number, "instructions": ["Go."]}
        return route | ({} if first is None else {"first_path_id": first, "second_path_id": second})

    (tmp_path / "r4r").mkdir()
    file = tmp_path / "r4r" / "R4R_val_unseen.json"
    records = [joined(0, "s", 1, 2), joined(1, "s", 3, 4), joined(2, "s", 2, 9), joined(3, "t", 1, 2)]
    file.write_text(json.dumps(records))
    folder, episodes = DataFolder(tmp_path), _episodes([0, 0, 1, 2, 3])
    assert path_groups(folder, "r4r", "val_unseen", episodes).tolist() == [0, 0, 1, 0, 2]
    assert path_groups(folder, "r2r", "val_unseen", episodes).tolist() == [0, 0, 1, 2, 3]
    file.write_text(json.dumps([*records[:3], joined(3, "t", None, None)]))
    assert path_groups(folder, "r4r", "val_unseen", episodes).tolist() == [0, 0, 1, 2, 3]
