from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from scenemem.errors import DataError
from scenemem.formats.annotations import WordLabels, landmark_label_file, read_landmark_labels


def _write(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)
    return file


CONTENT = {
    "7": {
        "a": {"0": {"action": [0, 1], "landmark": [3]}, "2": {"action": []}},
        "b": {"0": {"landmark": [5]}},
        "id": 0,
    }
}


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_labels_are_found_by_instruction_and_viewpoint(tmp_path: Path, ending: str) -> None:
    file = _write(tmp_path / "lar2r" / f"lar2r_train{ending}", CONTENT)
    assert landmark_label_file(tmp_path, "train") == file
    assert read_landmark_labels(file) == {
        "7_0": {"a": WordLabels(landmark=(3,), action=(0, 1)), "b": WordLabels(landmark=(5,))},
        "7_2": {"a": WordLabels(action=())},
    }


def test_a_missing_file_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"lar2r_val_unseen.json.gz: no such file; the word labels of lar2r"):
        landmark_label_file(tmp_path, "val_unseen")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"7": {"a": 3}}, "path 7: viewpoint 'a' holds a number, expected labels per instruction"),
        ({"7": {"a": {"0": {"action": [-1]}}}}, "expected `int` >= 0"),
        ({"7": {"a": {"0": {"action": ["walk"]}}}}, "expected `int`, got `str`"),
        ([], "expected `object`, got `array`"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_landmark_labels(_write(tmp_path / "l.json", content))
    assert message in str(caught.value)


@pytest.mark.real_data
@pytest.mark.parametrize(("split", "instructions"), [("val_seen", 1021), ("val_unseen", 2349)])
def test_real_labels_cover_every_instruction(real_data: Path, split: str, instructions: int) -> None:
    assert len(read_landmark_labels(landmark_label_file(real_data, split))) == instructions
