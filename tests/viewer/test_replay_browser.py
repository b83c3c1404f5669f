"""Replays and a report in a real browser: played, scrubbed, by keyboard, small and large, light and dark."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from PIL import Image

from scenemem.formats.folder import DataFolder
from scenemem.formats.traces import Decision, Ending, Option, Trace, Way
from scenemem.runs.folder import RunFolder
from scenemem.runs.pages import report_on
from scenemem.viewer.drawing import draw_thumbnails
from scenemem.viewer.narration import DrawnWalk
from scenemem.viewer.replay import Replay, replay_page, write_index, write_replay
from scenemem.viewer.scenery import Doorway, Look, RoomOutline, SceneLabel, Scenery
from tests.viewer.checks import DESKTOP, PHONE, Scheme, faults, in_every_scheme, on_every_screen, quiet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FloatRect, Locator, Page

    Show = Callable[..., Page]

change = msgspec.structs.replace

CAPTIONS = {
    0: {1: "a hall, and two Sofas beyond it"},
    1: {0: "the start", 2: "a hall with a rug", 3: "a Sofa, past a lamp", 4: "a sofabed"},
    2: {1: "a hall with a rug"},
    3: {4: "<b>stairs</b>"},
}


@pytest.fixture
def pages(turning_back: Trace, tmp_path: Path) -> dict[str, Path]:
    """A replay of one agent, one with an agent beside it that has no memory and no attention, an index."""
    pixel = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw=="
    scenery = Scenery(
        rooms=(RoomOutline("hall", 0, 2.0, 1.0, (-1.0, -1.0, 5.0, 3.0)), RoomOutline("attic", 1, 2.0, 4.0)),
        doorways=(Doorway(0, (2.0, 3.0, 3.0, 3.0)),),
        room_of={0: "hall", 1: "hall", 4: "attic"},
        looks={
            0: Look(picture=pixel),
            1: Look(labels=(SceneLabel("sofa", 0.2, 0.0), SceneLabel("attic", 1.0, 0.3, True))),
        },
    )
    looks = {n: replace(scenery.looks.get(n, Look()), captions=of) for n, of in CAPTIONS.items()}
    plain = [
        change(move, memory=None, decisions=(change(move.decisions[0], attention=None, weights=None),))
        for move in turning_back.moves[:2]
    ]
    rival = change(turning_back, agent="basic", moves=tuple(plain))
    files = {name: tmp_path / f"{name}.html" for name in ("one", "two", "told", "routes", "index")}
    write_replay(files["one"], [turning_back], scenery)
    write_replay(files["told"], [turning_back, rival], replace(scenery, looks=looks))
    write_replay(files["two"], [turning_back, rival], scenery)
    walks = [DrawnWalk.of(trace, scenery.room_of) for trace in (turning_back, rival)]
    ending = Ending(True, 3, to_goal=3.6, scores=walks[0].scores)
    routes = [
        DrawnWalk.of_route(walk.name, walk.task, walk.scene, path, 0.0, ending)
        for walk, path in zip(walks, ((0, 1, 3), (0, 1)), strict=True)
    ]
    files["routes"].write_text(replay_page(routes, scenery), encoding="utf-8")
    cards = list(zip(walks, draw_thumbnails(walks, scenery), strict=True))
    write_index(files["index"], "All of them", [Replay(files["two"], cards, 1)])
    return files


@pytest.fixture
def show(tab: Page, pages: dict[str, Path], tmp_path: Path) -> Iterator[Show]:
    """Opens a page, or the replay of a trace, in the tab, which must not complain and load nothing else."""
    files = {"about:blank"}

    def opened(
        page: str | Trace,
        size: tuple[int, int] = DESKTOP,
        scheme: Scheme = "light",
        scenery: Scenery | None = None,
    ) -> Page:
        file = tmp_path / "own.html" if isinstance(page, Trace) else pages[page]
        if isinstance(page, Trace):
            write_replay(file, [page], scenery or Scenery())
        files.add(file.as_uri())
        tab.set_viewport_size({"width": size[0], "height": size[1]})
        tab.emulate_media(color_scheme=scheme, reduced_motion="no-preference")
        tab.goto(file.as_uri())
        return tab

    with quiet(tab, lambda url: url.partition("#")[0] in files or url.startswith("data:")):
        yield opened


def _text(page: Page | Locator, selector: str) -> str:
    return str(page.locator(selector).first.text_content())


def _texts(page: Page | Locator, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


def _box(part: Locator) -> FloatRect:
    box = part.bounding_box()
    assert box is not None
    return box


def test_it_plays_through_to_the_end(browser: Browser, pages: dict[str, Path]) -> None:
    # a tab of its own, because its clock is turned by hand
    opened = browser.new_page()
    opened.goto(pages["one"].as_uri())
    opened.clock.install()
    play = opened.get_by_role("button", name="Play")
    play.click()
    seen = [_text(opened, "#count")]
    for _ in range(5):
        opened.clock.run_for(2600)
        seen.append(_text(opened, "#count"))
    assert seen == [*(f"Move {number} of 5" for number in range(1, 6)), "The end"]
    assert opened.get_by_role("button", name="Play").is_visible(), "it stops by itself"
    assert "a success (less than 3 m is needed)" in _text(opened, ".caption")
    play.click()
    assert _text(opened, "#count") == "Move 1 of 5", "playing again begins again"
    opened.close()


def test_it_begins_with_what_happens_and_the_memory_grows(show: Show) -> None:
    opened = show("one")
    assert "The map is its memory: numbered circles are places it has been to" in _text(opened, "#lead")
    told = "At move 3 it turned back to place 2 (hall); at move 5 it stopped at the goal."
    assert _text(opened, ".story").startswith(told)
    where = _text(opened, "#where")
    assert "SceneMem replay: one walk, move by move" in where
    assert where.endswith("house · tiny val_unseen, instruction 7_0")
    assert _text(opened, ".holds") == "1 visited, 1 only seen"
    nodes = []
    for frame in range(4):
        opened.locator("#scrub").fill(str(frame))
        nodes.append(opened.locator(".map > svg .node").count())
        assert opened.locator(".said, .remembered > *, .look .note").count() == 0, "no captions"
    assert nodes == [1, 2, 3, 4]
    assert opened.locator(".map > svg .jumped").count() == 1, "the return stays on the map"
    assert opened.locator("#scrub").get_attribute("aria-valuetext") == "Move 4 of 5"
    opened.get_by_role("button", name="Show move 3: it turns back").click()
    assert _text(opened, "#count") == "Move 3 of 5"
    assert _text(opened, ".holds") == "3 visited, 1 only seen"
    assert "turns back to place 2 (hall)" in _text(opened, ".caption")
    assert "back" in str(opened.locator(".caption").get_attribute("class"))
    assert opened.locator(".map > svg .next.back").count() == 1
    assert opened.locator(".map > svg .ring").count() == 1, "one frontier is left"
    assert opened.locator(".looks figure").count() == 2, "here, and what it remembers"


def test_decisions_show_their_chances_and_their_words(show: Show) -> None:
    opened = show("one")

    def levels(kind: str) -> list[str | None]:
        return [word.get_attribute(f"data-{kind}") for word in opened.locator(".words .word").all()]

    strong = ".words .word[data-view='3'], .words .word[data-direction='3']"
    assert levels("view") == ["0", "0", "0", "3", "0"]
    assert levels("direction") == ["3", "2", "0", "0", "0"]
    sofa = opened.locator(".words .word").nth(3)
    assert (sofa.text_content(), sofa.get_attribute("title")) == ("sofa", "view: 70 %, direction: 0 %")
    assert _text(opened, ".chances") == ""
    assert opened.locator(".choices").is_hidden()

    opened.locator("#scrub").fill("2")
    assert _texts(opened, ".chance.to-place") == ["80 %", "20 %"]
    assert _texts(opened, ".chance.to-way") == ["75 %"]
    assert _text(opened, ".chances") == "Chances beside circles: which place; beside diamonds: which way."
    heads = ["1. Which place on the map to go on from?", "2. Which way from place 2?"]
    assert _texts(opened, ".decision h4") == heads
    assert opened.locator(".decision thead").first.inner_text().split() == ["Option", "View", "Chance"]
    assert _texts(opened, ".decision .taken th") == ["✓ place 2 (hall)", "✓ way A"]
    assert _texts(opened, strong) == ["Go", "sofa"]
    assert "“sofa”; direction words: “Go”" in _text(opened, ".caption .told")
    opened.get_by_role("button", name="2. which way").focus()
    opened.keyboard.press("Enter")
    assert _texts(opened, strong) == ["past", "sofa"]
    assert "“past”; direction words: “sofa”" in _text(opened, ".caption .told")
    assert _texts(opened, ".choices [aria-pressed=true]") == ["2. which way"]

    opened.keyboard.press("ArrowRight")
    assert opened.locator(".choices").is_hidden()
    none = opened.locator(".key .none")
    assert none.is_visible()
    assert [none.get_attribute(f"data-{kind}") for kind in ("view", "direction")] == ["3", "3"]
    opened.keyboard.press("End")
    assert levels("view") == ["0"] * 5, "nothing is attended to at the end"
    assert "The walk is over." in _text(opened, ".decision")


def test_every_control_brings_caption_and_map_into_view_on_a_phone(show: Show) -> None:
    tab = show("one", PHONE)
    caption, svg, player = (tab.locator(name) for name in (".caption", ".map > svg", ".player"))
    assert tab.evaluate("scrollY") == 0
    names = ("Show move 3: it turns back", "Next move", "The end", "Previous move", "First move", "Play")
    for button in names:
        for away in (0, 9999):
            tab.locator("#scrub").fill("2")
            tab.evaluate("y => window.scrollTo(0, y)", away)
            tab.get_by_role("button", name=button, exact=True).evaluate("node => node.click()")
            tops = [_box(part)["y"] for part in (caption, svg, player)]
            assert 0 <= tops[0] < tops[1] < tops[2], f"{button} from {away}"
            if button == "Play":
                tab.get_by_role("button", name="Pause").click()
    tab.get_by_role("button", name="First move").click()
    before = tab.evaluate("scrollY")
    tab.get_by_role("button", name="Next move").click()
    assert tab.evaluate("scrollY") == before, "what is in view stays where it is"


@pytest.mark.parametrize(("name", "frame", "height"), [("one", "2", 1000), ("two", "1", DESKTOP[1])])
def test_map_and_decision_are_above_the_fold(name: str, frame: str, height: int, show: Show) -> None:
    tab = show(name, (DESKTOP[0], height))
    tab.locator("#scrub").fill(frame)
    bar = _box(tab.locator(".player"))
    last = ".decision table" if name == "one" else ".decision tbody tr"
    for panel in tab.locator("article").all():
        for part in (".map > svg", ".decision h3", last):
            box = _box(panel.locator(part).first)
            assert box["y"] + box["height"] <= bar["y"], f"{part} is below the fold"


def test_one_floor_is_not_spoken_of_and_the_goal_is_seen_where_the_agent_stands(
    show: Show, turning_back: Trace
) -> None:
    places = tuple(change(place, floor=0) for place in turning_back.scene.places)
    task = change(turning_back.task, split="instruction")
    tab = show(change(turning_back, task=task, scene=change(turning_back.scene, places=places)))
    assert _text(tab, "#where").endswith("house · instruction 7_0")
    assert tab.locator("#floor-key").is_hidden()
    assert tab.locator(".floors button").count() == 0
    assert "floor" not in _text(tab, "#legend")
    assert tab.locator(".goal-ring").count() == 0
    tab.keyboard.press("End")
    signs = tab.locator(".map > svg > *")
    drawn = signs.evaluate_all("nodes => nodes.map((node) => node.getAttribute('class'))")
    assert drawn.index("agent-mark") < drawn.index("goal-ring") < drawn.index("star")


def test_marks_do_not_depend_on_the_width_of_the_window(show: Show) -> None:
    drawn = []
    for width in (390, 768, 1280):
        tab = show("one", (width, 1000))
        tab.keyboard.press("ArrowRight")
        tab.evaluate("window.scrollTo(0, 0)")
        words = tab.locator(".words .word").all()
        drawn.append([_colours(tab, word) for word in words])
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[0] == [(False, True), (False, True), (False, False), (True, False), (False, False)]


def _colours(tab: Page, word: Locator) -> tuple[bool, bool]:
    """Whether a word is drawn on blue, and over an orange line."""
    box = _box(word)
    height = int(box["height"])
    shot = tab.screenshot(clip={**box, "height": box["height"] + 6})
    picture = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)
    over, under = picture[: height - 1], picture[height:]
    blue = (over[..., 2] - over[..., 0] > 60).mean() > 0.2
    orange = (under[..., 0] - under[..., 2] > 100).any(axis=0).mean() > 0.3
    return bool(blue), bool(orange)


def test_the_keyboard_does_everything(show: Show) -> None:
    opened = show("one")
    floor, stars = ".floors button[aria-pressed=true]", opened.locator(".map > svg .star")

    def after(*keys: str) -> str:
        for key in keys:
            opened.keyboard.press(key)
        return _text(opened, "#count")

    assert after("ArrowRight", "ArrowRight") == "Move 3 of 5"
    assert after("ArrowLeft") == "Move 2 of 5"
    assert after("End") == "The end"
    assert _text(opened, floor) == "Floor 2", "floors follow the agent"
    assert after("ArrowRight") == "The end"
    assert after("Home") == "Move 1 of 5"
    assert (_text(opened, floor), stars.count()) == ("Floor 1", 0)
    after("f")
    assert (_text(opened, floor), stars.count()) == ("Floor 2", 1), "where the goal is"
    opened.get_by_role("button", name="Floor 1").click()
    assert _text(opened, floor) == "Floor 1"
    opened.evaluate("document.activeElement.blur()")
    after("Space")
    assert opened.get_by_role("button", name="Pause").is_visible()
    after("Space")
    assert opened.get_by_role("button", name="Play").is_visible()
    opened.locator("#scrub").focus()
    assert after("ArrowRight") == "Move 2 of 5", "the slider moves once, not twice"
    button = opened.get_by_role("button", name="Next move")
    button.focus()
    assert after("Enter") == "Move 3 of 5"
    outline = button.evaluate("node => getComputedStyle(node).outlineWidth")
    assert outline == "3px", "focus can be seen"


def _captions(tab: Page, box: str) -> list[tuple[str, str]]:
    """What is told about each direction in a part of the first agent's panel."""
    rows = tab.locator(f"article >> nth=0 >> {box} .said > div").all()
    return [(_text(row, "dt"), " / ".join(_texts(row, "dd"))) for row in rows]


