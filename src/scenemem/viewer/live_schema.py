"""What the live page's interface takes and gives: requests, answers and the events of a walk."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

LONGEST_INSTRUCTION = 2_000
"""Characters; agents read far less."""


def _says_something(text: str) -> str:
    if not text.strip():
        raise ValueError("the instruction is empty; say where to go")
    return text


House = Annotated[
    str, Field(max_length=200, description="a house (scan) of this world", examples=["house-00"])
]
Viewpoint = Annotated[
    str, Field(max_length=200, description="id of a place of the house", examples=["house-00-007"])
]
Degrees = Annotated[
    float,
    Field(ge=-360.0, le=360.0, allow_inf_nan=False, description="clockwise from north", examples=[90.0]),
]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WalkRequest(_Request):
    """Let every agent follow an instruction."""

    house: House
    start: Viewpoint
    heading_degrees: Annotated[Degrees, Field(description="where the agent looks at the start")] = 0.0
    instruction: Annotated[
        str,
        Field(
            min_length=1,
            max_length=LONGEST_INSTRUCTION,
            description="what to do, in any words",
            examples=["Leave the kitchen, turn left and wait by the sofa."],
        ),
        AfterValidator(_says_something),
    ]
    goal: Annotated[
        str | None,
        Field(max_length=200, description="place to be reached, if there is one; the agents never see it"),
    ] = None


class DescriptionRequest(_Request):
    """Let the speaker put the shortest route between two places into words."""

    house: House
    start: Viewpoint
    goal: Viewpoint
    heading_degrees: Annotated[
        Degrees | None,
        Field(description="where one looks at the start; along the route when left out"),
    ] = None


class Description(BaseModel):
    """A route in words."""

    text: str
    path: list[int] = Field(description="numbers of the places on the route, both ends included")
    metres: float
    log_likelihood: float = Field(description="of the text, given the route")


class SpeakerState(BaseModel):
    """Who describes routes, or why nobody does."""

    name: str | None
    off_because: str | None


class HouseSummary(BaseModel):
    """A house to choose."""

    house: str
    places: int
    examples: int = Field(description="how many instructions are suggested for it")


class Session(BaseModel):
    """What can be done here."""

    agents: list[str]
    speaker: SpeakerState
    houses: list[HouseSummary]
    longest_instruction: int = LONGEST_INSTRUCTION


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str = Field(examples=["unknown house 'atlantis'; this world has 72 houses"])
