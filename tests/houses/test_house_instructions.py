"""Instructions: every claim is checked against the house, and every telling word belongs to a claim."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from typing import get_args

import numpy as np
import pytest

from scenemem.houses.house import COLOURS, KINDS, MATERIAL_WORDS, ROOM_KINDS
from scenemem.houses.instructions import STYLES, Claim, Phrase, Subject, turn_word, write_instructions
from scenemem.houses.scene import FloatArray, cast_rays
from scenemem.houses.viewpoints import Route, sample_routes
from tests.houses.conftest import Surveyed

Example = tuple[Surveyed, Route, tuple[Phrase, ...]]

WORDS_OF = {kind: model.words for kind, model in KINDS.items()}
WORDS_OF |= {"window": ("window",), "front door": ("front door", "main door")}
LANDMARK_WORDS = {word for words in WORDS_OF.values() for word in words}
ROOM_WORDS = {word: kind for kind, model in ROOM_KINDS.items() if kind != "stairs" for word in model.words}
ORDINALS = ("first", "second", "third", "fourth", "fifth")


@pytest.fixture(scope="module")
def examples(surveyed: list[Surveyed]) -> list[Example]:
    found: list[Example] = []
    for number, one in enumerate(surveyed):
        rng = np.random.default_rng(number)
        routes = sample_routes(one[0], 40, rng)
        found += [(one, route, write_instructions(one[2], route, rng)) for route in routes]
    return found


def turn(before: float, after: float) -> float:
    """Degrees clockwise, -180 to 180."""
    return (math.degrees(after - before) + 180) % 360 - 180


class Checker:
    """Tests claims with geometry of its own."""

    def __init__(self, surveyed: Surveyed, route: Route) -> None:
        self.layout, self.scene, self.around = surveyed
        self.house = self.layout.house
        self.route = route
        self.at = self.layout.position[list(route.stands)]
        steps = np.diff(self.at[:, :2], axis=0)
        self.headings = [route.heading, *np.arctan2(steps[:, 0], steps[:, 1]).tolist()]

    def check(self, claim: Claim) -> None:
        getattr(self, "check_" + claim.about.replace(" ", "_"))(claim)

    def check_sees(self, claim: Claim) -> None:
        thing = self.around.landmarks[claim.landmark]
        shares = np.linspace(0.02, 0.98, 12)
        low, high = np.array(thing.box[:3]), np.array(thing.box[3:])
        points = low + np.array(list(itertools.product(shares, repeat=3))) * (high - low)
        rays = points - self.at[claim.step]
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        box, _, _ = cast_rays(self.scene, self.at[claim.step], rays)
        assert (self.scene.landmark[box] == claim.landmark).any(), (claim, thing)

    def gap(self, spot: FloatArray, landmark: int) -> float:
        rect = self.around.landmarks[landmark].box.footprint
        return float(np.linalg.norm(np.clip(spot[:2], rect[:2], rect[2:]) - spot[:2]))

    def bearing(self, step: int, x: float, y: float) -> float:
        return math.atan2(x - self.at[step][0], y - self.at[step][1])

    def check_passes(self, claim: Claim) -> None:
        start, stop = self.at[claim.step], self.at[claim.until]
        spots = (start + (stop - start) * share for share in np.linspace(0, 1, 30))
        assert min(self.gap(spot, claim.landmark) for spot in spots) < 1.5
        if claim.side:
            x, y = self.around.landmarks[claim.landmark].box.footprint.centre
            way, thing = (stop - start)[:2], np.array([x, y]) - start[:2]
            cross = float(way[0] * thing[1] - way[1] * thing[0])  # positive: to the left
            assert (cross > 0) == (claim.side == "left")

    def check_ahead(self, claim: Claim) -> None:
        way = self.at[claim.until] - self.at[claim.step]
        spot = self.around.landmarks[claim.landmark].box.footprint.centre
        assert abs(turn(math.atan2(way[0], way[1]), self.bearing(claim.step, *spot))) < 20

    def check_near(self, claim: Claim) -> None:
        assert self.gap(self.at[claim.step], claim.landmark) < 1.5

    def check_turn(self, claim: Claim) -> None:
        angle = turn(self.headings[claim.step], self.headings[claim.step + 1])
        if claim.side == "around":
            assert abs(angle) > 140
        else:
            assert 30 < (angle if claim.side == "right" else -angle) < 160

    def check_door_side(self, claim: Claim) -> None:
        door = self.house.doors[claim.door]
        angle = turn(self.headings[claim.step], self.bearing(claim.step, door.x, door.y))
        assert 25 < (angle if claim.side == "right" else -angle) < 155
        assert math.dist((door.x, door.y), self.at[claim.step][:2]) < 2.5

    def check_ordinal(self, claim: Claim) -> None:
        """Walk down the hallway and count the doors on that side."""
        here, heading = self.at[claim.step], self.headings[claim.step + 1]
        room = next(r for r in self.house.doors[claim.door].rooms if self.house.rooms[r].kind == "hallway")
        offsets = []
        for door in self.house.doors_of(room):
            east, north = door.x - here[0], door.y - here[1]
            ahead = east * math.sin(heading) + north * math.cos(heading)
            right = east * math.cos(heading) - north * math.sin(heading)
            along = door.across == ("y" if abs(math.sin(heading)) > abs(math.cos(heading)) else "x")
            if door.style == "door" and ahead > 0.3 and along and (right > 0) == (claim.side == "right"):
                offsets.append((ahead, self.house.doors.index(door)))
        assert [number for _, number in sorted(offsets)][claim.number - 1] == claim.door

    def check_room(self, claim: Claim) -> None:
        room, spot = self.house.rooms[claim.room], self.at[claim.step]
        # the first and the last step of the stairs count as part of the hallway
        assert room.rect.grown(0.2).holds(float(spot[0]), float(spot[1]))
        assert room.floor * 3.0 < spot[2] < room.floor * 3.0 + 3.0

    def check_stairs(self, claim: Claim) -> None:
        rise = self.at[claim.until][2] - self.at[claim.step][2]
        assert rise >= 1.5 if claim.side == "up" else rise <= -1.5

    def check_doorway(self, claim: Claim) -> None:
        stand = self.house.stands[self.route.stands[claim.step]]
        if claim.door >= 0:
            door = self.house.doors[claim.door]
            assert stand.door == claim.door
            assert math.hypot(door.x - stand.x, door.y - stand.y) < 0.5
            assert claim.room in door.rooms
        else:
            assert stand.stairs


def test_every_claim_is_true(examples: list[Example]) -> None:
    kinds = set()
    for one, route, said in examples:
        checker = Checker(one, route)
        for claim in itertools.chain.from_iterable(phrase.claims for phrase in said):
            checker.check(claim)
            kinds.add(claim.about)
    assert kinds == set(get_args(Subject))


def test_every_landmark_word_names_a_claimed_landmark(examples: list[Example]) -> None:
    """Read the text alone: 'the blue leather sofa' needs a claimed sofa that is blue and of leather."""
    nouns = "|".join(sorted(map(re.escape, {*LANDMARK_WORDS, *ROOM_WORDS}), key=len, reverse=True))
    adjectives = "|".join([*COLOURS, *MATERIAL_WORDS.values()])
    pattern = re.compile(rf"\b(?:the|an?) ((?:(?:{adjectives}) )*)({nouns})\b")
    for (_, _, around), _, said in examples:
        for text, claims in said:
            claimed = [around.landmarks[claim.landmark] for claim in claims if claim.about == "sees"]
            rooms = [around.house.rooms[claim.room].kind for claim in claims if claim.about == "room"]
            for described, noun in pattern.findall(text):
                if noun in ROOM_WORDS and noun not in LANDMARK_WORDS:
                    assert ROOM_WORDS[noun] in rooms, text
                    continue
                fits = [thing for thing in claimed if noun in WORDS_OF[thing.kind]]
                for adjective in described.split():
                    fits = [t for t in fits if adjective in (t.colour, MATERIAL_WORDS.get(t.material))]
                assert fits, (described, noun, text)


def test_sides_ordinals_and_stairs_are_said_as_claimed(examples: list[Example]) -> None:
    for text, claims in itertools.chain.from_iterable(said for _, _, said in examples):
        sides = Counter(claim.side for claim in claims if claim.side in ("left", "right"))
        assert Counter(re.findall(r"\b(left|right)\b", text)) == sides, text
        numbers = [ORDINALS.index(word) + 1 for word in re.findall("|".join(ORDINALS), text)]
        claimed = [claim.number for claim in claims if claim.about == "ordinal"]
        assert len(numbers) + len(re.findall(r"\blast door", text)) == len(claimed)
        assert not set(numbers) - set(claimed)
        climbs = re.findall(r"\b(up|down) the (?:stair|step)", text)
        assert climbs == [claim.side for claim in claims if claim.about == "stairs"]


def test_instructions_are_varied_sentences_that_end_with_where_to_stop(examples: list[Example]) -> None:
    assert all(len({phrase.text for phrase in said}) == len(STYLES) == 3 for _, _, said in examples)
    texts = [phrase.text for _, _, said in examples for phrase in said]
    for text in texts:
        assert re.fullmatch(r"([A-Z][^.]+\.)( [A-Z][^.]+\.)*", text), text
        assert re.search(r"(?i:stop|wait|halt|pause)[^.]*\.$", text), text
        assert "  " not in text
        assert 5 <= len(text.split()) <= 110
    assert len(set(texts)) > 0.98 * len(texts)
    assert 15 < np.mean([len(text.split()) for text in texts]) < 50
    assert len({word for text in texts for word in re.findall(r"[a-z]+", text.lower())}) > 150
    hidden = 0  # instructions that name what cannot be seen from the start
    for (_, _, around), route, said in examples:
        named = {claim.landmark for phrase in said for claim in phrase.claims if claim.about == "sees"}
        hidden += any(number not in around.seen[route.stands[0]] for number in named)
    assert hidden > 0.8 * len(examples)


def test_turn_words() -> None:
    words = {0: "", -30: "", 90: "right", -60: "left", 170: "around", -178: "around"}
    assert {degrees: turn_word(math.radians(degrees)) for degrees in words} == words
