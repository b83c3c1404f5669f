"""Walks counted as releases do: shorter, of the right rows, with the spread over runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scenemem as sm
from tools.as_released import rules, second_column, told


def _run(folder: Path, name: str, walks: dict[str, list[str]]) -> Path:
    (folder / "results").mkdir(parents=True)
    described = {"name": name, "preset": {"data": {"task": "r2r"}}}
    (folder / "preset.json").write_text(json.dumps(described), encoding="utf-8")
    kept = [
        {"instr_id": key, "trajectory": [[place, 0.0, 0.0] for place in walk]} for key, walk in walks.items()
    ]
    (folder / "results" / "val_unseen.json").write_text(json.dumps(kept), encoding="utf-8")
    return folder


def test_only_rows_whose_release_counts_less_have_a_rule() -> None:
    known = rules()
    assert {"active-perception", "active-perception-r2r-oracle"} <= known.keys()
    assert {"speaker-follower-search-r2r-captions", "speaker-follower-pragmatic"} <= known.keys()
    assert not {"speaker-follower", "speaker-follower-r2r-captions", "fast-r2r-captions"} & known.keys()


def test_a_way_out_and_back_is_left_out(tmp_path: Path, tiny_trainable: Path) -> None:
    """A walk that looks around a corner and comes back is as long as one that does not."""
    episodes = sm.episodes("val_unseen", data=tiny_trainable)
    plain = {one.id: list(one.path) for one in episodes}
    looks = {key: [*walk[:2], walk[0], *walk[1:]] for key, walk in plain.items()}
    runs = [
        _run(tmp_path / "a", "active-perception-r2r-captions", looks),
        _run(tmp_path / "b", "active-perception-r2r-captions", plain),
        _run(tmp_path / "c", "fast-r2r-captions", looks),
    ]
    (line,) = second_column(str(tiny_trainable), runs)
    metres = sm.score(plain, "val_unseen", data=tiny_trainable).metrics["tl"]
    assert line == (
        f"active-perception-r2r-captions, as its release counts: TL {metres:.1f} ± 0.0, SPL 1.000 ± 0.000"
    )
    longer = sm.score(looks, "val_unseen", data=tiny_trainable).metrics
    assert longer["tl"] > metres
    assert longer["spl"] < 1.0


@pytest.mark.parametrize(
    ("values", "digits", "text"),
    [([0.1], 3, "0.100"), ([1.0, 3.0], 1, "2.0 ± 1.4"), ([2.0, 2.0], 0, "2 ± 0")],
)
def test_one_run_has_no_spread(values: list[float], digits: int, text: str) -> None:
    assert told(values, digits) == text
