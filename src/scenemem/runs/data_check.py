"""What a data folder holds, what is wrong with it, and what each track and each preset still needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from scenemem.errors import DataError, UserError
from scenemem.features.tracks import CAPTIONS, IMAGES, JOINT, OBJECTS, ORACLE, TRACKS, track_of
from scenemem.formats.annotations import (
    ObjectPosition,
    ViewpointRoom,
    find_view_objects,
    read_table,
    read_view_objects,
)
from scenemem.formats.captions import PUBLISHED, CaptionFiles, find_captions, read_captions
from scenemem.formats.connectivity import connectivity_files, read_scan
from scenemem.formats.features import verify_store
from scenemem.formats.folder import RENAMED, SPLITS, DataFolder
from scenemem.presets import PRESETS
from scenemem.runs.experiment import Progress, silent
from scenemem.tasks.episode_set import load_split
from scenemem.tasks.paths import path_pool
from scenemem.world.build import load_world
from scenemem.world.graph import World

TASKS = ("r2r", "r4r", "reverie", "rxr")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where."""

    file: str
    record: str | None
    field: str | None
    reason: str


@dataclass(frozen=True)
class SplitCount:
    """How much a split holds."""

    paths: int
    instructions: int
    scans: int


@dataclass(frozen=True)
class StoreState:
    """A feature store and whether it covers the world."""

    name: str
    width: int
    viewpoints: int
    complete: bool
    track: str = ""  # empty in stores of older versions


@dataclass(frozen=True)
class TrackState:
    """Whether a track is there, can be built, or lacks files."""

    sensor: str  # what its features stand for
    stores: list[str]  # complete ones
    command: str  # builds it, or replaces a store that is incomplete; empty when it is there
    missing: str  # files to get first; empty when the command would work now


@dataclass
class FolderReport:
    """What a folder holds and lacks."""

    scans: int = 0
    viewpoints: int = 0  # included ones
    edges: int = 0
    isolated: int = 0  # included viewpoints without an edge
    splits: dict[str, dict[str, SplitCount]] = field(default_factory=dict)  # task -> split -> count
    path_pool: int | None = None  # pairs in the training scans that back-translation may describe
    annotations: dict[str, int] = field(default_factory=dict)  # what -> records
    features: list[StoreState] = field(default_factory=list)
    tracks: dict[str, TrackState] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    needs: dict[str, str] = field(default_factory=dict)  # preset or other job -> what it still needs

    @contextmanager
    def collecting_problems(self) -> Iterator[None]:
        """Turn an error in one file into a line of the report, so that the other files are read too."""
        try:
            yield
        except DataError as error:
            self.problems.append(Problem(error.file, error.record, error.field, error.reason))


def inspect_folder(folder: DataFolder, progress: Progress = silent) -> FolderReport:
    """Read every file a folder offers and report on it; problems are collected, not raised."""
    report = FolderReport()
    world = _check_graphs(report, folder, progress)
    if world is not None:
        _count_episodes(report, folder, world, progress)
    _count_annotations(report, folder)
    _check_features(report, folder, world, progress)
    report.tracks = _tracks(report, folder)
    report.needs = _needs(report)
    return report


def _check_graphs(report: FolderReport, folder: DataFolder, progress: Progress) -> World | None:
    """Check every graph; the world when all are sound."""
    files: list[Path] = []
    with report.collecting_problems():
        files = connectivity_files(folder.connectivity)
    with progress("reading graphs") as advance:
        for done, file in enumerate(files, start=1):
            with report.collecting_problems():
                read_scan(file)
            advance(done, len(files))
    if not files or report.problems:
        return None
    world = load_world(folder.connectivity)
    degree = world.neighbour_mask.sum(dim=1)
    report.scans = len(world.scans)
    report.viewpoints = len(world.viewpoints)
    report.edges = int(degree.sum()) // 2
    report.isolated = int((degree == 0).sum())
    return world


def _count_episodes(report: FolderReport, folder: DataFolder, world: World, progress: Progress) -> None:
    there = [(task, split) for task in TASKS for split in SPLITS if folder.episodes(task, split).is_file()]
    with progress("reading episodes") as advance:
        for done, (task, split) in enumerate(there, start=1):
            with report.collecting_problems():
                episodes = load_split(folder, world, task, split)
                report.splits.setdefault(task, {})[split] = SplitCount(
                    paths=len(set(episodes.record.tolist())),
                    instructions=len(episodes),
                    scans=len(set(episodes.scan.tolist())),
                )
                if (task, split) == ("r2r", "train"):
                    report.path_pool = 0
                    with suppress(UserError):  # no path obeys the rule: a small folder, not a broken one
                        scans = {world.scans[scan] for scan in episodes.scan.tolist()}
                        report.path_pool = len(path_pool(world, scans))
            advance(done, len(there))