def _marked(tab: Page, box: str) -> list[tuple[str | None, ...]]:
    """Marked words of captions, with the strengths of both marks."""
    words = tab.locator(f"article >> nth=0 >> {box} .said .word").all()
    kinds = ("data-view", "data-direction")
    return [(str(one.text_content()), *map(one.get_attribute, kinds)) for one in words]


def test_captions_tell_of_the_chosen_and_the_remembered_directions(show: Show) -> None:
    tab = show("told")
    assert _captions(tab, ".looks") == [("✓ way A", "a hall, and two Sofas beyond it")]
    assert _marked(tab, ".looks") == [("Sofas", "3", "0")], "be it one sofa or two"
    assert _captions(tab, ".remembered") == [], "no place to choose"
    tab.locator("#scrub").fill("1")
    ways = [("✓ way B", "a hall with a rug"), ("way A", "a Sofa, past a lamp")]
    assert _captions(tab, ".looks") == ways
    tab.locator("#scrub").fill("2")
    assert _captions(tab, ".remembered") == [("✓ place 2", "north: a Sofa, past a lamp")]
    assert _marked(tab, ".remembered") == [("Sofa", "3", "0"), ("past", "0", "2")]
    assert _captions(tab, ".looks") == [("✓ way A", "a Sofa, past a lamp")]
    assert _marked(tab, ".looks") == [("Sofa", "0", "3"), ("past", "3", "0")], "when it has arrived"
    assert tab.locator("article >> nth=0 >> .looks figure .said").count() == 1
    tab.locator("#scrub").fill("3")
    assert _captions(tab, ".looks") == [("✓ way A", "<b>stairs</b>")]
    assert tab.locator(".said b").count() == 0, "text stays text"
    tab.keyboard.press("End")
    assert _captions(tab, ".looks") == []


