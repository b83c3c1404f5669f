"""``scenemem eval --speaker``: which flags go together, and what is reported beside the metrics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from scenemem.errors import UserError
from scenemem.evaluation.evaluate import Surveyor, Walked
from scenemem.presets import SCRIPTED
from scenemem.world.graph import World


def check_flags(run: str, speaker: Path | None, candidates: int, processes: int, *, grounding: bool) -> None:
    """Refuse flags of ``scenemem eval`` that mean nothing together.

    Raises:
        UserError: they do.
    """
    if speaker is None:
        if candidates != 1:
            raise UserError(f"--candidates {candidates} needs a --speaker to help choose among them")
        return
    if run in SCRIPTED:
        raise UserError(f"'{run}' draws no candidates; --speaker needs a trained run")
    if processes > 1:
        raise UserError("candidates are walked by one process; leave out --processes or --speaker")
    if grounding:
        raise UserError("--grounding leads the agent along the reference paths; leave out --speaker")


def facts(surveyor: Surveyor, walked: Walked, world: World) -> dict[str, Any]:
    """How the answers were chosen, and what all candidates walked together; goals must be known."""
    all_walked = {"tl": surveyor.metres, "spl": surveyor.spl(walked, world)}
    return {
        **asdict(surveyor.agent.config),
        "all_walked": {name: float(values.mean()) for name, values in all_walked.items()},
    }


def add_rows(table: Table, reranking: dict[str, Any]) -> None:
    """Put what ``facts`` says below the metrics of the walks chosen."""
    count, all_walked = reranking["candidates"], reranking["all_walked"]
    table.add_section()
    table.add_row("TL, all walked", f"{all_walked['tl']:.2f} m", f"length of all {count} candidates")
    table.add_row("SPL, all walked", f"{all_walked['spl']:.2%}", "success, weighted with that length")
    table.caption = (
        f"the best of {count} walks per episode, not comparable with agents that walk once; "
        "metrics above the line are those of the walk chosen"
    )
