"""Pages about runs: a report, replays of telling episodes, and what the live page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scenemem.errors import UserError
from scenemem.features.store import complete_stores
from scenemem.formats.folder import DataFolder
from scenemem.formats.results import read_stamp
from scenemem.houses.house import ENCODER
from scenemem.learning.checkpoint import read_checkpoint
from scenemem.learning.speaker import Speaker
from scenemem.presets import Preset
from scenemem.runs.experiment import (
    Experiment,
    Progress,
    RunMetadata,
    begun,
    open_data,
    silent,
    stored_speaker,
)
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.opened import OpenedRun, WithSpeaker, kept_results, open_run, run_names
from scenemem.runs.weights import published, unpacked
from scenemem.viewer.pages import Section, note_section
from scenemem.viewer.replay import BackLink, Replay, plain, replays_section, telling, write_replays
from scenemem.viewer.report import ReportRun, Scores, contenders, grouped, splits_of, write_run_report
from scenemem.viewer.scenery import SMALL_WIDTH, Sceneries
from scenemem.viewer.traces import TracedAgent
from scenemem.world.graph import NONE
from scenemem.zoo.reranking import Reranking

if TYPE_CHECKING:
    from scenemem.viewer.live_state import Example, LiveServerState

MOST_REPLAYS = 4
"""Replays beside a report: one of each kind."""

_HOW = "They are written by 'scenemem report RUN ... --data DIR', DIR being what the runs were trained on."
_SUGGESTION_SPLITS = ("val_unseen", "val_seen", "train")
_SUGGESTIONS = 8  # per house

Opener = Callable[[Path], OpenedRun]
"""Loads the agent of a run."""


def report_on(
    runs: Sequence[RunFolder],
    folder: DataFolder | None,
    out: Path,
    *,
    splits: Sequence[str],
    checkpoint: Which = "last",
    references: Mapping[str, Scores] | None = None,
    more: Iterable[Section] = (),
    replays: bool = True,
    remark: Callable[[str], None] | None = None,
    progress: Progress = silent,
    device: str = "cpu",
) -> Path:
    """Evaluate what is missing, write the page and return where it is.

    Args:
        runs: trained on the same task and features.
        folder: their data; None opens the embedded houses for runs trained on them.
        splits: what to evaluate; other splits walked with the same weights are shown, too.
        references: scores of agents that are no runs, by split.
        more: further sections.
        replays: write replays of telling episodes beside the page, and link them.
        remark: gets a sentence about everything that is missing.
    """
    described = {run.root: begun(run, Preset) for run in runs}
    first = _same_data(described)
    features, task = first.data.features, first.preset.data.task
    if folder is None and features == ENCODER:
        folder = open_data(None, progress)
    opened: Opener | None = None
    if folder is not None:  # runs are opened when they are needed, and the last two are kept
        opened = lru_cache(maxsize=2)(
            lambda root: open_run(RunFolder(root), folder, checkpoint, progress, device)
        )
    place = "The embedded houses" if features == ENCODER else f"{task.upper()}, features: {features}"
    remarks: list[str] = []
    shown = {
        root: _with_results(RunFolder(root), one, opened, folder, splits, checkpoint, remarks)
        for root, one in described.items()
    }
    if remark is not None:
        for text in remarks:
            remark(text)
    write_run_report(
        out,
        f"Report on {runs[0].root.resolve().name}" if len(shown) == 1 else f"Report on {len(shown)} runs",
        list(shown.values()),
        world=f"{place}, track {first.data.track or 'unknown'}",
        task=None if features == ENCODER else task,
        references=references,
        more=more,
        replays=_replays(out, shown, opened, progress) if replays else None,
        remarks=remarks,
    )
    return out


def replay_episodes(
    runs: Mapping[str, OpenedRun],
    split: str,
    episode: str | None,
    count: int,
    file_of: Callable[[str], Path],
    progress: Progress = silent,
    chosen_by: tuple[RunFolder, Reranking] | None = None,
) -> list[Replay]:
    """Write replays of one episode, or of telling ones.

    Args:
        runs: the agents by their names: one, or two to show side by side.
        episode: the id of one instruction; None chooses ``count`` telling ones.
        file_of: the page of an instruction.
        chosen_by: a speaker that helps to choose where the searches of all agents end.
    """
    helped = {} if chosen_by is None else {name: run.with_speaker(*chosen_by) for name, run in runs.items()}
    walkers = _walkers(runs, split, helped)
    ids = [episode] if episode is not None else _telling_ids(walkers, list(runs.values()), split, count)
    folder = next(iter(runs.values())).experiment.folder
    with progress("drawing replays") as advance:
        back = None if episode is not None else BackLink("index.html", "All replays")
        return write_replays(walkers, ids, Sceneries(folder), file_of, advance, back)


def open_live_state(
    runs: list[Path], speaker: Path | None, folder: DataFolder, checkpoint: Which, device: str = "cpu"
) -> LiveServerState:
    """Load everything the live page shows; without a speaker that was named, one that comes with SceneMem."""
    from scenemem.viewer.live_state import LiveServerState  # needs the extra 'serve'

    runs_by_name = {
        name: open_run(RunFolder(path), folder, checkpoint, device=device)
        for name, path in run_names(runs).items()
    }
    opened = {name: run.experiment for name, run in runs_by_name.items()}
    first = next(iter(opened.values()))
    if speaker is None:
        speaks = _packaged_speaker(first)
    else:
        speaks = speaker.resolve().name, stored_speaker(RunFolder(speaker).best, folder, device).speaker
    return LiveServerState(
        agents={name: experiment.agent for name, experiment in opened.items()},
        origins={name: run.origin() for name, run in runs_by_name.items()},
        sceneries=Sceneries(folder),
        speaker=speaks and speaks[1],
        speaker_name=speaks[0] if speaks else "speaker",
        examples=suggestions(first),
        groups=_house_groups(first),
    )


def _packaged_speaker(experiment: Experiment) -> tuple[str, Speaker] | None:
    """The speaker that comes with SceneMem and sees what a data folder has, and its name; None without one.

    One of the agent's own track is preferred; any other describes the same paths from other features.
    """
    speakers = [entry for entry in published() if entry.is_speaker]
    stores = {info.sha256: info.track for _, info in complete_stores(experiment.folder)}
    for entry in sorted(speakers, key=lambda entry: entry.track != experiment.track):
        features = entry.metadata["features"]
        if features["sha256"] in stores or features["track"] in stores.values():
            run = RunFolder(unpacked(entry.name))
            with suppress(UserError):  # features of the same track, but of other buildings
                device = str(experiment.environment.world.device)
                return entry.name, stored_speaker(run.best, experiment.folder, device).speaker
    return None


def _house_groups(experiment: Experiment) -> dict[str, str]:
    """The split every house belongs to; one that is in several counts as seen in training."""
    world, found = experiment.environment.world, dict[str, str]()
    for split in ("train", "val_seen", "val_unseen", "test"):
        if experiment.folder.episodes(experiment.preset.data.task, split).is_file():
            for scan in sorted(set(experiment.episodes(split).scan.tolist())):
                found.setdefault(world.scans[scan], split)
    return found


def suggestions(experiment: Experiment) -> Mapping[str, list[Example]]:
    """A few instructions for every house, from the splits the data folder has."""
    from scenemem.viewer.live_state import Example

    found: dict[str, list[Example]] = {}
    world = experiment.environment.world
    for split in _SUGGESTION_SPLITS:
        if not experiment.folder.episodes(experiment.preset.data.task, split).is_file():
            continue
        episodes, seen, local = experiment.episodes(split), set[int](), world.local.tolist()
        columns = (episodes.record, episodes.scan, episodes.start, episodes.goal, episodes.heading)
        for text, record, scan, start, goal, heading in zip(
            episodes.texts, *(column.tolist() for column in columns), strict=True
        ):
            known, end = found.setdefault(world.scans[scan], []), None if goal == NONE else local[goal]
            if record not in seen and len(known) < _SUGGESTIONS:
                seen.add(record)
                known.append(Example(text.strip(), local[start], heading, end))
    return found


def _same_data(described: Mapping[Path, RunMetadata]) -> RunMetadata:
    """The first of some runs, after all were compared with it."""
    (place, first), *others = described.items()
    for root, other in others:
        for what, mine, theirs in (
            ("tasks", first.preset.data.task, other.preset.data.task),
            ("features", first.data.sha256, other.data.sha256),
        ):
            if mine != theirs:
                raise UserError(
                    f"{place} and {root} were trained on different {what}, "
                    "so their numbers cannot be compared; write a report for each"
                )
    return first


def _with_results(
    run: RunFolder,
    described: RunMetadata,
    opened: Opener | None,
    folder: DataFolder | None,
    splits: Sequence[str],
    checkpoint: Which,
    remarks: list[str],
) -> ReportRun:
    """A run with the outcome of every episode; what cannot be had is remarked."""
    results = kept_results(run, checkpoint, folder)
    missing = [split for split in splits if split not in results]
    if missing and opened is None:
        remarks.append(
            f"{run.root.name} has not walked {', '.join(missing)}; name its data folder with --data"
        )
    elif opened is not None:
        results |= {split: opened(run.root).results(split) for split in missing}
    card: Mapping[str, Any] = {}
    packed, log = None, list(run.logged())
    if not log and run.last.is_file():  # packed weights have none
        metadata = read_checkpoint(run.last).metadata
        card = metadata.get("metrics", {})
        packed = int(metadata["progress"]["iteration"]) if card else None
    settings = asdict(described.preset)
    settings["data"].pop("features")  # a name; that the features are the same has been checked
    return ReportRun(
        name=described.name,
        seed=described.seed,
        folder=run.root.resolve().name,
        settings=settings,
        features=described.data.features,
        versions=described.versions,
        log=log,
        results={split: episodes for split, episodes in results.items() if episodes},
        origins={split: stamp for split in results if (stamp := read_stamp(run.stamp(split))) is not None},
        packed=packed,
        card=card,
    )


def _replays(
    page: Path,
    shown: Mapping[Path, ReportRun],
    opened: Opener | None,
    progress: Progress,
) -> Section | None:
    """Replays of the best agent and, when there are several, the worst, or why there are none.

    They go into the folder ``replays`` beside the page; None when no episode stands out.
    """
    groups = grouped(list(shown.values()))
    splits = splits_of(groups)
    if not splits:
        return None
    split, chosen = splits[0], contenders(groups, splits[0])
    roots = [root for run in chosen for root, its in shown.items() if its is run]
    try:
        if opened is None:
            raise UserError("the data of the runs was not named")
        runs = {name: opened(root) for name, root in run_names(roots).items()}
        walkers, results = _walkers(runs, split), [run.results[split] for run in chosen]
        episodes = telling(walkers[0], results[0], MOST_REPLAYS, *results[1:])
        if not episodes:
            return None
        files = {
            one.instruction_id: f"{plain(page.stem)}-{split}-{number}-{one.story.replace(' ', '-')}.html"
            for number, one in enumerate(episodes, start=1)
        }
        sceneries = Sceneries(next(iter(runs.values())).experiment.folder, SMALL_WIDTH)
        place = page.parent / "replays"
        with progress("drawing replays") as advance:
            back = BackLink(f"../{page.name}", "Back to the report")
            replays = write_replays(
                walkers, list(files), sceneries, lambda one: place / files[one], advance, back
            )
        return replays_section(replays, split, page.parent)
    except UserError as error:  # the page can do without them
        return note_section("Replays", f"There are none here: {error}. {_HOW}")


def _walkers(
    opened: Mapping[str, OpenedRun], split: str, helped: Mapping[str, WithSpeaker] | None = None
) -> list[TracedAgent]:
    return [run.traced(name, split, (helped or {}).get(name)) for name, run in opened.items()]


def _telling_ids(walkers: list[TracedAgent], runs: list[OpenedRun], split: str, count: int) -> list[str]:
    """The ids of telling episodes; the first ones of the split when none stands out."""
    first = walkers[0]
    if not first.episodes.has_goals:
        raise UserError(
            f"'{first.episodes.name}' keeps its goals secret, so nothing can be chosen; name an --episode"
        )
    if any(walker.episodes.instruction_ids != first.episodes.instruction_ids for walker in walkers):
        raise UserError("the two runs walk different episodes; name one that both have with --episode")
    own, *others = [run.results_of(walker, split) for run, walker in zip(runs, walkers, strict=True)]
    chosen = telling(first, own, count, *others)
    return [item.instruction_id for item in chosen] or list(first.episodes.instruction_ids[:count])