def test_alike_directions_share_a_line_and_unlikely_places_are_told_of_when_asked_for(
    show: Show, turning_back: Trace
) -> None:
    ways = ((1, 0, "west"), (1, 3, "north"), (1, 4, "south"), (2, 1, "west"), (0, 1, "east"), (3, 4, "north"))
    move = turning_back.moves[3]
    assert move.memory is not None
    memory = change(move.memory, ways=tuple(Way(a, b, 0.0, 0.0, wind) for a, b, wind in ways))
    chances = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}
    options = tuple(Option(place, chance, 0.5, node=place) for place, chance in chances.items())
    more = change(move, memory=memory, decisions=(Decision("frontier", options, 3), *move.decisions))
    said = {0: {1: "stairs"}, 1: {0: "a rug", 3: "a lamp", 4: "a rug"}, 2: {1: "a door"}, 3: {4: "a bed"}}
    looks = {place: Look(captions=captions) for place, captions in said.items()}
    tab = show(change(turning_back, moves=(*turning_back.moves[:3], more)), scenery=Scenery(looks=looks))
    tab.locator("#scrub").fill("3")
    assert _captions(tab, ".remembered") == [
        ("✓ place 4", "north: a bed"),
        ("place 3", "west: a door"),
        ("place 2", "west, south: a rug / north: a lamp"),
        ("place 1", "east: stairs"),
    ], "by their chance"
    last = tab.get_by_text("stairs")
    assert last.is_hidden()
    tab.get_by_text("and 1 more").click()
    assert last.is_visible()


