from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from scenemem.errors import DataError, UserError
from scenemem.formats.annotations import (
    ObjectPosition,
    ViewpointRoom,
    read_labels,
    read_table,
    read_view_objects,
    read_word_vectors,
)
from scenemem.sources.fetch import RetryPolicy, fetch, fetch_script, plan
from scenemem.sources.table import GOALS, SOURCES, find_sources, missing_results
from tests.sources.conftest import VIEWPOINT, originals, repository
from tests.sources.server import Served

QUICK = RetryPolicy(seconds=0.3, attempts=2, pause=0.01)
Mirror = Callable[[str], Served]


def test_a_track_is_fetched_and_converted(mirror: Mirror, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    planned = plan(tmp_path / "data", find_sources(("oracle",)))
    done = fetch(planned, QUICK, lambda *amount: told.append(amount))
    assert (len(done), len(planned.fetch)) == (5, 9)
    assert told[-1][0] == sum(len(content) for content in originals().values())
    assert told[-1][0] == told[-1][1]
    data = tmp_path / "data"
    rooms = list(read_table(data / "rooms" / "viewpoint_rooms.tsv", ViewpointRoom))
    assert rooms == [ViewpointRoom("17DRP5sb8fy", VIEWPOINT, "k", "kitchen", 4)]
    labels = read_labels(data / "objects" / "labels.tsv")
    (record,) = read_view_objects(data / "objects" / "BBox.tar.gz", labels)
    assert (record.objects[0].category, record.objects[0].views) == ("counter", (3,))
    (position,) = read_table(data / "objects" / "object_positions.tsv", ObjectPosition)
    assert (position.x, position.category) == (1.0, "counter"), "tenths of a millimetre are kept"
    assert read_word_vectors(data / "glove" / "glove_300d.npz")[0] == ("the", "counter")
    assert all(not missing_results(source, data) for source in planned.sources)


def test_what_is_there_is_not_fetched_again_in_whatever_form(mirror: Mirror, tmp_path: Path) -> None:
    fetch(plan(tmp_path, find_sources(("oracle",))), QUICK)
    again = plan(tmp_path, find_sources(("oracle",)))
    assert (again.fetch, again.unlike, len(again.there)) == ((), (), 9)
    train = tmp_path / "r2r" / "R2R_train.json"
    train.rename(train.with_name("R2R_train.json.gz"))
    (tmp_path / "objects" / "BBox.tar.gz").rename(tmp_path / "objects" / "view_objects.jsonl.gz")
    for original in (tmp_path / "originals").iterdir():
        original.unlink()
    again = plan(tmp_path, find_sources(("oracle",)))
    assert again.fetch == ()
    (tmp_path / "r2r" / "R2R_test.json").unlink()
    again = plan(tmp_path, find_sources(("oracle",)))
    assert [file.target for file in again.fetch] == ["r2r/R2R_test.json"], "no more than is missing"


def test_a_file_of_the_user_is_kept_unless_it_is_to_be_replaced(mirror: Mirror, tmp_path: Path) -> None:
    wrong = tmp_path / "r2r" / "R2R_train.json"
    wrong.parent.mkdir()
    wrong.write_text("mine")
    planned = plan(tmp_path, find_sources(("r2r",)))
    assert planned.unlike == ("r2r/R2R_train.json",)
    fetch(planned, QUICK)
    assert wrong.read_text() == "mine"
    fetch(plan(tmp_path, find_sources(("r2r",)), replace=True), QUICK)
    assert wrong.read_bytes() == originals()["R2R_train.json"]


def test_a_result_that_was_deleted_is_converted_again_without_a_network(
    mirror: Mirror, tmp_path: Path
) -> None:
    fetch(plan(tmp_path, find_sources(("rooms",))), QUICK)
    (tmp_path / "rooms" / "viewpoint_rooms.tsv").unlink()
    planned = plan(tmp_path, find_sources(("rooms",)))
    assert planned.fetch == ()
    assert [one.file.name for one in fetch(planned, QUICK)] == ["viewpoint_rooms.tsv"]


def test_one_wrong_file_stops_the_fetch_and_the_others_stay(mirror: Mirror, tmp_path: Path) -> None:
    served = mirror("R2R_test.json")
    served.content = b'["TEST"]'
    with pytest.raises(DataError, match=r"R2R_test\.json: has sha256 .*nothing of it was kept"):
        fetch(plan(tmp_path, find_sources(("r2r",))), QUICK)
    assert {file.name for file in (tmp_path / "r2r").iterdir()} == {"R2R_train.json"}
    served.content = b'["test"]'
    planned = plan(tmp_path, find_sources(("r2r",)))
    assert [file.target for file in planned.fetch] == ["r2r/R2R_test.json"]
    assert fetch(planned, QUICK) == []
    assert (tmp_path / "r2r" / "R2R_test.json").read_bytes() == b'["test"]'


def test_an_archive_is_judged_by_what_is_in_it(mirror: Mirror, tmp_path: Path) -> None:
    mirror("REVERIE.tar.gz").content = repository(b"{}")
    with pytest.raises(
        DataError, match=r"its 1 files in tasks/REVERIE/data/BBox/ have the digest .*expected"
    ):
        fetch(plan(tmp_path, find_sources(("boxes",))), QUICK)
    assert not (tmp_path / "objects").exists()
    (tmp_path / "originals" / "REVERIE.tar.gz").write_bytes(repository()[:100])
    with pytest.raises(DataError, match=r"not a readable archive .*; is the file complete"):
        fetch(plan(tmp_path, find_sources(("boxes",))), QUICK)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_instructions_do_what_the_command_would(mirror: Mirror, tmp_path: Path) -> None:
    planned = plan(tmp_path / "data", find_sources(("r2r", "words")))
    script = "\n".join(fetch_script(planned))
    assert script.startswith("mkdir -p connectivity\nmkdir -p originals\nmkdir -p r2r\ncurl -fL -C - -o ")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run(["bash", "-euc", script], cwd=elsewhere, check=True, capture_output=True)
    copied = plan(elsewhere, planned.sources)
    assert (copied.fetch, copied.unlike) == ((), ())


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"there is nothing called 'orcale' to fetch; did you mean oracle\?"):
        find_sources(("orcale",))


def test_the_real_table_is_whole() -> None:
    assert {name for goal in GOALS.values() for name in goal.sources} == set(SOURCES)
    counts = {name: len(source.files) for name, source in SOURCES.items()}
    assert (counts["graphs"], counts["langnav"], counts["r2r-episodes"]) == (90, 90, 4)
    for source in SOURCES.values():
        assert source.page.startswith("https://")
        for file in source.files:
            assert file.url.startswith("https://")
            known = file.size is not None and file.sha256 is not None and len(file.sha256) == 64
            assert known or source.archive is not None, f"{file.target} has no checksum"


@pytest.mark.real_data
def test_the_checksums_are_those_of_the_files_people_have(real_data: Path) -> None:
    planned = plan(real_data, find_sources(("graphs", "r2r-episodes")))
    assert (planned.fetch, planned.unlike) == ((), ())
    assert len(planned.there) == 94