def _count_annotations(report: FolderReport, folder: DataFolder) -> None:
    """Read every annotation there is, so that a broken one is found before features are built from it."""
    readers: dict[str, tuple[Path | None, Callable[[Path], Iterable[object]]]] = {
        "objects": (find_view_objects(folder.objects), read_view_objects),
        "object positions": (
            folder.objects / "object_positions.tsv.gz",
            lambda file: read_table(file, ObjectPosition),
        ),
        "rooms": (folder.rooms / "viewpoint_rooms.tsv", lambda file: read_table(file, ViewpointRoom)),
    }
    for what, (file, read) in readers.items():
        if file is not None and file.exists():
            with report.collecting_problems():
                report.annotations[what] = sum(1 for _ in read(file))
    for files in _caption_files(folder):
        with report.collecting_problems():
            report.annotations[f"{files.captioner} captions"] = sum(1 for _ in read_captions(files))


def _check_features(
    report: FolderReport, folder: DataFolder, world: World | None, progress: Progress
) -> None:
    files = folder.feature_files()
    with progress("verifying features") as advance:
        for done, file in enumerate(files, start=1):
            with report.collecting_problems():
                info = verify_store(file)
                complete = world is not None and set(world.names) <= set(info.keys)
                track = track_of(file.stem, info.track, info.encoder)
                report.features.append(StoreState(file.stem, info.width, len(info.keys), complete, track))
            advance(done, len(files))


def _tracks(report: FolderReport, folder: DataFolder) -> dict[str, TrackState]:
    """Every track: the stores there are, or the command that builds one and what that lacks.

    That of the houses and unions are listed when they are there.
    """
    objects = "" if find_view_objects(folder.objects) else "objects/view_objects.jsonl.gz or objects/BBox/"
    rooms = "" if (folder.rooms / "viewpoint_rooms.tsv").is_file() else "rooms/viewpoint_rooms.tsv"
    captions = "" if _caption_files(folder) else f"captions/{PUBLISHED['langnav'].archives}.tar.gz"
    missing = {
        CAPTIONS.name: captions,
        OBJECTS.name: objects,
        IMAGES.name: "pictures of the views, or a file of image features",
        ORACLE.name: " and ".join(part for part in (objects, rooms) if part),
    }
    states = {}
    for name, track in TRACKS.items():
        there = [state.name for state in report.features if state.complete and state.track == name]
        if there:
            states[name] = TrackState(track.sensor, there, "", "")
        elif name in missing:
            states[name] = TrackState(track.sensor, [], f"{track.command} --data DIR", missing[name])
    for union in sorted({state.track for state in report.features} - set(TRACKS) - {""}):
        there = [state.name for state in report.features if state.complete and state.track == union]
        parts = union.split(JOINT)
        sensor = " + ".join(TRACKS[part].sensor for part in parts if part in TRACKS)
        command = "" if there else f"scenemem data join {' '.join(parts)} --data DIR"
        states[union] = TrackState(sensor, there, command, "")
    return states


def _caption_files(folder: DataFolder) -> list[CaptionFiles]:
    found = (find_captions(folder.captions, captioner) for captioner in PUBLISHED)
    return [files for files in found if files is not None]


def _needs(report: FolderReport) -> dict[str, str]:
    """What stands between this folder and each preset or job; those that can start are left out."""
    ready = [state.command for state in report.tracks.values() if state.command and not state.missing]
    how = f"'{ready[0]}'" if ready else "see the tracks"
    complete = {RENAMED.get(state.name, state.name) for state in report.features if state.complete}
    graphs = [] if report.scans else ["connectivity/<scan>_connectivity.json"]
    basics = [*graphs, *([] if complete else [f"a feature store ({how})"])]
    needs = {}
    for name, preset in PRESETS.items():
        wanted = preset.data.features
        stored = basics
        if wanted is not None:
            now = RENAMED.get(wanted, wanted)
            command = TRACKS[now].command if now in TRACKS else "scenemem data features FILE"
            stored = [*graphs, *([] if now in complete else [f"the feature store '{now}' ('{command}')"])]
        needs[name] = [*stored, *_missing_train(report, preset.data.task)]
    needs["any preset on R4R"] = [*basics, *_missing_train(report, "r4r")]
    needs["leaderboard submission"] = [] if "test" in report.splits.get("r2r", {}) else ["r2r/R2R_test.json"]
    return {job: ", ".join(missing) for job, missing in needs.items() if missing}


def _missing_train(report: FolderReport, task: str) -> list[str]:
    if "train" in report.splits.get(task, {}):
        return []
    return [f"{task}/{task.upper()}_train.json" + (" ('scenemem data r4r')" if task == "r4r" else "")]