WATCH_STEPS = """() => {
  window.steps = 0;
  const watcher = new MutationObserver((changes) => { window.steps += changes.length; });
  const options = { attributes: true, attributeFilter: ["transform"], subtree: true };
  watcher.observe(document.querySelector(".map > svg"), options);
}"""


def test_the_agent_walks_unless_motion_is_unwelcome(show: Show) -> None:
    opened = show("one")
    opened.evaluate(WATCH_STEPS)
    opened.keyboard.press("ArrowRight")
    deadline = time.monotonic() + 20
    while opened.evaluate("window.steps") < 2:
        assert time.monotonic() < deadline, "its mark never moved"
        opened.wait_for_timeout(20)
    opened.keyboard.press("Home")
    opened.emulate_media(reduced_motion="reduce")
    opened.evaluate("window.steps = 0")
    opened.keyboard.press("ArrowRight")
    opened.wait_for_timeout(300)
    assert _text(opened, "#count") == "Move 2 of 5"
    assert opened.evaluate("window.steps") == 0


def test_routes_are_played_without_a_word_on_decisions(show: Show) -> None:
    tab = show("routes")
    assert "says where the agent went and not why" in _text(tab, "#lead")
    assert _text(tab, "#count") == "Move 1 of 2"
    tab.keyboard.press("ArrowRight")
    first, second = _texts(tab, ".caption")
    assert first == "Move 2: it goes north to place 3, 2.0 m."
    assert second.startswith("The end: it stopped 3.6 m from the goal")
    assert tab.locator(".map > svg .next").count() == 1
    assert tab.locator(".decision:visible, .key:visible span").count() == 0
    assert "chances" not in _text(tab, "#legend")


