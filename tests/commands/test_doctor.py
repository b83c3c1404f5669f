from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from scenemem import __version__
from tests.commands.helpers import Shell


def test_the_machine_and_the_installation_are_described(shell: Shell) -> None:
    found = json.loads(shell.split("doctor", "--json").out)
    assert found["versions"]["scenemem"] == __version__
    assert found["versions"]["torch"] == torch.__version__
    assert found["machine"]["torch threads"] == torch.get_num_threads()
    assert "data" not in found
    assert "graphics cards" in shell.split("doctor").out


def test_a_data_folder_is_described_and_its_stores_are_verified(copied_data: Path, shell: Shell) -> None:
    np.save(copied_data / "features" / "broken.npy", np.zeros(3))
    found = shell.json("doctor", "--data", copied_data)["data"]
    assert found["r2r splits"] == "train, val_seen, val_unseen, test"
    assert found["store tiny"].startswith("track none, 8 columns, ")
    assert found["store broken"].startswith("broken: ")
    assert found["graphs"].startswith("sha256 ")
    shutil.rmtree(copied_data / "connectivity")
    assert "no such folder" in shell.json("doctor", "--data", copied_data)["data"]["graphs"]
