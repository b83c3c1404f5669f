"""The table of public sources: the files each task and track needs, with address, licence and checksum."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from scenemem.errors import UserError
from scenemem.formats.annotations import read_table
from scenemem.registry import suggestion

MIRROR = "SCENEMEM_MIRROR"
"""Environment variable: fetch from this address, which holds every file under its own host and path."""

TERMS = "http://dovahkiin.stanford.edu/matterport/public/MP_TOS.pdf"
"""The terms of use of Matterport3D."""

MATTERPORT = "Matterport3D terms of use (non-commercial, academic)"

FOLDER = "originals"
"""Folder of a data folder for files that are converted; may be deleted afterwards."""

Converter = Literal["rooms", "objects", "words"]


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch."""

    url: str
    target: str  # where it goes, below the data folder
    size: int | None = None  # bytes; None when nobody has published it
    sha256: str | None = None  # of the file; None when it is not known


@dataclass(frozen=True)
class Source:
    """Files of one origin, fetched together."""

    name: str
    what: str
    page: str  # its home, for people
    licence: str  # of the repository; the Matterport terms come on top where ``about_buildings``
    address: str  # of the folder that holds the files
    folder: str  # where they go, below the data folder
    makes: str  # the file that says that the source is there; {} stands for each fetched file
    about_buildings: bool = True
    archive: RemoteFile | None = None  # a snapshot of a repository, of which one folder is used
    converter: Converter | None = None
    instead: tuple[str, ...] = ()  # patterns of files that serve as well

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """Everything to fetch; addresses follow ``SCENEMEM_MIRROR``."""
        listed = [
            RemoteFile(
                _mirrored(f"{self.address}/{row.file}"), f"{self.folder}/{row.file}", row.bytes, row.sha256
            )
            for row in _rows()
            if row.source == self.name
        ]
        if self.archive is not None:
            listed.append(
                RemoteFile(
                    _mirrored(self.archive.url), self.archive.target, self.archive.size, self.archive.sha256
                )
            )
        return tuple(listed)

    @property
    def results(self) -> tuple[str, ...]:
        """The files that are there when the source has been fetched and converted."""
        if "{}" in self.makes:
            return tuple(self.makes.format(Path(file.target).name) for file in self.files)
        return (self.makes,)


@dataclass(frozen=True)
class ByHand:
    """Files that no command may fetch: a licence has to be signed, or there is no plain address."""

    name: str
    what: str
    why: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Goal:
    """What somebody wants to do, and the sources that it takes."""

    name: str
    what: str
    sources: tuple[str, ...]
    next: tuple[str, ...] = ()  # commands that go on from there; DIR stands for the data folder
    by_hand: ByHand | None = None


def _raw(repository: str, commit: str, folder: str) -> str:
    return f"https://raw.githubusercontent.com/{repository}/{commit}/{folder}"


_REVERIE = "YuankaiQi/REVERIE"
_REVERIE_NOW = "0fe0955705c4c998729c33f59b1a4e965ab86e27"

BOXES_IN_ARCHIVE = "tasks/REVERIE/data/BBox/"
"""The folder of REVERIE's repository that holds the boxes."""

