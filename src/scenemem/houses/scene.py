"""A house as solid boxes: walls with their openings, floors, ceilings, stairs and the parts of all things."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from scenemem.houses.catalogue import COLOURS, KINDS, MATERIALS, SEEN_KINDS
from scenemem.houses.records import Box, House
from scenemem.houses.shapes import SHAPES, placed
from scenemem.houses.solid import Solid
from scenemem.houses.staircase import steps
from scenemem.houses.walls import door_parts, floor_and_ceiling, walls

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

KIND_NUMBER = {kind: number for number, kind in enumerate(SEEN_KINDS)}
COLOUR_NUMBER = {colour: number for number, colour in enumerate(COLOURS)}
MATERIAL_NUMBER = {material: number for number, material in enumerate(MATERIALS)}
_WALKED_ON = ("floor", "ceiling", "grass", "rug", "stairs")  # or far above one's head


@dataclass(frozen=True)
class Scene:
    """B boxes and what each of them is."""

    low: FloatArray  # (B, 3) metres
    high: FloatArray  # (B, 3)
    kind: IntArray  # (B,) index into SEEN_KINDS
    colour: IntArray  # (B,) index into COLOURS
    material: IntArray  # (B,) index into MATERIALS
    landmark: IntArray  # (B,) index into landmarks.landmarks(house), -1 for the rest of the building
    storey: IntArray  # (B,)
    shuts: BoolArray  # (B,) whether nothing of the same storey can be seen behind it
    hinders: BoolArray  # (B,) whether one cannot walk through it

    def only(self, boxes: IntArray) -> Scene:
        """The scene with some of its boxes."""
        return Scene(**{field.name: getattr(self, field.name)[boxes] for field in fields(self)})


def build_scene(house: House) -> Scene:
    """All boxes of a house."""
    solids: list[Solid] = []
    for number in range(len(house.rooms)):
        solids += walls(house, number) + floor_and_ceiling(house, number)
    for door in house.doors:
        solids += door_parts(house, door)
    if house.stairs is not None:
        solids += steps(house.stairs)
    solids += _thing_parts(house)
    solids.append(Solid(Box(-60, -60, -0.4, 60, 60, -0.15), "grass", "green", "plant", 0))
    return _arrays(solids)


def _arrays(solids: list[Solid]) -> Scene:
    boxes = np.array([solid.box for solid in solids])
    return Scene(
        low=boxes[:, :3],
        high=boxes[:, 3:],
        kind=np.array([KIND_NUMBER[solid.kind] for solid in solids]),
        colour=np.array([COLOUR_NUMBER[solid.colour] for solid in solids]),
        material=np.array([MATERIAL_NUMBER[solid.material] for solid in solids]),
        landmark=np.array([solid.landmark for solid in solids]),
        storey=np.array([solid.storey for solid in solids]),
        shuts=np.array([solid.shuts for solid in solids]),
        hinders=np.array([solid.kind not in _WALKED_ON for solid in solids]),
    )


def _thing_parts(house: House) -> list[Solid]:
    solids = []
    for number, thing in enumerate(house.things):
        storey = house.rooms[thing.room].floor
        for part in SHAPES[KINDS[thing.kind].shape]:
            colour = part.paint or thing.colour
            solids.append(Solid(placed(thing, part), thing.kind, colour, thing.material, storey, number))
    return solids
