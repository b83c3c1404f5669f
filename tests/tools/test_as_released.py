"""Walks counted as releases do: shorter, of the right rows, with the spread over runs."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest

import scenemem as sm
from scenemem.errors import UserError
from tests.conftest import TINY_SCANS
from tools.as_released import rules, second_column


def _run(folder: Path, name: str, walks: dict[str, list[str]]) -> Path:
    (folder / "results").mkdir(parents=True)
    described = {"name": name, "preset": {"data": {"task": "r2r"}}}
    (folder / "preset.json").write_text(json.dumps(described), encoding="utf-8")
    kept = [
        {"instr_id": key, "trajectory": [[place, 0.0, 0.0] for place in walk]} for key, walk in walks.items()
    ]
    (folder / "results" / "val_unseen.json").write_text(json.dumps(kept), encoding="utf-8")
    return folder


def _looks_aside(walk: list[str], graph: nx.Graph) -> list[str]:
    """The walk with a step aside and back at its start, to a place that no edge joins to the next one."""
    start, following = walk[0], walk[1]
    aside = [place for place in graph[start] if place not in walk and not graph.has_edge(following, place)]
    return [start, aside[0], *walk] if aside else walk


def test_releases_leave_out_what_was_walked_for_a_look(tmp_path: Path, tiny_trainable: Path) -> None:
    """First visits keep the way out and jump on from there; a chosen route has no trace of it."""
    yard = nx.Graph(TINY_SCANS["yard"])
    yard.remove_node("g-excluded")
    plain = {one.id: list(one.path) for one in sm.episodes("val_unseen", data=tiny_trainable)}
    looks = {key: _looks_aside(walk, yard) for key, walk in plain.items()}
    assert looks != plain
    explorer, search = "active-perception-r2r-captions", "speaker-follower-search-r2r-captions"
    runs = [
        _run(tmp_path / "a", explorer, looks),
        _run(tmp_path / "b", explorer, plain),
        _run(tmp_path / "c", search, looks),
        _run(tmp_path / "d", "fast-r2r-captions", looks),
    ]
    stays = _run(tmp_path / "e", "none", {key: walk[:1] for key, walk in plain.items()}) / "results"
    (stays / "val_unseen.stamp.json").write_text('{"reranking": {"weight": 0.6}}', encoding="utf-8")
    stays.rename(tmp_path / "c" / "results" / "reranked")
    found = second_column(str(tiny_trainable), runs)
    chosen = f"{search}, with a speaker of weight 0.6"
    assert found.keys() == {explorer, search, chosen}
    assert found[chosen]["tl"] == {"mean": 0.0, "sd": None, "n": 1}, "walks of their own"
    metres = sm.score(plain, "val_unseen", data=tiny_trainable).metrics["tl"]
    whole = sm.score(looks, "val_unseen", data=tiny_trainable).metrics["tl"]
    assert found[search]["tl"] == {"mean": pytest.approx(metres), "sd": None, "n": 1}
    assert found[search]["spl"]["mean"] == pytest.approx(1.0)
    firsts = {key: list(dict.fromkeys(walk)) for key, walk in looks.items()}
    counted = sm.score(firsts, "val_unseen", data=tiny_trainable, allow_jumps=True).metrics["tl"]
    assert metres < counted <= whole
    assert found[explorer]["tl"]["mean"] == pytest.approx((counted + metres) / 2)
    assert found[explorer]["tl"]["sd"] == pytest.approx((counted - metres) / 2**0.5)
    assert found[explorer]["spl"]["mean"] < 1.0


def test_a_run_without_walks_is_named_and_few_rows_have_a_rule(tmp_path: Path, tiny_trainable: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere/preset.json cannot be read .* name the folder of a"):
        second_column(str(tiny_trainable), [tmp_path / "nowhere"])
    run = _run(tmp_path / "a", "active-perception", {})
    (run / "results" / "val_unseen.json").unlink()
    with pytest.raises(UserError, match=rf"walk first: scenemem eval {run} --split val_unseen"):
        second_column(str(tiny_trainable), [run])
    assert rules().keys() == {"active-perception", "speaker-follower-search"}
