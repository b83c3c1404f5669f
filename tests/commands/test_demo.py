from __future__ import annotations

import re
from pathlib import Path

import pytest

from scenemem.commands import demo as demo_module
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import HousesConfig, build_houses
from scenemem.runs import pages
from scenemem.runs.folder import RunFolder
from tests.commands.helpers import Shell


@pytest.fixture
def small_houses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = HousesConfig(houses=3, unseen_houses=1, train_routes=4, val_seen_routes=2, val_unseen_routes=2)
    build_houses(tmp_path / "houses", config, jobs=1)
    monkeypatch.setattr(demo_module, "open_data", lambda _, **__: DataFolder(tmp_path / "houses"))
    monkeypatch.setattr(demo_module, "PACKAGED", ())  # learnt in other houses
    monkeypatch.setattr(pages, "MOST_REPLAYS", 1)  # agents that have learnt nothing wander far
    return tmp_path / "houses"


@pytest.mark.usefixtures("small_houses")
def test_the_demo_trains_evaluates_and_reports(tmp_path: Path, shell: Shell) -> None:
    out = tmp_path / "out"
    words = ("demo", "--out", out, "--iterations", 2)
    shown = shell.split(*words).out
    assert len(re.findall(r"expert +│ +1\.000 +│ +1\.000", shown)) == 2, "experts are perfect in every house"
    for agent in ("expert", "random", "stop", "basic", "ssm"):
        assert re.search(rf"{agent} +│ +\d\.\d{{3}}", shown), agent
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "val_unseen: 6 instructions; mean ± standard deviation over runs" in page
    for part in ("Learning curves", "Where it fails"):
        assert part in page
    assert "(paper)" not in page, "there are no published numbers of the houses"
    for agent in ("expert", "random", "stop", "basic", "ssm"):
        assert f'<th scope="row">{agent}</th>' in page
    assert not re.search(r"(src|href)=['\"]https?:", page), "the page needs no network"
    links = re.findall(r'<h3><a href="(replays/[^"]+)">', page)
    assert links
    for link in links:
        assert "data:image/webp" in (out / link).read_text(encoding="utf-8"), "with pictures of the house"

    finished = (out / "runs" / "ssm-0" / "checkpoints" / "last.safetensors").read_bytes()
    shell.split(*words, "--no-replays")
    assert "Replays" not in (out / "report.html").read_text(encoding="utf-8")
    assert RunFolder(out / "runs" / "ssm-0").last.read_bytes() == finished, (
        "a finished run is not trained again"
    )
