"""What can be chosen about the embedded houses."""

from __future__ import annotations

from dataclasses import dataclass

from scenemem.errors import UserError


@dataclass(frozen=True)
class HousesConfig:
    """How many houses and routes are built, and from which seed."""

    houses: int = 72
    """Houses in all; the last ``unseen_houses`` of them are kept for val_unseen."""

    seed: int = 0
    """Every house, route and sentence follows from this number."""

    unseen_houses: int = 12
    """Houses that no training route visits; at most a sixth of them when fewer houses are built."""

    train_routes: int = 60
    """Training routes per training house; each gets three instructions."""

    val_seen_routes: int = 4
    """val_seen routes per training house, different from its training routes."""

    val_unseen_routes: int = 30
    """val_unseen routes per unseen house."""

    def __post_init__(self) -> None:
        for name, least in (
            ("houses", 2),
            ("seed", 0),
            ("unseen_houses", 1),
            ("train_routes", 1),
            ("val_seen_routes", 1),
            ("val_unseen_routes", 1),
        ):
            value = getattr(self, name)
            if value < least:
                raise UserError(f"{name} must be {least} or more, got {value}; choose a larger {name}")

    @property
    def kept_unseen(self) -> int:
        """Houses of val_unseen: ``unseen_houses``, or a sixth of all houses when there are few."""
        return min(self.unseen_houses, max(1, self.houses // 6))
