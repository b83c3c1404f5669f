"""``scenemem data``: check a data folder, build the houses, write R4R, build or convert view features."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from scenemem.commands.console import console, open_data, output, print_json, progress_bar, say
from scenemem.errors import DataError, UserError
from scenemem.features.captions import CaptionConfig, build_caption_features
from scenemem.features.objects import build_object_features
from scenemem.features.store import (
    CAPTIONS,
    JOINT,
    convert_features,
    covered_scans,
    join_stores,
    store_name,
)
from scenemem.formats.episodes import read_episodes
from scenemem.formats.features import StoreInfo
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import HousesConfig, build_houses
from scenemem.presets import PRESETS
from scenemem.runs.data_check import FolderReport, Readiness, inspect_folder
from scenemem.tasks.paths import R4RCounts, write_r4r
from scenemem.world.build import Positions, load_world

_CAPTION_DEFAULTS = CaptionConfig()


def data_check(data: Path | None = None, *, json: bool = False) -> None:
    """Say what a data folder holds, what is wrong (file, record, reason) and what mends each track and task.

    Args:
        data: the data folder; the embedded houses when left out.
        json: print one JSON object instead of a table.
    """
    report = inspect_folder(open_data(data), progress_bar)
    if json:
        print_json(report)
    else:
        _show_check(report)
    if report.problems:
        raise UserError(f"{len(report.problems)} problem(s) found; see the list above")


def data_houses(
    out: Path | None = None, houses: int = 72, seed: int = 0, jobs: int | None = None, json: bool = False
) -> None:
    """Build the embedded houses: graphs, instructions, view features and plans in the public formats.

    Args:
        out: a new or empty folder to write; ./houses when not given.
        houses: how many houses; a sixth of them, at most twelve, are kept for val_unseen.
        seed: everything follows from this number.
        jobs: processes that work side by side; all processors when not given.
        json: print one JSON object on standard output.
    """
    config = HousesConfig(houses=houses, seed=seed)
    with progress_bar("building houses") as progress:
        summary = build_houses(out or Path("houses"), config, jobs=jobs, progress=progress)
    if json:
        print_json(summary)
        return
    splits = ", ".join(f"{count} {split}" for split, count in summary.instructions.items())
    console.print(
        f"{summary.houses} houses, {summary.viewpoints} viewpoints, {summary.edges} edges; "
        f"instructions: {splits}; written to {summary.folder}",
        markup=False,
    )


def data_r4r(
    data: Path | None = None,
    out: Path | None = None,
    positions: Positions = "centre",
    splits: tuple[str, ...] = ("train", "val_seen", "val_unseen"),
    json: bool = False,
) -> None:
    """Write R4R_<split>.json from R2R_<split>.json: two paths of a building become one, 3 x 3 instructions.

    Args:
        data: data folder; without it the embedded houses.
        out: folder for the files; by default r4r/ in the data folder (or in the cache if that is read-only).
        positions: measure distances between panorama centres, which gives the published files, or between
            the pose translations of the connectivity files.
        splits: which splits to write.
        json: print one JSON object with the counts.
    """
    folder = open_data(data)
    target = out or folder.derived / "r4r"
    world = load_world(folder.connectivity, positions=positions)
    counts: dict[str, R4RCounts] = {}
    for split in splits:
        source = folder.episodes("r2r", split)
        episodes = read_episodes(source)
        with progress_bar(f"R4R {split}") as progress:
            counts[split] = write_r4r(
                world, episodes, source, target / f"R4R_{split}.json", progress=progress
            )
    if json:
        print_json({"splits": {split: asdict(count) for split, count in counts.items()}})
    else:
        output.print(_r4r_table(counts))
        output.print(f"written to {target}", highlight=False, soft_wrap=True)


def data_features(
    file: Annotated[Path, tyro.conf.Positional],
    data: Path,
    name: str | None = None,
    columns: int | None = None,
    out: Path | None = None,
    encoder: str = "",
    json: bool = False,
) -> None:
    """Convert a TSV or HDF5 file of view features to a memory-mapped store.

    Args:
        file: the feature file: .tsv, .tsv.gz, .hdf5 or .h5.
        data: data folder the features belong to.
        name: of the store; the name of the file when not given.
        columns: keep only the first columns of every view, e.g. 768 where class scores follow.
        out: folder for the store; features/ of the data folder (or of its cache) when not given.
        encoder: the network that made the features, kept with the store.
        json: print one JSON object instead of text.
    """
    folder = out or DataFolder(data).derived / "features"
    name = name or store_name(file)
    target = folder / f"{name}.npy"
    with progress_bar("converting viewpoints") as progress:
        info = convert_features(file, target, columns=columns, encoder=encoder, progress=progress)
    with suppress(DataError):  # a folder without graphs
        _, lacks = covered_scans(info, load_world(DataFolder(data).connectivity))
        if lacks:
            say(f"{name} {lacks}")
    show_stores({name: info}, folder, json)


def data_captions(
    data: Path,
    config: Annotated[CaptionConfig, tyro.conf.arg(name="")] = _CAPTION_DEFAULTS,
    name: str = CAPTIONS.name,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Build the track captions: captions of every view, and free space.

    Args:
        data: data folder with connectivity/ and captions/, optionally r2r/ and glove/.
        config: whose captions, and how they are encoded.
        name: of the store.
        out: folder for the store; features/ of the data folder (or of its cache) when not given.
        json: print one JSON object instead of text.
    """
    opened = DataFolder(data)
    folder = out or opened.derived / "features"
    with progress_bar("building features") as progress:
        info = build_caption_features(opened, folder / f"{name}.npy", config, progress)
    show_stores({name: info}, folder, json)


