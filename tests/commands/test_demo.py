from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from scenemem.cli import main
from scenemem.commands import demo as demo_module
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import build_houses
from scenemem.houses.config import HousesConfig


def test_the_demo_prints_metrics_and_draws_a_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = HousesConfig(houses=2, unseen_houses=1, train_routes=3, val_seen_routes=2, val_unseen_routes=2)
    build_houses(tmp_path / "houses", config, jobs=1)
    monkeypatch.setattr(demo_module, "open_data", lambda _: DataFolder(tmp_path / "houses"))
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--out", str(tmp_path / "out")])
    assert caught.value.code == 0
    shown = capsys.readouterr()
    assert "expert" in shown.out
    assert "1.000" in shown.out
    assert "described as" in shown.err
    picture = ElementTree.parse(tmp_path / "out" / "route.svg")
    assert picture.getroot().tag.endswith("svg")
    with Image.open(tmp_path / "out" / "panorama.png") as panorama:
        assert panorama.size == (1440, 480)
