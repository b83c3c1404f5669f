"""Pages about runs: a report, replays of telling episodes, and what the live page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from scenemem.errors import UserError
from scenemem.features.store import complete_stores
from scenemem.formats.folder import SPLITS, DataFolder
from scenemem.formats.results import EpisodeResult, read_stamp
from scenemem.houses.house import ENCODER
from scenemem.learning.speaker import Speaker
from scenemem.presets import Preset
from scenemem.runs.experiment import (
    Experiment,
    Progress,
    RunMetadata,
    begun,
    find_split,
    silent,
    stored_speaker,
)
from scenemem.runs.folder import RunFolder, Which
from scenemem.runs.opened import LoadedAgent, names_of, open_run, open_runs
from scenemem.runs.weights import published, unpacked
from scenemem.tasks.episode_set import EpisodeSet
from scenemem.viewer.pages import Section
from scenemem.viewer.replay import (
    BackLink,
    Replay,
    RouteFile,
    choose_routes,
    instructive,
    plain,
    replays_section,
    write_replays,
)
from scenemem.viewer.report import ReportRun, Scores, contenders, grouped, splits_of, write_run_report
from scenemem.viewer.scenery import SMALL_WIDTH, Sceneries
from scenemem.viewer.traces import TracedAgent
from scenemem.world.build import load_world
from scenemem.world.graph import NONE, World

if TYPE_CHECKING:
    from scenemem.viewer.live_state import Example, LiveServerState

MOST_REPLAYS = 4
"""Replays beside a report: one of each kind."""

_BACK = BackLink("index.html", "All replays")
_SUGGESTION_SPLITS = ("val_unseen", "val_seen", "train")
_SUGGESTIONS = 8  # per house

Opener = Callable[[Path], LoadedAgent]
"""Loads the agent of a run."""


def report_on(
    runs: Sequence[RunFolder],
    folder: DataFolder,
    out: Path,
    *,
    splits: Sequence[str],
    checkpoint: Which = "last",
    references: Mapping[str, Scores] | None = None,
    replays: bool = True,
    progress: Progress = silent,
    device: str = "cpu",
) -> Path:
    """Evaluate what is missing, write the page and return where it is.

    Args:
        runs: trained on the same task and features.
        folder: their data.
        out: the page.
        splits: what to evaluate; other splits walked with the same weights are shown, too.
        checkpoint: which weights.
        references: scores of agents that are no runs, by split.
        replays: write replays of telling episodes beside the page, and link them.
    """
    described = {run.root: begun(run, Preset) for run in runs}
    first = _same_data(described)
    features, task = first.data.features, first.preset.data.task
    opened = lru_cache(maxsize=2)(
        lambda root: open_run(RunFolder(root), folder, checkpoint, progress, device)
    )  # two agents are walked again for replays
    shown = {}
    for root, one in described.items():
        agent = opened(root)
        others = {file.stem for file in (root / "results").glob("*.jsonl")} - {*splits}
        results = {split: agent.results(split) for split in splits}
        results |= {split: kept for split in sorted(others) if (kept := agent.kept(split)) is not None}
        shown[root] = _report_run(agent, one, results)
    place = "The embedded houses" if features == ENCODER else f"{task.upper()}, features: {features}"
    write_run_report(
        out,
        f"Report on {runs[0].root.resolve().name}" if len(shown) == 1 else f"Report on {len(shown)} runs",
        list(shown.values()),
        world=f"{place}, track {first.data.track or 'unknown'}",
        task=None if features == ENCODER else task,
        references=references,
        replays=_replays(out, shown, opened, progress) if replays else None,
    )
    return out


def replay_episodes(
    agents: Mapping[str, LoadedAgent],
    split: str,
    episode: str | None,
    count: int,
    file_of: Callable[[str], Path],
    progress: Progress = silent,
) -> list[Replay]:
    """Write replays of one episode, or of telling ones.

    Args:
        agents: by their names: one, or two to show side by side.
        split: of the episodes.
        episode: the id of one instruction; None chooses ``count`` telling ones.
        count: how many to choose.
        file_of: the page of an instruction.
    """
    walkers = _walkers(agents, split)
    ids = [episode] if episode is not None else _telling_ids(walkers, list(agents.values()), split, count)
    folder = next(iter(agents.values())).experiment.folder
    with progress("drawing replays") as advance:
        return write_replays(walkers, ids, Sceneries(folder), file_of, advance, None if episode else _BACK)


def replay_files(
    files: Sequence[Path],
    folder: DataFolder,
    task: str,
    split: str,
    episode: str | None,
    count: int,
    file_of: Callable[[str], Path],
    progress: Progress = silent,
) -> tuple[list[str], list[Replay]]:
    """The same of routes in result files  ->  what the files are called, and what was written"""
    world = load_world(folder.connectivity)
    episodes = find_split(folder, world, task, split)
    stems = [file.name.partition(".")[0] for file in files]
    names = stems if len({*stems}) == len(stems) else [str(file) for file in files]
    both = zip(files, names, strict=True)
    routes = [RouteFile.read(file, name, world, episodes, episode) for file, name in both]
    ids = choose_routes(routes, count) if episode is None else [episode]
    with progress("drawing routes") as advance:
        back = _BACK if episode is None else None
        return names, write_replays(routes, ids, Sceneries(folder), file_of, advance, back)


def open_live_state(
    runs: list[Path], speaker: Path | None, folder: DataFolder, checkpoint: Which, device: str = "cpu"
) -> LiveServerState:
    """Load everything the live page shows; without a speaker that was named, one that comes with SceneMem."""
    from scenemem.viewer.live_state import LiveServerState  # needs the extra 'serve'

    agents = open_runs(runs, folder, checkpoint, silent, device)
    first = next(iter(agents.values())).experiment
    if speaker is None:
        speaks = _packaged_speaker(first)
    else:
        speaks = speaker.resolve().name, stored_speaker(RunFolder(speaker).best, folder, device).speaker
    task = first.preset.data.task
    splits = {one: first.episodes(one) for one in SPLITS if folder.episodes(task, one).is_file()}
    return LiveServerState(
        agents={name: agent.experiment.agent for name, agent in agents.items()},
        origins={name: agent.origin() for name, agent in agents.items()},
        sceneries=Sceneries(folder),
        speaker=speaks and speaks[1],
        speaker_name=speaks[0] if speaks else "speaker",
        examples=_suggestions(first.environment.world, splits),
        groups=_house_groups(splits),
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


def _house_groups(splits: Mapping[str, EpisodeSet]) -> dict[str, str]:
    """The split every house belongs to; one that is in several counts as seen in training."""
    found = dict[str, str]()
    for split in sorted(splits, key=SPLITS.index):
        for scan in sorted(set(splits[split].scan.tolist())):
            found.setdefault(splits[split].scans[scan], split)
    return found


def _suggestions(world: World, splits: Mapping[str, EpisodeSet]) -> Mapping[str, list[Example]]:
    """A few instructions for every house, from the splits the data folder has."""
    from scenemem.viewer.live_state import Example

    found: dict[str, list[Example]] = {}
    for split in filter(splits.__contains__, _SUGGESTION_SPLITS):
        episodes, seen, local = splits[split], set[int](), world.local.tolist()
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


def _report_run(
    agent: LoadedAgent, described: RunMetadata, results: Mapping[str, Sequence[EpisodeResult]]
) -> ReportRun:
    """A run with the outcome of every episode."""
    run, log = agent.run, list(agent.run.logged())
    packed = not log and "metrics" in agent.stored.metadata  # which have those of their card
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
        packed=agent.iteration if packed else None,
    )


def _replays(
    page: Path, shown: Mapping[Path, ReportRun], opened: Opener, progress: Progress
) -> Section | None:
    """Replays of the best agent and, when there are several, the worst; None when no episode stands out.

    They go into the folder ``replays`` beside the page.
    """
    groups = grouped(list(shown.values()))
    splits = splits_of(groups)
    if not splits:
        return None
    split, chosen = splits[0], contenders(groups, splits[0])
    roots = [root for run in chosen for root, its in shown.items() if its is run]
    agents = {name: opened(root) for name, root in names_of(roots).items()}
    walkers, results = _walkers(agents, split), [run.results[split] for run in chosen]
    episodes = instructive(results[0], MOST_REPLAYS, *results[1:])
    if not episodes:
        return None
    start = page.parent / "replays" / f"{plain(page.stem)}-{split}"
    files = {
        one.instruction_id: Path(f"{start}-{number}-{one.story.replace(' ', '-')}.html")
        for number, one in enumerate(episodes, start=1)
    }
    sceneries = Sceneries(next(iter(agents.values())).experiment.folder, SMALL_WIDTH)
    with progress("drawing replays") as advance:
        back = BackLink(f"../{page.name}", "Back to the report")
        replays = write_replays(walkers, list(files), sceneries, files.__getitem__, advance, back)
    return replays_section(replays, split, page.parent)


def _walkers(agents: Mapping[str, LoadedAgent], split: str) -> list[TracedAgent]:
    return [agent.traced(agent.episode_set(split), split, name) for name, agent in agents.items()]


def _telling_ids(walkers: list[TracedAgent], agents: list[LoadedAgent], split: str, count: int) -> list[str]:
    """The ids of telling episodes; the first ones of the split when none stands out."""
    first = walkers[0]
    if not first.episodes.has_goals:
        raise UserError(
            f"'{first.episodes.name}' keeps its goals secret, so nothing can be chosen; name an `episode`"
        )
    if any(walker.episodes.instruction_ids != first.episodes.instruction_ids for walker in walkers):
        raise UserError("the two runs walk different episodes; name one that both have with `episode`")
    own, *others = [agent.results(split) for agent in agents]
    chosen = instructive(own, count, *others)
    return [item.instruction_id for item in chosen] or list(first.episodes.instruction_ids[:count])
