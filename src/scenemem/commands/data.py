"""``scenemem data``: check a data folder, build the houses, write R4R, build or convert view features."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from scenemem.commands.console import Data, Json, open_data, progress_bar, say, show, table
from scenemem.errors import DataError, UserError
from scenemem.features.captions import CaptionConfig, build_caption_features
from scenemem.features.images import build_image_features, open_encoder
from scenemem.features.objects import build_object_features
from scenemem.features.pictures import DrawnHouses, PictureFiles
from scenemem.features.store import CAPTIONS, convert_features, covered_scans, store_name
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import VIEWS, StoreInfo
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import HousesConfig, build_houses
from scenemem.runs.data_check import FolderReport, Problem, Readiness, inspect_folder
from scenemem.tasks.paths import R4RCounts, write_r4r
from scenemem.world.build import Positions, load_world

_CAPTION_DEFAULTS = CaptionConfig()


@dataclass(frozen=True)
class StoreFlags:
    """Which data folder feature stores belong to, and where they are written."""

    data: Annotated[Path, arg(metavar="DIR", help="the data folder that the features belong to.")]
    out: Path | None = None
    """folder for the store; features/ of the data folder (or of its cache) when left out"""
    json: Json = False

    @property
    def source(self) -> DataFolder:
        """The data folder."""
        return DataFolder(self.data)

    @property
    def target(self) -> Path:
        """The folder for the store."""
        return self.out or self.source.derived / "features"

    def file(self, name: str) -> Path:
        """The file of a store."""
        return self.target / f"{name}.npy"

    def show(self, stores: dict[str, StoreInfo]) -> None:
        """Print what was written."""
        rows = [
            {
                "name": name,
                "track": info.track,
                "file": str(self.file(name)),
                "width": info.width,
                "viewpoints": len(info.keys),
                "sha256": info.sha256,
            }
            for name, info in stores.items()
        ]
        text = "{name} (track {track}): {viewpoints} viewpoints x 36 views x {width} columns\n"
        text += "  sha256 {sha256}\n  {file}"
        show(self.json, {"stores": rows}, *(text.format(**row) for row in rows))


Stores = Annotated[StoreFlags, arg(name="")]


def data_check(data: Data = None, *, json: Json = False) -> None:
    """Report what a data folder holds, what is wrong, and what mends each track and task."""
    report = inspect_folder(open_data(data), progress_bar)
    ready = [
        _readiness_table(title, states)
        for title, states in (("track", report.tracks), ("task", report.tasks))
        if states
    ]
    show(json, report, contents(report), *ready)
    if report.problems:
        raise UserError(f"{len(report.problems)} problem(s) found; see the list above")


def data_houses(
    out: Path | None = None, houses: int = 72, seed: int = 0, jobs: int | None = None, json: Json = False
) -> None:
    """Build the embedded houses: graphs, instructions, view features and plans in the public formats.

    Args:
        out: a new or empty folder to write; ./houses when not given.
        houses: number of houses; a sixth of them, at most twelve, are kept for val_unseen.
        seed: everything follows from this number.
        jobs: processes that work side by side; all processors when not given.
    """
    config = HousesConfig(houses=houses, seed=seed)
    with progress_bar("building houses") as progress:
        summary = build_houses(out or Path("houses"), config, jobs=jobs, progress=progress)
    if json:
        show(json, summary)
        return
    splits = ", ".join(f"{count} {split}" for split, count in summary.instructions.items())
    say(
        f"{summary.houses} houses, {summary.viewpoints} viewpoints, {summary.edges} edges; "
        f"instructions: {splits}; written to {summary.folder}"
    )


def data_r4r(
    data: Data = None,
    out: Path | None = None,
    positions: Positions = "centre",
    splits: tuple[str, ...] = ("train", "val_seen", "val_unseen"),
    json: Json = False,
) -> None:
    """Write R4R_<split>.json from R2R_<split>.json: two paths of a building become one, 3 x 3 instructions.

    Args:
        out: folder for the files; by default r4r/ in the data folder (or in the cache if that is read-only).
        positions: measure distances between panorama centres, which gives the published files, or between
            the pose translations of the connectivity files.
        splits: which splits to write.
    """
    folder = open_data(data)
    target = out or folder.derived / "r4r"
    world = load_world(folder.connectivity, positions=positions)
    counts: dict[str, R4RCounts] = {}
    for split in splits:
        source, written = folder.episodes("r2r", split), target / f"R4R_{split}.json"
        episodes = read_episodes(source)
        with progress_bar(f"R4R {split}") as progress:
            counts[split] = write_r4r(world, episodes, source, written, progress=progress)
    rows = [(split, f"{count.paths:,}", f"{count.instructions:,}") for split, count in counts.items()]
    shown = table("R4R", ("split", "paths", "instructions"), rows)
    found = {"splits": {split: asdict(count) for split, count in counts.items()}}
    show(json, found, shown, f"written to {target}")


def data_features(
    file: Annotated[Path, Positional],
    stores: Stores,
    name: str | None = None,
    columns: int | None = None,
    encoder: str = "",
) -> None:
    """Convert a TSV or HDF5 file of view features to a memory-mapped store.

    Args:
        file: the feature file: .tsv, .tsv.gz, .hdf5 or .h5.
        name: of the store; the name of the file when not given.
        columns: keep only the first columns of every view, e.g. 768 where class scores follow.
        encoder: the network that made the features, kept with the store.
    """
    name = name or store_name(file)
    target = stores.file(name)
    with progress_bar("converting viewpoints") as progress:
        info = convert_features(file, target, columns=columns, encoder=encoder, progress=progress)
    with suppress(DataError):  # a folder without graphs
        _, lacks = covered_scans(info, load_world(stores.source.connectivity))
        if lacks:
            say(f"{name} {lacks}")
    stores.show({name: info})


def data_captions(
    stores: Stores,
    config: Annotated[CaptionConfig, arg(name="")] = _CAPTION_DEFAULTS,
    name: str = CAPTIONS.name,
) -> None:
    """Build the track captions: captions of every view, and free space.

    The data folder has connectivity/ and captions/, optionally r2r/ and glove/.

    Args:
        config: whose captions, and how they are encoded.
        name: of the store.
    """
    with progress_bar("building features") as progress:
        info = build_caption_features(stores.source, stores.file(name), config, progress)
    stores.show({name: info})


def data_objects(stores: Stores, oracle: bool = True) -> None:
    """Build the tracks objects and, with room labels, oracle from public annotations.

    The data folder has connectivity/ and objects/, optionally rooms/ and glove/.

    Args:
        oracle: also build the privileged store 'oracle', when the data folder has room labels.
    """
    with progress_bar("building features") as progress:
        built = build_object_features(stores.source, stores.target, oracle=oracle, progress=progress)
    if oracle and len(built) == 1:
        say(
            f"no room labels in {stores.source.rooms}: only the store 'objects' was built; for 'oracle' get "
            f"them with 'scenemem data fetch rooms --data {stores.source.quoted}' and run this again"
        )
    stores.show(built)


def data_images(
    stores: Stores,
    encoder: str,
    images: Path | None = None,
    name: str = "images",
    batch: int = VIEWS,
    scans: tuple[str, ...] = (),
    device: str = "cpu",
) -> None:
    """Build view features from pictures with an image encoder; the same command goes on after a kill.

    Args:
        encoder: houses-small, which is built in, or a transformers model: its name on the hub or its folder.
        images: folder of pictures, SCAN/VIEWPOINT/0.jpg to 35.jpg or SCAN/VIEWPOINT_skybox0_sami.jpg to 5;
            without it the embedded houses are drawn.
        name: of the store.
        batch: most pictures encoded at once.
        scans: only these buildings.
        device: where the encoder runs: cpu, cuda, cuda:1, mps.
    """
    source, target = stores.source, stores.file(name)
    pictures = DrawnHouses(source) if images is None else PictureFiles(images)
    chosen = open_encoder(encoder, device)
    with progress_bar("encoding viewpoints") as progress:
        info = build_image_features(
            source, target, pictures, chosen, batch=batch, scans=scans, progress=progress
        )
    stores.show({name: info})


def contents(report: FolderReport) -> Table:
    """What a data folder holds, and everything that is wrong with it."""
    rows = [("scans", f"{report.scans:,}")]
    rows += [("viewpoints", f"{report.viewpoints:,} included, {report.isolated:,} without an edge")]
    rows += [("edges", f"{report.edges:,}")]
    for task, splits in report.splits.items():
        for split, count in splits.items():
            amount = f"{count.instructions:,} instructions, {count.paths:,} paths, {count.scans:,} scans"
            rows.append((f"{task} {split}", amount))
    if report.path_pool is not None:
        rows.append(("path pool", f"{report.path_pool:,} pairs in the training scans"))
    for store in report.features:
        covers = (
            "all viewpoints"
            if store.complete
            else (f"only {store.viewpoints:,} viewpoints ({store.buildings} whole buildings)")
        )
        track = f"track {store.track}" if store.track else "no track: built by hand"
        about = f"{store.width:,} columns, {covers}, {track}, sha256 {store.sha256[:16]}"
        rows.append((f"features '{store.name}'", about))
    rows += [(what, f"{records:,} records") for what, records in report.annotations.items()]
    rows += [(f"folder '{name}'", "[dim]not looked into by any command[/]") for name in report.unknown]
    rows += [("[bold red]problem[/]", _place_and_reason(problem)) for problem in report.problems]
    return table("", ("what", "how much"), rows, box=None)


def _place_and_reason(problem: Problem) -> str:
    place = ", ".join(part for part in (problem.record, problem.field) if part)
    return f"{problem.file}: {place + ': ' if place else ''}{problem.reason}"


def _readiness_table(title: str, states: dict[str, Readiness]) -> Table:
    rows = [
        (name, "\n  ".join((f"{_worded(state)}  [dim]({state.what})[/]", *state.commands)))
        for name, state in states.items()
    ]
    return table("", (title, "state"), rows, box=None)


def _worded(state: Readiness) -> str:
    if state.complete:
        return f"complete: {', '.join(state.stores)}" if state.stores else "complete"
    if state.missing:
        return f"missing: {', '.join(state.missing)}"
    if state.worse_without:
        return f"can be built, better with {', '.join(state.worse_without)}"
    return "can be built"
