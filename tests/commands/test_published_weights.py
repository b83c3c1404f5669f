"""Published weights do what their cards say, from nothing but the public data folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenemem.cli import main
from scenemem.features.objects import build_object_features
from scenemem.formats.folder import DataFolder
from scenemem.runs.folder import published


@pytest.fixture(scope="module")
def with_features(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real data and features made of its annotations; nothing is written into the real folder."""
    folder = tmp_path_factory.mktemp("r2r")
    for part in real_data.iterdir():
        if part.name != "features":
            (folder / part.name).symlink_to(part.resolve())
    build_object_features(DataFolder(real_data), folder / "features")
    return folder


@pytest.mark.real_data
def test_agents_of_r2r_reach_what_their_cards_say(
    with_features: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        entry for entry in published() if entry.metadata["preset"]["data"]["features"] == "objects+rooms"
    ]
    assert entries
    for entry in entries:
        with pytest.raises(SystemExit) as ended:
            main(["eval", f"weights:{entry.name}", "--data", str(with_features), "--json"])
        assert ended.value.code == 0
        metrics = json.loads(capsys.readouterr().out)["metrics"]
        # another processor may round a close decision the other way
        assert metrics["sr"] == pytest.approx(entry.metrics["val_unseen"]["sr"], abs=0.003)
        assert metrics["spl"] == pytest.approx(entry.metrics["val_unseen"]["spl"], abs=0.003)
