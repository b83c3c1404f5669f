"""Runs as several commands see them: named for people, and with what their weights have walked already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scenemem.commands.eval import OpenedRun, Weights
from scenemem.errors import UserError
from scenemem.formats.results import EpisodeResult, read_episode_results
from scenemem.learning.run_folder import RunFolder


def run_names(runs: Sequence[Path]) -> dict[str, Path]:
    """The folders by what people call them: their own names, with their parents' where those are the same.

    Raises:
        UserError: a run is named twice.
    """
    paths = [path.resolve() for path in runs]
    if len(set(paths)) < len(paths):
        raise UserError(f"{runs[0]} is named twice; name another run to compare it with")
    alike = len({path.name for path in paths}) < len(paths)
    names = [str(path.relative_to(path.parents[1])) if alike else path.name for path in paths]
    return dict(zip(names, runs, strict=True))


def kept_results(run: RunFolder, checkpoint: Weights, iteration: int) -> dict[str, Sequence[EpisodeResult]]:
    """What these very weights have walked already, by split."""
    found: dict[str, Sequence[EpisodeResult]] = {}
    for file in sorted((run.root / "results").glob("*.jsonl")):
        episodes = read_episode_results(file)
        if (episodes[0].checkpoint, episodes[0].iteration) == (checkpoint, iteration):
            found[file.stem] = episodes
    return found


def results_of(opened: OpenedRun, split: str) -> Sequence[EpisodeResult]:
    """The outcome of every episode of a split, walked now unless these weights have walked it already."""
    kept = kept_results(opened.run, opened.checkpoint, opened.iteration)
    return kept[split] if split in kept else opened.evaluate(split)[1]
