"""``scenemem data fetch`` and ``data convert``: public files into the layout of a data folder."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.table import Column
from tyro.conf import Positional, arg

from scenemem.commands.console import Json, bytes_bar, output, print_json, say, table, write
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder
from scenemem.sources.convert import KNOWN, Converted, convert
from scenemem.sources.fetch import NoAnswerError, Plan, RetryPolicy, fetch, fetch_script, plan
from scenemem.sources.table import GOALS, MATTERPORT, MORE, SOURCES, TERMS, ByHand, Source, find_sources

_RETRIES = RetryPolicy()


def data_fetch(
    what: Annotated[tuple[str, ...], Positional, arg(metavar="[WHAT ...]")] = (),
    data: Path | None = None,
    *,
    instructions: bool = False,
    replace: bool = False,
    timeout: float = _RETRIES.seconds,
    json: Json = False,
) -> None:
    """Fetch the public files that a task or a track needs, check them, and convert what has to be converted.

    Without a name the table of everything that can be fetched is printed. Files that are there are not
    fetched again, and a fetch that broke off goes on where it stopped.

    Args:
        what: a track (captions, objects, oracle, images), a task (r2r, reverie, grounding), or a source.
        data: the data folder to fill; it is made when it is not there.
        instructions: fetch nothing; print the commands that fetch the same files on another machine.
        replace: fetch files again that are there but are not the published ones.
        timeout: seconds without a byte after which a connection counts as broken.
    """
    if not what:
        print_json(_tables()) if json else _show_tables()
        return
    sources, goals = find_sources(what), [GOALS[name] for name in what if name in GOALS]
    if data is None:
        raise UserError(f"name the folder to fill: scenemem data fetch {' '.join(what)} --data DIR")
    retries = RetryPolicy(seconds=timeout)
    planned = plan(data, sources, replace=replace)
    if instructions:
        _show_instructions(planned, what)
        return
    if not json:
        _announce(planned)
    try:
        with bytes_bar("fetching") as progress:
            done = fetch(planned, retries, progress)
    except NoAnswerError:
        missing = len(plan(data, sources, replace=replace).fetch)
        say(f"{missing} files are still missing; how to fetch them elsewhere:")
        say(f"  {_again(what, data)} --instructions")
        raise
    if json:
        converted = [{"file": str(one.file), "records": one.records} for one in done]
        fetched = [file.target for file in planned.fetch]
        found = {"fetched": fetched, "there": planned.there, "not_the_published_files": planned.unlike}
        print_json({**found, "converted": converted})
        return
    _show_converted(done)
    for goal in goals:
        if goal.by_hand is not None:
            _show_by_hand(goal.by_hand)
    steps = [step for goal in goals for step in goal.next]
    for step in dict.fromkeys(("scenemem data check --data DIR", *steps)):
        say(f"next: {step.replace('DIR', shlex.quote(str(data)))}")


def data_convert(
    originals: Annotated[tuple[Path, ...], Positional, arg(metavar="ORIGINAL ...")],
    data: Path,
    *,
    json: Json = False,
) -> None:
    """Convert files that their authors publish in another form than the data folder has.

    Rooms: .house files, a folder of them, or vp2room_label.json. Objects: category_mapping.tsv, a BBox
    folder or archive, objpos.json. Word vectors: a GloVe .txt or .zip file, of which the words of the data
    folder are kept, or an .npy table beside its *_vocab.txt. Captions of LangNav and NavGPT are read as they
    are: put them into captions/. Graphs of buildings of your own: see docs/graphs.md.

    Args:
        originals: the files or folders; their order does not matter.
        data: the data folder they belong to.
    """
    if not originals:
        raise UserError(f"name the files to convert: {KNOWN}")
    done = convert(originals, DataFolder(data))
    if not json:
        _show_converted(done)
        return
    rows = [{"original": str(one.original), "file": str(one.file), "records": one.records} for one in done]
    print_json({"converted": rows})


def _size(source: Source) -> str:
    """How much is fetched, for people: ``23.8 MB``."""
    known = sum(file.size or 0 for file in source.files)
    unknown = any(file.size is None for file in source.files)
    return "size not known" if unknown and not known else f"{known / 1e6:.1f} MB"


def _tables() -> dict[str, Any]:
    """Everything that can be fetched, and what cannot."""
    by_hand = [goal.by_hand for goal in GOALS.values() if goal.by_hand]
    sources = {name: {**asdict(source), "files": source.files} for name, source in SOURCES.items()}
    return {"goals": GOALS, "sources": sources, "by_hand": {one.name: one for one in (*by_hand, *MORE)}}


def _show_tables() -> None:
    goals = [(name, goal.what, ", ".join(goal.sources)) for name, goal in GOALS.items()]
    title = "scenemem data fetch WHAT --data DIR"
    output.print(table(title, ("what for", "", "sources"), goals, box=None))
    sources = [
        (name, f"{source.what}\n[dim]{source.page}[/]", _size(source), source.licence)
        for name, source in SOURCES.items()
    ]
    about = Column("", overflow="fold")  # an address that is cut short leads nowhere
    output.print()
    output.print(table("", ("source", about, "size", "licence"), sources, box=None))
    write(f"\nAll but 'words' also fall under the {MATTERPORT}:\n{TERMS}\n")
    for one in MORE:
        _show_by_hand(one)


def _show_by_hand(one: ByHand) -> None:
    say(f"{one.name}: {one.what}; not fetched here, because {one.why}:")
    for step in one.steps:
        say(f"  - {step}")


def _show_instructions(planned: Plan, what: tuple[str, ...]) -> None:
    if not planned.fetch:
        say("nothing has to be fetched")
        return
    say(
        f"{_amount(planned)}; run this where there is a network, in an empty folder, copy the folder over "
        f"{planned.root}, then repeat '{_again(what, planned.root)}', which "
        "checks and converts them:"
    )
    for line in fetch_script(planned):
        write(line)


def _again(what: tuple[str, ...], data: Path) -> str:
    return f"scenemem data fetch {' '.join(what)} --data {shlex.quote(str(data))}"


def _announce(planned: Plan) -> None:
    kept = "is there, but is not the published file; kept (--replace fetches it again)"
    for name in planned.unlike:
        say(f"{planned.root / name}: {kept}")
    if not planned.fetch:
        say(f"all {len(planned.there)} files are there")
        return
    say(f"{_amount(planned)}, {len(planned.there)} are there")
    fetched = set(planned.fetch)
    for source in planned.sources:
        if fetched & set(source.files):
            terms = f", {MATTERPORT}" if source.about_buildings else ""
            say(f"  {source.name}: {source.what}; {source.page}, licence: {source.licence}{terms}")


def _amount(planned: Plan) -> str:
    unknown = f" and {planned.unknown} of unknown size" if planned.unknown else ""
    return f"{len(planned.fetch)} files to fetch, {planned.size / 1e6:.1f} MB{unknown}"


def _show_converted(done: list[Converted]) -> None:
    for one in done:
        say(f"{one.file}: {one.records:,} {one.what}, from {one.original.name}")
