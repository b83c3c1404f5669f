from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest
import torch

from scenemem.errors import UserError
from scenemem.evaluation.metrics import Metrics
from scenemem.formats.folder import DataFolder
from scenemem.runs.comparison import Comparison, RowFacts, comparability, path_groups
from scenemem.tasks.episode_set import EpisodeSet

FACTS = RowFacts("ssm", "captions", "abc", "data", 100)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({}, []),
        ({"data": "", "track": ""}, []),  # not noted is not other
        ({"features": "def"}, ["features (abc: ssm; def: basic)"]),
        (
            {"track": "oracle", "features": "def", "steps": 200},
            ["tracks (captions: ssm; oracle: basic)", "numbers of steps (100: ssm; 200: basic)"],
        ),
    ],
)
def test_rows_of_other_tracks_data_or_steps_are_remarked(other: dict[str, Any], differs: list[str]) -> None:
    assert comparability([FACTS, replace(FACTS, row="basic", **other)]) == [
        f"the rows have different {what}; differences may not be the agents'" for what in differs
    ]


def test_a_row_costs_what_its_runs_cost_on_average() -> None:
    metrics = Metrics(**{item.name: torch.zeros(2) for item in fields(Metrics)})
    costs = {"ssm": (10.0, 30.0), "basic": (5.0, None)}
    facts = [replace(FACTS, row=row, cpu_seconds=cost) for row, of_runs in costs.items() for cost in of_runs]
    where = torch.tensor([0, 1])
    compared = Comparison.of("val_unseen", [(one.row, metrics) for one in facts], facts, where, where)
    assert compared.cpu_seconds == {"ssm": 20.0}, "a mean of some of its runs would not be its cost"
    table = compared.tables()[0]
    column = table.head.index("cpu s")
    assert [(row[0], row[column]) for row in table.rows] == [("ssm", "20"), ("basic", "-")]


def _compared(*, against: str | None = "basic", remarks: tuple[str, ...] = ()) -> Comparison:
    """Three rows on two episodes in two buildings."""
    reached = {"basic": 0.0, "much better": 1.0, "better": 0.5}
    measured = [
        (row, Metrics(**{item.name: torch.full((2,), value) for item in fields(Metrics)}))
        for row, value in reached.items()
    ]
    facts, where = [replace(FACTS, row=row) for row in reached], torch.tensor([0, 1])
    return replace(Comparison.of("val_unseen", measured, facts, where, where, against), remarks=remarks)


def test_a_picture_shows_the_best_row_first(tmp_path: Path) -> None:
    _compared().write(str(tmp_path / "rows.svg"))
    picture = ElementTree.parse(tmp_path / "rows.svg").getroot()
    names = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [name for name in names if name and "better" in name] == ["much better", "better"]
    assert "difference from basic" in picture.attrib["aria-label"]
    with pytest.raises(UserError, match="name it with `against`"):
        _compared(against=None).write(tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_a_page_shows_pictures_tables_and_why_rows_may_not_be_comparable(tmp_path: Path) -> None:
    _compared(remarks=("the rows have different steps",)).write(tmp_path / "rows.html")
    page = (tmp_path / "rows.html").read_text(encoding="utf-8")
    assert "the rows have different steps." in page
    assert page.count('<g class="above">') == 6, "two rows in three pictures"
    assert page.index("Not the same for all rows") < page.index("<svg") < page.index("<table")
    _compared(against=None).write(tmp_path / "rows.html")
    page = (tmp_path / "rows.html").read_text(encoding="utf-8")
    assert "<svg" not in page
    assert "Not the same for all rows" not in page


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
