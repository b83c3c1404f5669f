"""What several tests of models need."""

from __future__ import annotations

import torch

from scenemem.models.navigator import Packing


def one_per_episode(rows: int, device: torch.device) -> Packing:
    """Rows of different episodes, each alone in its line of a table."""
    episode = torch.arange(rows, device=device)
    return Packing(episode, torch.zeros_like(episode), rows, 1)
