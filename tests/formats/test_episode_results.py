from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from scenemem.errors import DataError
from scenemem.formats.results import EpisodeResult, read_episode_results, write_episode_results

RESULT = EpisodeResult(
    instr_id="7_0",
    checkpoint="last",
    iteration=500,
    outcome="reached",
    words=20,
    reference=9.5,
    hops=5,
    jumps=1,
    tl=10.25,
    ne=0.0,
    sr=1.0,
    osr=1.0,
    spl=0.9268292682926829,
    spl_ref=0.9268292682926829,
    cls=0.9,
    ndtw=0.8,
    sdtw=0.8,
)


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    results = [RESULT, msgspec.structs.replace(RESULT, instr_id="7_1", outcome="astray", sr=0.0)]
    write_episode_results(tmp_path / "r.jsonl", results)
    assert read_episode_results(tmp_path / "r.jsonl") == results
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2


def test_results_of_different_weights_do_not_mix(tmp_path: Path) -> None:
    write_episode_results(tmp_path / "r.jsonl", [RESULT, msgspec.structs.replace(RESULT, iteration=400)])
    with pytest.raises(DataError, match="mixes results of different weights; evaluate the run again"):
        read_episode_results(tmp_path / "r.jsonl")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no episode; evaluate the run again with 'scenemem eval'"),
        ('{"instr_id": "7_0"}\n', "line 1: object missing required field"),
        (msgspec.json.encode(RESULT).decode().replace("reached", "won") + "\n", "invalid enum value 'won'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.jsonl").write_text(text)
    with pytest.raises(DataError) as caught:
        read_episode_results(tmp_path / "r.jsonl")
    assert message in str(caught.value)