BOXES_DIGEST = "68582a52f252b55890b25ec3adad616a386c07a3cb9d857bc6ff5e25adc3cc22"
"""sha256 over the lines ``sha256  name`` of its files, by name; packing them anew does not change it."""

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "graphs",
            "navigation graphs of the 90 buildings",
            "https://github.com/peteanderson80/Matterport3DSimulator",
            "MIT",
            _raw(
                "peteanderson80/Matterport3DSimulator",
                "589d091b111333f9e9f9d6cfd021b2eb68435925",
                "connectivity",
            ),
            "connectivity",
            "connectivity/{}",
        ),
        Source(
            "r2r-episodes",
            "R2R: train, val_seen, val_unseen and test",
            "https://github.com/HanqingWangAI/SSM-VLN",
            "MIT",
            _raw("HanqingWangAI/SSM-VLN", "f0146ce81ab2a8e4ec2aa72058a4de5b40e00a96", "tasks/R2R/data"),
            "r2r",
            "r2r/{}",
        ),
        Source(
            "reverie-episodes",
            "REVERIE, second version: train, val_seen, val_unseen and test",
            f"https://github.com/{_REVERIE}",
            "none stated",
            _raw(_REVERIE, _REVERIE_NOW, "tasks/REVERIE/data_v2"),
            "reverie",
            "reverie/{}",
        ),
        Source(
            "landmarks",
            "which words of an instruction are about which viewpoint (LAR2R)",
            "https://github.com/cwhao98/DDL",
            "MIT",
            _raw("cwhao98/DDL", "f4cdea29ab6afc84e2c1fce4d8ff2306809a5c13", "LAR2R"),
            "lar2r",
            "lar2r/{}",
        ),
        Source(
            "langnav",
            "BLIP captions and DETR detections of every view (LangNav)",
            "https://github.com/pbw-Berwin/LangNav",
            "MIT",
            _raw(
                "pbw-Berwin/LangNav",
                "f2536e620a05cfba33083b16bc6140eed7213731",
                "img_features/r2r_blip_DETR_vis2text",
            ),
            "captions/r2r_blip_DETR_vis2text",
            "captions/r2r_blip_DETR_vis2text/{}",
            instead=("captions/langnav*.t*",),
        ),
        Source(
            "boxes",
            "boxes of annotated objects in the views (REVERIE); of its repository only this folder is kept",
            f"https://github.com/{_REVERIE}",
            "none stated",
            "",
            FOLDER,
            "objects/BBox.tar.gz",
            archive=RemoteFile(
                f"https://codeload.github.com/{_REVERIE}/tar.gz/{_REVERIE_NOW}", f"{FOLDER}/REVERIE.tar.gz"
            ),
            converter="objects",
            instead=("objects/view_objects.jsonl*", "objects/BBox"),
        ),
        Source(
            "positions",
            "3-D centres of the annotated objects (REVERIE, an earlier commit)",
            f"https://github.com/{_REVERIE}",
            "none stated",
            _raw(_REVERIE, "58a17aaf3e07ee6a4ef07f33b1c4715ab3620ffa", "tasks/REVERIE/data_v2"),
            FOLDER,
            "objects/object_positions.tsv",
            converter="objects",
        ),
        Source(
            "labels",
            "categories of the object labels (Matterport3D)",
            "https://github.com/niessner/Matterport",
            "MIT",
            _raw("niessner/Matterport", "8cd7c81aff5824d578caa8cf5b79e2896bfe7f34", "metadata"),
            FOLDER,
            "objects/labels.tsv",
            converter="objects",
        ),
        Source(
            "rooms",
            "room of every viewpoint (LAD)",
            "https://github.com/zehao-wang/LAD",
            "none stated",
            _raw("zehao-wang/LAD", "d842041f417cc69417b48b248f1bf3997b38e692", "dataset/REVERIE/annotations"),
            FOLDER,
            "rooms/viewpoint_rooms.tsv",
            converter="rooms",
        ),
        Source(
            "words",
            "GloVe vectors of the 1,082 words of R2R (Speaker-Follower)",
            "https://github.com/ronghanghu/speaker_follower",
            "BSD-2-Clause",
            _raw("ronghanghu/speaker_follower", "e4dcdf923ecacf7893397bd9821377e71e32a75a", "tasks/R2R/data"),
            FOLDER,
            "glove/glove_300d.npz",
            about_buildings=False,
            converter="words",
        ),
    )
}
"""Every source by its name."""

IMAGES = ByHand(
    "images",
    "pictures of the buildings, or features computed from them",
    "the pictures are given out only to people who have signed the Matterport3D terms of use",
    (
        "pictures: sign the terms at https://niessner.github.io/Matterport/ and fetch "
        "matterport_skybox_images with the script you are sent; then "
        "'scenemem data images --images FOLDER --encoder NAME --data DIR'",
        "or features: ResNet-152-imagenet (2.9 GB), linked from "
        "https://github.com/peteanderson80/Matterport3DSimulator#precomputing-resnet-image-features; "
        "then 'scenemem data features FILE.tsv --data DIR'",
    ),
)

