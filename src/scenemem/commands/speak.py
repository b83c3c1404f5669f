"""``scenemem speak``: train a speaker, evaluate it, let it describe paths and write augmented episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenemem import api
from scenemem.agents.walker import TrainedAgent
from scenemem.commands import console
from scenemem.commands.console import Beam, Json, OpenFlags, Opening, Speaker, Split
from scenemem.commands.train import RunArguments, outcome, read_arguments, say_what_next, train_run
from scenemem.errors import UserError
from scenemem.runs.experiment import SPEAKERS, SpeakerPreset
from scenemem.runs.folder import RunFolder
from scenemem.runs.speakers import FOLLOWED, LoadedSpeaker, open_speaker

_BEST = OpenFlags(checkpoint="best")
_MEANINGS = {
    "bleu": "the speaker's descriptions against all instructions of their paths",
    "retrieval": "the first instruction of the most similar training path instead",
    "shuffled": "the speaker's descriptions against the instructions of other paths",
}


@dataclass(frozen=True)
class SpeakTrainArguments(RunArguments[SpeakerPreset]):
    """Train a speaker on a data folder; every field of the preset can be changed by its flag."""


def parse_train(words: Sequence[str]) -> None:
    """Read the preset's name (``speaker`` when left out), then its flags, and train."""
    program = "scenemem speak train"
    settings, arguments = read_arguments(SpeakTrainArguments, SPEAKERS, words, program, default="speaker")
    out, _ = train_run(settings, arguments)
    if arguments.dry_run:
        return
    console.say(f"The run: {out.root}")
    say_what_next(settings, out, arguments.folder, ("speak eval",), ("speak describe", "--count", 3))
    if arguments.json:
        console.print_json(outcome(out))


def _opened(
    run: Path, opening: OpenFlags, agent: Path | None = None
) -> tuple[LoadedSpeaker, TrainedAgent | None]:
    """A speaker and, when one is named, an agent on the same data."""
    folder = opening.open(run)
    walker = None if agent is None else api.load(agent, data=opening.data).experiment.agent
    return LoadedSpeaker(open_speaker(RunFolder(run), folder, opening.checkpoint)), walker


def speak_eval(
    run: Speaker,
    split: Split = "val_unseen",
    opening: Opening = _BEST,
    *,
    agent: Path | None = None,
    beam: Beam = 1,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Describe all paths of a split; print corpus BLEU-4, a retrieval baseline and a shuffled control.

    With --agent that agent walks the paths by the descriptions, by the instructions of people, and by the
    descriptions of other paths.

    Args:
        agent: a run folder or weights:NAME; it walks by the descriptions.
        seed: of the shuffled controls.
    """
    console.at_least_one(beam=beam)
    speaker, walker = _opened(run, opening, agent)
    report = speaker.evaluate(split, agent=walker, beam=beam, seed=seed, progress=console.progress_bar)
    title = f"{run} on {split}: {report['n']} paths, {report['words']:.1f} words each"
    rows = [(name, f"{report[name]:.4f}", meaning) for name, meaning in _MEANINGS.items()]
    tables = [console.table(title, ("", "BLEU-4", ""), rows)]
    if followed := report.get("followed"):
        header = ("text", *(console.METRICS[name][0] for name in FOLLOWED))
        lines = [(text, *(f"{found[name]:.3f}" for name in FOLLOWED)) for text, found in followed.items()]
        tables.append(console.table(f"{agent} walks the same paths by", header, lines))
    console.show(json, report, *tables)


def speak_describe(
    run: Speaker,
    opening: Opening = _BEST,
    *,
    path: str | None = None,
    scan: str | None = None,
    start: str | None = None,
    goal: str | None = None,
    heading: float | None = None,
    count: int | None = None,
    split: str = "val_unseen",
    seed: int = 0,
    beam: Beam = 1,
    json: Json = False,
) -> None:
    """Describe a path: one you list, the shortest one between two viewpoints, or some of a split.

    Args:
        path: the viewpoints of a path, separated by commas.
        scan: where they are; only needed when their names occur in several scans.
        start: first viewpoint of a shortest path.
        goal: last viewpoint of a shortest path.
        heading: where the walker looks at the start, degrees clockwise from +y; along the path when left out.
        count: number of random paths of a split, shown beside the instructions of people.
        split: where those come from.
        seed: chooses them.
    """
    listed = None if path is None else path.split(",")
    ends: dict[str, Any] = {"scan": scan, "start": start, "goal": goal, "heading": heading}
    drawn: dict[str, Any] = {"count": count, "split": split, "seed": seed}
    descriptions = _opened(run, opening)[0].describe(listed, **ends, **drawn, beam=beam)
    lines: list[str] = []
    for entry in descriptions:
        lines += [f"{entry['scan']}, {len(entry['path'])} viewpoints", entry["text"]]
        lines += [f"    people: {text.strip()}" for text in entry["references"]]
    console.show(json, {"descriptions": descriptions}, *lines)


def speak_augment(
    run: Speaker,
    out: Path,
    opening: Opening = _BEST,
    *,
    count: int = 10_000,
    seed: int = 0,
    sample: bool = False,
    descriptions: int = 1,
    keep: float = 1.0,
    agent: Path | None = None,
    json: Json = False,
) -> None:
    """Describe random shortest paths of the buildings the speaker learned in; write an R2R-format file.

    The paths come from the pool of all shortest paths with 4 to 6 edges and 5 m or more, in random order;
    none comes twice before all have come once. Walkers start with a random heading.

    Args:
        out: the episode file to write; gzipped when its name ends in .gz.
        count: number of paths.
        seed: of paths, headings and sampled words.
        sample: draw words by their probability instead of taking the most likely ones.
        descriptions: with --sample, number per path, of which the likeliest is taken.
        keep: the share of paths to keep, those with the likeliest descriptions.
        agent: a run folder or weights:NAME; how likely it walks the path by a description counts as well.
    """
    console.at_least_one(count=count)
    if agent is not None and descriptions == 1 and keep == 1:
        raise UserError("--agent helps to choose; say among what with --descriptions or --keep")
    speaker, walker = _opened(run, opening, agent)
    choice: dict[str, Any] = {"sample": sample, "descriptions": descriptions, "keep": keep, "agent": walker}
    with console.progress_bar("describing paths") as progress:
        report = speaker.augment(out, count=count, seed=seed, progress=progress, **choice)
    text = "{out}: {count:,} of {pool:,} paths described, {paths_per_second} per second"
    console.show(json, report, text.format(**report))
