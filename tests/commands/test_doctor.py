from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from scenemem import __version__
from tests.commands.helpers import typed


def test_the_machine_and_the_installation_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["scenemem"] == __version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"]["torch threads"] == torch.get_num_threads()
    assert "data" not in found
    assert typed("doctor") == 0
    assert "graphics cards" in capsys.readouterr().out


def test_a_data_folder_is_described_and_its_stores_are_verified(
    tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(shutil.copytree(tiny_trainable, tmp_path / "data"))
    np.save(data / "features" / "broken.npy", np.zeros(3))
    assert typed("doctor", "--data", data, "--json") == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert found["r2r splits"] == "train, val_seen, val_unseen, test"
    assert found["store tiny"].startswith("track none, 8 columns, ")
    assert found["store broken"].startswith("broken: ")
    assert found["graphs"].startswith("sha256 ")
    shutil.rmtree(data / "connectivity")
    assert typed("doctor", "--data", data, "--json") == 0
    assert "no such folder" in json.loads(capsys.readouterr().out)["data"]["graphs"]