def data_objects(data: Path, oracle: bool = True, out: Path | None = None, json: bool = False) -> None:
    """Build the tracks objects and, with room labels, oracle from public annotations.

    Args:
        data: data folder with connectivity/ and objects/, optionally rooms/ and glove/.
        oracle: also build the privileged store 'oracle', when the data folder has room labels.
        out: folder for the stores; features/ of the data folder (or of its cache) when not given.
        json: print one JSON object instead of text.
    """
    opened = DataFolder(data)
    folder = out or opened.derived / "features"
    with progress_bar("building features") as progress:
        stores = build_object_features(opened, folder, oracle=oracle, progress=progress)
    if oracle and len(stores) == 1:
        say(
            f"no room labels in {opened.rooms}: only the store 'objects' was built; for 'oracle' get them "
            f"with 'scenemem data fetch rooms --data {data}' and run this again"
        )
    show_stores(stores, folder, json)


def data_join(
    stores: Annotated[tuple[str, ...], tyro.conf.Positional],
    data: Path,
    name: str | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Join feature stores column by column into a union of tracks.

    Args:
        stores: names of feature stores with the same viewpoints, e.g. captions objects.
        data: data folder they belong to.
        name: of the union; the names joined with + when not given.
        out: folder for the store; features/ of the data folder (or of its cache) when not given.
        json: print one JSON object instead of text.
    """
    opened = DataFolder(data)
    folder = out or opened.derived / "features"
    name = name or JOINT.join(stores)
    files = {store: opened.feature_file(store) for store in stores}
    with progress_bar("joining viewpoints") as progress:
        info = join_stores(files, folder / f"{name}.npy", progress)
    show_stores({name: info}, folder, json)


def _show_check(report: FolderReport) -> None:
    table = Table("what", "how much", box=None)
    table.add_row("scans", f"{report.scans:,}")
    table.add_row("viewpoints", f"{report.viewpoints:,} included, {report.isolated:,} without an edge")
    table.add_row("edges", f"{report.edges:,}")
    for task, splits in report.splits.items():
        for split, count in splits.items():
            amount = f"{count.instructions:,} instructions, {count.paths:,} paths, {count.scans:,} scans"
            table.add_row(f"{task} {split}", amount)
    if report.path_pool is not None:
        table.add_row("path pool", f"{report.path_pool:,} pairs in the training scans")
    for store in report.features:
        covers = "all viewpoints" if store.complete else f"only {store.viewpoints:,} viewpoints"
        track = f"track {store.track}" if store.track else "no track: built by hand"
        table.add_row(f"features '{store.name}'", f"{store.width:,} columns, {covers}, {track}")
    for what, records in report.annotations.items():
        table.add_row(what, f"{records:,} records")
    for name in report.unknown:
        table.add_row(f"folder '{name}'", "[dim]not looked into by any command[/]")
    for problem in report.problems:
        place = ", ".join(part for part in (problem.record, problem.field) if part)
        table.add_row(
            "[bold red]problem[/]", f"{problem.file}: {place + ': ' if place else ''}{problem.reason}"
        )
    output.print(table)
    for title, states in (("track", report.tracks), ("task", report.tasks)):
        if states:
            output.print(_readiness_table(title, states))
    output.print(_presets_line(report), highlight=False, soft_wrap=True)


def _readiness_table(title: str, states: dict[str, Readiness]) -> Table:
    table = Table(title, "state", box=None)
    for name, state in states.items():
        lines = [f"{_worded(state)}  [dim]({state.what})[/]"]
        lines += [f"  {command}" for command in state.commands]
        table.add_row(name, "\n".join(lines))
    return table


def _worded(state: Readiness) -> str:
    if state.complete:
        return f"complete: {', '.join(state.stores)}" if state.stores else "complete"
    if state.missing:
        return f"missing: {', '.join(state.missing)}"
    if state.worse_without:
        return f"can be built, better with {', '.join(state.worse_without)}"
    return "can be built"


def _presets_line(report: FolderReport) -> str:
    """How many presets can be trained now, and what the others wait for."""
    waiting: dict[str, list[str]] = {}
    for preset, need in report.needs.items():
        waiting.setdefault(need, []).append(preset)
    text = f"{len(PRESETS) - len(report.needs)} of {len(PRESETS)} presets can be trained here"
    for need, presets in waiting.items():
        more = f" and {len(presets) - 1} more" if len(presets) > 1 else ""
        text += f"\n  {presets[0]}{more}: waiting for {need}"
    return text


def show_stores(stores: dict[str, StoreInfo], folder: Path, json: bool) -> None:
    """Print what was written, for people or as JSON."""
    rows = [
        {
            "name": name,
            "track": info.track,
            "file": str(folder / f"{name}.npy"),
            "width": info.width,
            "viewpoints": len(info.keys),
            "sha256": info.sha256,
        }
        for name, info in stores.items()
    ]
    if json:
        print_json({"stores": rows})
        return
    for row in rows:
        text = "{name} (track {track}): {viewpoints} viewpoints x 36 views x {width} columns"
        output.print(
            f"{text}\n  sha256 {{sha256}}\n  {{file}}".format(**row),
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def _r4r_table(counts: dict[str, R4RCounts]) -> Table:
    table = Table("split", "paths", "instructions", title="R4R")
    for split, count in counts.items():
        table.add_row(split, f"{count.paths:,}", f"{count.instructions:,}")
    return table
