"""Phrases: names of landmarks, rooms, turns and doors, each with what is claimed by using it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from scenemem.houses import lexicon
from scenemem.houses.catalogue import KINDS, MATERIAL_WORDS
from scenemem.houses.legs import Leg, doors_ahead
from scenemem.houses.mentions import Claim, Finder, Side
from scenemem.houses.room_kinds import ROOM_KINDS
from scenemem.houses.surroundings import turn_between

T = TypeVar("T")

_SLIGHT, _CLEAR, _BACK = math.radians(35), math.radians(55), math.radians(150)
_AT_HAND = 2.2  # metres; doors farther away are not "on the left"
_BUILDING_WORDS = {"window": ("window",), "front door": ("front door", "main door")}


class Phrase(NamedTuple):
    """Words and what they claim."""

    text: str
    claims: tuple[Claim, ...] = ()


def joined(*parts: Phrase | str) -> Phrase:
    """Phrases and plain words in one phrase; empty ones leave no trace."""
    phrases = [Phrase(part) if isinstance(part, str) else part for part in parts]
    text = " ".join(phrase.text for phrase in phrases if phrase.text)
    return Phrase(text, tuple(claim for phrase in phrases for claim in phrase.claims))


@dataclass(frozen=True)
class Style:
    """How a speaker likes to tell the way; shares between 0 and 1."""

    landmarks: float  # how often a landmark is mentioned where there is one
    turns: float  # how often a turn is mentioned where something else tells the way
    rooms: float  # how often rooms are named
    colours: float  # how often the colour of a thing is named
    detail: float  # how often going straight on is mentioned where there is nothing to see


class Wording:
    """The phrases of one speaker on one route."""

    def __init__(self, finder: Finder, style: Style, rng: np.random.Generator) -> None:
        self.finder = finder
        self.around = finder.around
        self.house = finder.around.house
        self.route = finder.route
        self.style = style
        self.rng = rng
        self.named: set[int] = set()  # landmarks mentioned so far

    def chance(self, share: float) -> bool:
        """True in ``share`` of all cases."""
        return bool(self.rng.random() < share)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[int(self.rng.integers(len(options)))]

    def landmark(self, number: int, place: int) -> Phrase:
        """A landmark as seen from a place of the route: 'the blue sofa', 'a wooden desk'."""
        self.named.add(number)
        thing = self.around.landmarks[number]
        words = KINDS[thing.kind].words if thing.kind in KINDS else _BUILDING_WORDS[thing.kind]
        rivals = self.finder.rivals(number, place)
        adjectives = []
        telling = any(self.around.landmarks[other].colour != thing.colour for other in rivals)
        if self._has_colours(thing.kind) and self.chance(0.9 if telling else self.style.colours):
            adjectives.append(thing.colour)
        material = MATERIAL_WORDS.get(thing.material)
        if material and thing.kind in KINDS and len(KINDS[thing.kind].materials) > 1 and self.chance(0.2):
            adjectives.append(material)
        noun = " ".join([*adjectives, self.pick(words)])
        article = "the" if not rivals or self.chance(0.5) else _a(noun)
        return Phrase(f"{article} {noun}", (Claim("sees", place, landmark=number),))

    def fresh(self, numbers: Sequence[int]) -> list[int]:
        """The landmarks among these that were not mentioned yet."""
        return [number for number in numbers if number not in self.named]

    def room(self, number: int, place: int) -> Phrase:
        """A room that is at, or entered from, a place of the route: 'the kitchen'."""
        words = ROOM_KINDS[self.house.rooms[number].kind].words
        word = words[0] if self.chance(0.7) else self.pick(words)
        return Phrase(f"the {word}", (Claim("room", place, room=number),))

    def within(self, number: int) -> str:
        """The preposition for being in a room."""
        return "on" if self.house.rooms[number].kind == "porch" else "in"

    def turn(self, leg: Leg) -> Phrase:
        """The turn at the start of a leg, empty when it goes straight on."""
        side = turn_word(leg.turn)
        if not side:
            return Phrase("")
        slight = abs(leg.turn) < _CLEAR and self.chance(0.5)
        words = lexicon.BEAR[side] if slight else lexicon.TURN[side]
        return Phrase(self.pick(words), (Claim("turn", leg.start, side=side),))

    def door(self, leg: Leg, before: Leg | None) -> Phrase:
        """The door at the end of a leg: which one it is, as well as the surroundings allow."""
        counted = self.counted_door(leg, before)
        if counted.text and self.chance(0.8):
            return counted
        options = [self._beside, self._on_side] if self.chance(0.5) else [self._on_side, self._beside]
        for option in options:
            phrase = option(leg)
            if phrase.text:
                return phrase
        return counted if counted.text else Phrase(f"the {self._door_word(leg.door)}")

    def door_side(self, leg: Leg) -> Side:
        """The side a door lies on when one arrives at the start of a leg; empty when it is ahead or far."""
        if self.finder.length(leg) > _AT_HAND:
            return ""
        stand, door = self.route.stands[leg.start], self.house.doors[leg.door]
        x, y, _ = self.around.position[stand]
        bearing = turn_between(leg.before, math.atan2(door.x - float(x), door.y - float(y)))
        if not math.radians(30) < abs(bearing) < math.radians(150):
            return ""
        return "right" if bearing > 0 else "left"

    def _has_colours(self, kind: str) -> bool:
        return kind in KINDS and len(KINDS[kind].colours) > 1

    def _door_word(self, door: int) -> str:
        return "opening" if self.house.doors[door].style == "opening" else self.pick(lexicon.DOORWAY)

    def counted_door(self, leg: Leg, before: Leg | None) -> Phrase:
        """'the second door on the left', counted from where one starts down the hallway."""
        walk = before if before is not None and before.room == leg.room and before.door < 0 else leg
        if self.house.rooms[leg.room].kind != "hallway":
            return Phrase("")
        stand = self.route.stands[walk.start]
        x, y = (float(value) for value in self.around.position[stand][:2])
        for side in ("left", "right"):
            doors = doors_ahead(self.house, leg.room, x, y, walk.heading, side)
            if leg.door in doors and len(doors) > 1:
                number = doors.index(leg.door)
                word = lexicon.ORDINALS[number]
                if number == len(doors) - 1 and self.chance(0.4):
                    word = "last"
                claim = Claim("ordinal", walk.start, door=leg.door, side=side, number=number + 1)
                own = self.pick(("the", "your"))
                return Phrase(f"the {word} door on {own} {side}", (claim,))
        return Phrase("")

    def _beside(self, leg: Leg) -> Phrase:
        place = leg.stop - 1
        near = self.fresh(self.finder.beside_door(leg.door, place))
        if not near:
            return Phrase("")
        landmark = self.landmark(near[0], place)
        return joined("the", self._door_word(leg.door), self.pick(lexicon.BESIDE[:4]), landmark)

    def _on_side(self, leg: Leg) -> Phrase:
        side = self.door_side(leg)
        if not side:
            return Phrase("")
        claim = Claim("door side", leg.start, door=leg.door, side=side)
        own = self.pick(("the", "your"))
        return Phrase(f"the {self._door_word(leg.door)} on {own} {side}", (claim,))


def turn_word(angle: float) -> Side | Literal["around"]:
    """left, right or around; empty for a turn too small to mention."""
    if abs(angle) < _SLIGHT:
        return ""
    if abs(angle) > _BACK:
        return "around"
    return "right" if angle > 0 else "left"


def _a(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
