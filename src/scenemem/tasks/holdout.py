"""A fixed share of the training buildings, held out to judge ideas without touching the unseen splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from scenemem.errors import UserError
from scenemem.tasks.episode_set import EpisodeSet

HELD_OUT_SHARE = 8 / 61
"""Eight of the 61 R2R training buildings, and as large a share elsewhere."""


def held_out_scans(scans: Iterable[str]) -> tuple[str, ...]:
    """The scans that form ``dev_unseen``, chosen by the hash of their names: everyone gets the same."""
    names = sorted(set(scans), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    if len(names) < 2:
        raise UserError(
            f"there is only {len(names)} training scan, so none can be held out; "
            "select checkpoints on another split with --selection.split"
        )
    return tuple(sorted(names[: max(1, round(len(names) * HELD_OUT_SHARE))]))


def split_off(episodes: EpisodeSet) -> tuple[EpisodeSet, EpisodeSet]:
    """The training episodes without, and only in, the held-out scans."""
    scans = [episodes.scans[number] for number in sorted(set(episodes.scan.tolist()))]
    held_out = held_out_scans(scans)
    return episodes.restrict(set(scans) - set(held_out)), episodes.restrict(held_out)
