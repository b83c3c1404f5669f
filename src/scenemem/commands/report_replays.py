"""Replays of the most telling episodes, written beside a report and linked in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scenemem.commands.console import progress_bar
from scenemem.commands.eval import OpenedRun
from scenemem.formats.results import EpisodeResult
from scenemem.viewer.gallery import plain, replays_section, telling, write_replays
from scenemem.viewer.pages import Section, note_section
from scenemem.viewer.scenery import SMALL_WIDTH, Sceneries
from scenemem.viewer.traces import TracedAgent

MOST = 4
"""Replays beside a report: one of each kind."""

_HOW = "They are written by 'scenemem report RUN ... --data DIR', DIR being what the runs were trained on."


def no_replays(reason: str) -> Section:
    """The section of a report without replays: why, and how to get them."""
    return note_section("Replays", f"There are none here: {reason}. {_HOW}")


def write_telling_replays(
    page: Path, opened: Mapping[str, OpenedRun], results: Sequence[Sequence[EpisodeResult]], split: str
) -> Section | None:
    """Write replays of telling episodes into the folder ``replays`` beside a page.

    Args:
        page: the report.
        opened: the agents by their names: one, or two to show side by side.
        results: what came out for each of them.
        split: which episodes.

    Returns:
        the section of the report that links them; None when no episode stands out.

    Raises:
        UserError: the data does not fit the runs.
    """
    walkers = [
        TracedAgent(name, run.experiment.agent, run.experiment.episodes(split))
        for name, run in opened.items()
    ]
    chosen = telling(walkers[0], results[0], MOST, *results[1:])
    if not chosen:
        return None
    files = {
        one.instruction_id: f"{plain(page.stem)}-{split}-{number}-{one.story.replace(' ', '-')}.html"
        for number, one in enumerate(chosen, start=1)
    }
    folder = next(iter(opened.values())).experiment.folder
    with progress_bar("drawing replays") as progress:
        replays = write_replays(
            walkers,
            list(files),
            Sceneries(folder, SMALL_WIDTH),
            lambda instruction_id: page.parent / "replays" / files[instruction_id],
            progress,
        )
    return replays_section(replays, split, page.parent)
