"""Every random state that training draws from, as tensors; all processes of a group have the same."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from scenemem.learning.speaker_trainer import SpeakerTrainer
from scenemem.learning.trainer import Trainer

_GLOBAL, _SAMPLING, _DEVICE = "random.global", "random.sampling", "random.device"


def random_states(trainer: Trainer | SpeakerTrainer) -> dict[str, torch.Tensor]:
    """The states as they are now, by name."""
    states = {_GLOBAL: torch.get_rng_state(), _SAMPLING: trainer.sampling.get_state()}
    device = torch.device(trainer.group.device)
    if device.type == "cuda":  # dropout masks are drawn where they are used
        states[_DEVICE] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states[_DEVICE] = torch.mps.get_rng_state()
    return states


def restore_randomness(states: Mapping[str, torch.Tensor], trainer: Trainer | SpeakerTrainer) -> None:
    """Go on drawing from where the states were taken."""
    torch.set_rng_state(states[_GLOBAL])
    trainer.sampling.set_state(states[_SAMPLING])
    device = torch.device(trainer.group.device)
    if device.type == "cuda" and _DEVICE in states:
        torch.cuda.set_rng_state(states[_DEVICE], device)
    elif device.type == "mps" and _DEVICE in states:
        torch.mps.set_rng_state(states[_DEVICE])