@in_every_scheme
@on_every_screen
@pytest.mark.parametrize("name", ["one", "two", "told", "routes", "index"])
def test_pages_fit_and_are_accessible(name: str, size: tuple[int, int], scheme: Scheme, show: Show) -> None:
    tab = show(name, size, scheme)
    ground = {"light": "rgb(250, 249, 246)", "dark": "rgb(18, 21, 24)"}
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == ground[scheme]
    for frame in {"index": (), "routes": (0, 2, 1)}.get(name, (0, 5, 2)):
        tab.locator("#scrub").fill(str(frame))
        assert tab.evaluate("document.documentElement.scrollWidth") <= size[0], f"move {frame + 1}"
    assert faults(tab) == []


def test_untrusted_text_runs_nothing(show: Show, turning_back: Trace) -> None:
    nasty = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>"
    task = change(turning_back.task, text=nasty, split="live")
    tab = show(change(turning_back, task=task, agent=nasty), scenery=Scenery(room_of={0: nasty}))
    assert tab.evaluate("window.harmed") is None
    assert tab.locator("main img").count() == 0
    assert _text(tab, "#where").endswith("house · an instruction typed on the live page")


def test_two_agents_share_one_player_and_their_ending_can_be_hidden_until_it_comes(
    show: Show, pages: dict[str, Path]
) -> None:
    tab = show("two")
    assert tab.locator("article").count() == 2
    assert "does not separate words for what to look for" in _text(tab, "article >> nth=1 >> .key")
    tab.locator("#scrub").fill("4")
    first, second = _texts(tab, ".caption")
    assert first.startswith("Move 5:")
    assert second.startswith("The end:"), "who has ended stays at the end"
    left, right = (_box(one) for one in tab.locator(".map").all())
    assert left["y"] == right["y"], "the maps stand side by side"

    told = tab.locator("#headline")
    assert told.is_visible()
    tab.click("#ending")
    assert _text(tab, "#ending") == "Show the ending"
    assert not told.is_visible()
    assert tab.locator("#suspense").is_visible()
    assert not tab.locator(".story").first.is_visible()
    assert tab.title() == "SceneMem replay"
    tab.keyboard.press("End")
    assert told.is_visible(), "at its end everybody may know"
    tab.keyboard.press("Home")
    assert not told.is_visible()
    tab.click("#ending")
    assert told.is_visible()
    show("one").goto("about:blank")
    tab.goto(f"{pages['one'].as_uri()}#hide")
    assert not tab.locator("#headline").is_visible(), "an address can ask for suspense"
    assert "goal" not in _text(tab, "#agents h2"), "screen readers are kept in suspense, too"


