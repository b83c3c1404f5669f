from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from scenemem.errors import DataError
from scenemem.learning.checkpoint import load_network, load_optimiser, read_checkpoint, write_checkpoint


def _stepped(network: nn.Module) -> torch.optim.AdamW:
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.1)
    network(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    return optimiser


def test_weights_optimiser_and_metadata_come_back_exactly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    optimiser = _stepped(network)
    write_checkpoint(tmp_path / "c", network, {"iteration": 3, "words": ["a"]}, optimiser)
    checkpoint = read_checkpoint(tmp_path / "c")
    assert checkpoint.metadata == {"iteration": 3, "words": ["a"]}
    twin = nn.Linear(3, 2)
    load_network(twin, checkpoint, "c")
    twin_optimiser = torch.optim.AdamW(twin.parameters(), lr=0.1)
    load_optimiser(twin_optimiser, checkpoint)
    for mine, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for key, value in optimiser.state[mine].items():
            assert torch.equal(twin_optimiser.state[theirs][key], value)


def test_other_weights_are_refused_by_name_and_shape(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "c", nn.Linear(3, 2), {})
    checkpoint = read_checkpoint(tmp_path / "c")
    with pytest.raises(DataError, match=r"'weight' has shape \(2, 3\), this network needs \(2, 4\)"):
        load_network(nn.Linear(4, 2), checkpoint, "c")
    with pytest.raises(DataError, match=r"1 missing \(0.weight\).*another preset"):
        load_network(nn.Sequential(nn.Linear(3, 2, bias=False)), checkpoint, "c")


def test_moments_of_another_network_are_refused(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    write_checkpoint(tmp_path / "c", network, {}, _stepped(network))
    checkpoint = read_checkpoint(tmp_path / "c")
    for other in (nn.Linear(4, 2), nn.Linear(3, 2, bias=False)):
        optimiser = torch.optim.AdamW(other.parameters())
        with pytest.raises(DataError, match="belongs to no parameter of this network"):
            load_optimiser(optimiser, checkpoint)


NO_CHECKPOINT = "not a checkpoint of SceneMem, or damaged"


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (None, rf"{NO_CHECKPOINT} \(it has no description\)"),
        *((text, NO_CHECKPOINT) for text in ("[]", '"text"', "3", "null", "{", "[" * 100_000)),
        ('{"version": 0}', r"written by another version \(0\); expected checkpoint version 3"),
        ('{"version": 3}', rf"{NO_CHECKPOINT} \(it lost its checksum\)"),
    ],
)
def test_files_of_other_programs_are_refused(tmp_path: Path, description: str | None, message: str) -> None:
    metadata = None if description is None else {"scenemem": description}
    save_file({"x": torch.zeros(1)}, tmp_path / "c", metadata=metadata)
    with pytest.raises(DataError, match=message):
        read_checkpoint(tmp_path / "c")


def test_files_that_are_missing_or_cut_off_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "none")
    write_checkpoint(tmp_path / "whole", nn.Linear(3, 2), {})
    content = (tmp_path / "whole").read_bytes()
    for part in (b"hello", content[: len(content) // 2]):
        (tmp_path / "part").write_bytes(part)
        with pytest.raises(DataError, match=NO_CHECKPOINT):
            read_checkpoint(tmp_path / "part")