GOALS: dict[str, Goal] = {
    goal.name: goal
    for goal in (
        Goal(
            "r2r",
            "score and submit results on R2R",
            ("graphs", "r2r-episodes"),
            ("scenemem data r4r --data DIR",),
        ),
        Goal(
            "captions",
            "agents that read captions of the views",
            ("graphs", "r2r-episodes", "langnav", "words"),
            ("scenemem data captions --data DIR",),
        ),
        Goal(
            "objects",
            "agents that see annotated objects",
            ("graphs", "r2r-episodes", "boxes", "positions", "labels", "words"),
            ("scenemem data objects --no-oracle --data DIR",),
        ),
        Goal(
            "oracle",
            "the upper bound: annotated objects and rooms; what the published R2R weights see",
            ("graphs", "r2r-episodes", "boxes", "positions", "labels", "rooms", "words"),
            ("scenemem data objects --data DIR", "scenemem eval weights:ssm-plus-r2r-oracle --data DIR"),
        ),
        Goal(
            "images",
            "agents that see pictures",
            ("graphs", "r2r-episodes"),
            by_hand=IMAGES,
        ),
        Goal("reverie", "REVERIE's instructions", ("graphs", "reverie-episodes")),
        Goal(
            "grounding",
            "word labels for 'scenemem follow --grounding'",
            ("graphs", "r2r-episodes", "landmarks"),
            ("scenemem follow RUN --grounding --data DIR",),
        ),
    )
}
"""What ``scenemem data fetch`` can be asked for, by name."""

MORE = (
    ByHand(
        "glove-6b",
        "all 400,000 words of GloVe instead of the 1,082 of R2R",
        "it is large (about 0.8 GB) and its checksum has not been published",
        (
            "fetch glove.6B.zip from https://nlp.stanford.edu/projects/glove/",
            "then 'scenemem data convert glove.6B.zip --data DIR'",
        ),
    ),
    ByHand(
        "navgpt",
        "BLIP-2 captions (NavGPT), a second captioner for the track captions",
        "it is shared as a folder without a plain address",
        (
            "fetch the data linked from https://github.com/GengzeZhou/NavGPT",
            "put its folder observations_list/ into DIR/captions/",
        ),
    ),
    ByHand(
        "house-files",
        "room labels from the .house files of Matterport3D",
        "the files are given out only to people who have signed the Matterport3D terms of use",
        (
            "sign the terms at https://niessner.github.io/Matterport/ and fetch house_segmentations",
            "then 'scenemem data convert FOLDER --data DIR'",
        ),
    ),
)
"""Further originals that can be used and not fetched."""


def find_sources(names: tuple[str, ...]) -> list[Source]:
    """The sources behind names of goals or sources, each once, in the order of the table.

    Raises:
        UserError: there is no such name.
    """
    wanted: set[str] = set()
    for name in names:
        if name not in GOALS and name not in SOURCES:
            known = dict.fromkeys((*GOALS, *SOURCES))
            raise UserError(f"there is nothing called '{name}' to fetch; {suggestion(name, known)}")
        wanted |= set(GOALS[name].sources) if name in GOALS else {name}
    return [source for name, source in SOURCES.items() if name in wanted]


def missing_results(source: Source, root: Path) -> list[str]:
    """The results of a source that a data folder lacks, in any form that serves."""
    if any(next(root.glob(pattern), None) for pattern in source.instead):
        return []
    return [
        name for name in source.results if not any((root / form).exists() for form in (name, f"{name}.gz"))
    ]


class _Row(msgspec.Struct, frozen=True):
    source: str
    file: str
    bytes: int
    sha256: str


@cache
def _rows() -> tuple[_Row, ...]:
    return tuple(read_table(Path(__file__).with_name("files.tsv"), _Row))


def _mirrored(url: str) -> str:
    mirror = os.environ.get(MIRROR)
    return url if not mirror else f"{mirror.rstrip('/')}/{url.partition('://')[2]}"