@pytest.fixture(scope="module")
def report(
    trained_runs: dict[str, RunFolder], tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A report on two agents, moved to where neither runs nor data are."""
    folder = tmp_path_factory.mktemp("report")
    runs = [trained_runs["ssm"], trained_runs["basic"]]
    report_on(runs, DataFolder(tiny_trainable), folder / "made" / "report.html", splits=["val_unseen"])
    return Path(shutil.move(folder / "made", folder / "mailed")) / "report.html"


@pytest.fixture
def opened(tab: Page, report: Path) -> Iterator[Page]:
    """The report in a browser that must not complain and not leave the folder."""
    with quiet(tab, lambda url: url.startswith((report.parent.as_uri(), "data:"))):
        tab.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
        tab.goto(report.as_uri())
        yield tab


def test_every_link_opens_a_replay_that_plays_and_leads_back(opened: Page, report: Path) -> None:
    links = opened.locator(".replays a")
    count = links.count()
    assert 1 <= count <= 4
    assert opened.locator(".replays .thumb").count() == 2 * count, "one map for each agent"
    for number in range(count):
        title = links.nth(number).text_content()
        links.nth(number).click()
        opened.wait_for_selector("#scrub")
        assert Path(opened.url.removeprefix("file://")).parent == report.parent / "replays"
        told = opened.locator("#headline span").all_text_contents()
        assert len(told) == 2
        assert all(one.strip() in str(title) for one in told)
        assert opened.locator("article").count() == 2, "both agents"
        opened.keyboard.press("End")
        assert opened.text_content("#count") == "The end"
        opened.click("#back-link")
        assert opened.url == report.as_uri()


@in_every_scheme
@on_every_screen
def test_the_report_fits_and_is_accessible(opened: Page, size: tuple[int, int], scheme: Scheme) -> None:
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size({"width": size[0], "height": size[1]})
    assert faults(opened) == []
