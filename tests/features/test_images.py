"""Features from pictures: geometry of views and skyboxes, encoders, and work that goes on after a kill."""

from __future__ import annotations

import fcntl
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import networkx as nx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torch import Tensor

from scenemem.errors import DataError, UserError
from scenemem.features.images import HousesSmall, TransformersEncoder, build_image_features, open_encoder
from scenemem.features.pictures import Camera, DrawnHouses, PictureFiles, read_cameras, resample_views
from scenemem.formats.connectivity import write_scan
from scenemem.formats.features import StoreInfo, read_store, verify_store
from scenemem.formats.folder import DataFolder
from scenemem.houses.build import lay_out
from scenemem.houses.pictures import draw_view
from tests.conftest import scan_from_graph
from tests.features.picture_files import write_views

Floats = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]

FACING_NORTH = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
"""A pose that faces north: x is east, y is down, z is north."""

SIZE = (64, 48)


# Geometry


def colour_of(direction: Floats) -> Pixels:
    """An environment in which every direction (east, north, up) has a colour of its own."""
    unit = direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    return np.asarray(((unit + 1) * 127.5).round(), dtype=np.uint8)


def camera_rays(view: int, size: tuple[int, int]) -> Floats:
    """A camera of our own: index = heading step + 12 * row, row 0 looks down, 60 degrees high."""
    heading, elevation = math.radians(30 * (view % 12)), math.radians(30 * (view // 12 - 1))
    flat = np.array([math.sin(heading), math.cos(heading), 0.0])
    forward = flat * math.cos(elevation) + np.array([0.0, 0.0, math.sin(elevation)])
    right = np.array([math.cos(heading), -math.sin(heading), 0.0])
    up = np.cross(right, forward)
    (width, height), half = size, math.tan(math.radians(30))
    across = ((np.arange(width) + 0.5) / (width / 2) - 1) * half * width / height
    down = ((np.arange(height) + 0.5) / (height / 2) - 1) * half
    return np.asarray(forward + across[None, :, None] * right - down[:, None, None] * up)


def opengl_skybox(rotation: Floats, side: int) -> Pixels:
    """The environment as skybox files hold it, by the rules of the Matterport3D simulator.

    It loads image 2 as the cube map's +x, 4 as -x, 0 as +y, 5 as -y, 1 as +z and 3 as -z, and looks up
    minus the direction in the frame of the pose; the cases are those of the OpenGL specification.
    """
    edge = (np.arange(side) + 0.5) / side * 2 - 1
    s, t = np.broadcast_arrays(edge[None, :], edge[:, None])
    one = np.ones_like(s)
    cube = {2: (one, -t, -s), 4: (-one, -t, s), 0: (s, one, t)}
    cube |= {5: (s, -one, -t), 1: (s, -t, one), 3: (-s, -t, -one)}
    return np.stack([colour_of(-np.stack(cube[face], axis=-1) @ rotation.T) for face in range(6)])


def turned(angle: float) -> Floats:
    """The pose of a camera that faces somewhere else and is tilted a little, as the real ones are."""
    turn = np.array(
        [[math.cos(angle), math.sin(angle), 0], [-math.sin(angle), math.cos(angle), 0], [0, 0, 1]]
    )
    tilt = np.array([[1, 0, 0], [0, math.cos(0.02), -math.sin(0.02)], [0, math.sin(0.02), math.cos(0.02)]])
    return np.asarray(turn @ tilt @ FACING_NORTH)


@pytest.mark.parametrize("angle", [0.0, 1.0, -2.3])
def test_views_of_a_skybox_show_every_direction_where_it_is(angle: float) -> None:
    views = resample_views(opengl_skybox(turned(angle), 128), turned(angle), SIZE)
    assert len(views) == 36
    for number, view in enumerate(views):
        assert view.size == SIZE
        expected = colour_of(camera_rays(number, SIZE)).astype(int)
        assert np.abs(np.asarray(view).astype(int) - expected).max() <= 3, f"view {number}"


def camera(viewpoint: str = "v", rotation: Floats = FACING_NORTH) -> Camera:
    return Camera("scan", viewpoint, rotation)


def save(pixels: Pixels, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


@pytest.mark.parametrize("folder", ["scan", "scan/matterport_skybox_images"])
@pytest.mark.parametrize("name", ["v_skybox{}_sami.png", "v_skybox{}_small.png", "v_skybox_small.png"])
def test_skyboxes_are_found_under_their_public_names(folder: str, name: str, tmp_path: Path) -> None:
    faces = opengl_skybox(turned(0.5), 32)
    if "{}" in name:
        for number, face in enumerate(faces):
            save(face, tmp_path / folder / name.format(number))
    else:
        save(np.concatenate(list(faces), axis=1), tmp_path / folder / name)
    views = PictureFiles(tmp_path, SIZE).views(camera(rotation=turned(0.5)))
    expected = resample_views(faces, turned(0.5), SIZE)
    assert all(one.tobytes() == other.tobytes() for one, other in zip(views, expected, strict=True))


def test_a_missing_or_odd_skybox_face_is_named(tmp_path: Path) -> None:
    faces = opengl_skybox(FACING_NORTH, 8)
    for number in (0, 1, 2, 4, 5):
        save(faces[number], tmp_path / "scan" / f"v_skybox{number}_sami.jpg")
    with pytest.raises(DataError, match=r"viewpoint v, skybox face 3: no 'v_skybox3_sami\.jpg'"):
        PictureFiles(tmp_path).check(camera())
    save(faces[3][:4], tmp_path / "scan" / "v_skybox3_sami.jpg")
    reason = "a skybox of 6 faces of 8 x 4 and 8 x 8 pixels, expected 6 equal squares"
    with pytest.raises(DataError, match=f"scan scan, viewpoint v: {reason}"):
        PictureFiles(tmp_path).views(camera())


def test_a_drawn_house_looks_as_its_views_do(tmp_path: Path) -> None:
    house = lay_out(0, 0)[0].house
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "home.json").write_bytes(msgspec.json.encode(house))
    pictures = DrawnHouses(DataFolder(tmp_path))
    views = pictures.views(Camera("home", house.stands[5].viewpoint, np.eye(3)))
    view = 25  # heading 30 degrees, 30 degrees up
    drawn = draw_view(house, 5, math.radians(30), math.radians(30)).resize(SIZE, Image.Resampling.BOX)
    distance = [np.abs(np.asarray(one, float) - np.asarray(drawn, float)).mean() for one in views]
    assert int(np.argmin(distance)) == view
    assert distance[view] < 5
    with pytest.raises(DataError, match="scan home, viewpoint nowhere: no such viewpoint on the plan"):
        pictures.check(Camera("home", "nowhere", np.eye(3)))
    with pytest.raises(
        UserError, match="no plans of houses to draw; name a folder of pictures with `images`"
    ):
        DrawnHouses(DataFolder(tmp_path / "plans"))


# Files of views


class Drawn:
    """Pictures made up from the name of the viewpoint, noisy so that no two encode alike."""

    description = "made up"

    def check(self, camera: Camera) -> None:
        """Every viewpoint has pictures."""

    def views(self, camera: Camera) -> list[Image.Image]:
        rng = np.random.default_rng(list(camera.key.encode()))
        return [Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)) for _ in range(36)]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of five viewpoints, one of them not included, and ``pictures`` of the four others."""
    root = tmp_path_factory.mktemp("pictured")
    graph = nx.path_graph(5)
    for node in graph:
        graph.nodes[node].update(position=(2.0 * node, 0.0, 1.5), included=node != 4)
    write_scan(root / "connectivity", scan_from_graph("scan", nx.relabel_nodes(graph, "v{}".format)))
    write_views(Drawn(), read_cameras(DataFolder(root)), root / "pictures", ".png")
    return root


def build(root: Path, target: Path, **options: Any) -> StoreInfo:
    pictures = PictureFiles(root / "pictures")
    options = {"encoder": HousesSmall(), **options}
    return build_image_features(DataFolder(root), target, pictures, **options)


@pytest.mark.parametrize("batch", [1, 5, 36, 100])
def test_rows_are_those_of_each_picture_alone(batch: int, pictured: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    info = build(pictured, tmp_path / "i.npy", batch=batch, progress=lambda *done: seen.append(done))
    assert verify_store(tmp_path / "i.npy") == info
    assert info.keys == ("scan_v0", "scan_v1", "scan_v2", "scan_v3"), (
        "no pictures are needed of excluded ones"
    )
    assert (info.source, info.encoder) == ("pictures in pictures, 4 viewpoints", HousesSmall.name)
    assert (info.track, info.sensor) == ("images", "a camera with an image encoder")
    assert seen == [(done, 4) for done in range(1, 5)]
    _, values = read_store(tmp_path / "i.npy")
    for row, one in zip(values, read_cameras(DataFolder(pictured)), strict=True):
        for view, picture in zip(row, Drawn().views(one), strict=True):
            alone = HousesSmall().encode([picture])[0].numpy()
            np.testing.assert_allclose(view, alone, atol=1e-5, rtol=5e-4)  # rtol: stored in half precision
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["i.json", "i.npy"], "nothing is left over"


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (
        lambda folder: (folder / "v2/17.png").unlink(),
        r"v2: scan scan, viewpoint v2, view 17: no '17\.jpg' or '17\.png', expected 36 pictures",
    ),
    "cut": (
        lambda folder: _cut(folder / "v1/35.png"),
        r"35\.png: scan scan, viewpoint v1, view 35: not a readable picture",
    ),
    "text": (
        lambda folder: (folder / "v1/35.png").write_text("no picture at all"),
        r"view 35: not a readable picture \(.*\); is the file complete\?",
    ),
    "none": (
        lambda folder: shutil.rmtree(folder / "v3"),
        r"viewpoint v3: no pictures of this viewpoint of the world; expected scan/v3/<0-35>\.jpg",
    ),
    "doubled": (
        lambda folder: shutil.copy(folder / "v0/7.png", folder / "v0/07.png"),
        r"view 7: there are '07\.png' and '7\.png', expected one picture",
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_missing_broken_or_doubled_picture_is_named(pictured: Path, case: str, tmp_path: Path) -> None:
    spoil, message = SPOILT[case]
    root = Path(shutil.copytree(pictured, tmp_path / "copy"))
    spoil(root / "pictures" / "scan")
    with pytest.raises(DataError, match=message):
        build(root, root / "i.npy")
    assert not (root / "i.npy").exists()
    if "readable" not in message:
        assert not list(root.glob(".i*")), "it was found before any work"


def test_impossible_settings_are_refused(pictured: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder; `images` expects one with a folder per scan"):
        PictureFiles(tmp_path / "nowhere")
    with pytest.raises(UserError, match="batch must be 1 or more, got 0"):
        build(pictured, tmp_path / "i.npy", batch=0)
    with pytest.raises(UserError, match="device 'abacus' cannot be used"):
        open_encoder("houses-small", "abacus")


# Going on after an interruption; a kill is in tests/commands/test_images_command.py


class InterruptedHereError(Exception):
    """Stands for a kill."""


class Interrupted(HousesSmall):
    """Fails after some calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
        if not self.calls:
            raise InterruptedHereError
        self.calls -= 1
        return super().encode(pictures)


@pytest.mark.parametrize(("batch", "calls", "left"), [(36, 2, 2), (20, 5, 4), (80, 1, 1), (200, 0, 1)])
def test_finished_viewpoints_are_not_encoded_again(
    batch: int, calls: int, left: int, pictured: Path, tmp_path: Path
) -> None:
    with pytest.raises(InterruptedHereError):
        build(pictured, tmp_path / "i.npy", batch=batch, encoder=Interrupted(calls))
    assert not (tmp_path / "i.npy").exists()
    resumed = Interrupted(left)
    build(pictured, tmp_path / "i.npy", batch=batch, encoder=resumed)
    assert resumed.calls == 0, "exactly the unfinished viewpoints were encoded"
    build(pictured, tmp_path / "o.npy", batch=batch)
    assert (tmp_path / "i.npy").read_bytes() == (tmp_path / "o.npy").read_bytes()
    assert (tmp_path / "i.json").read_bytes() == (tmp_path / "o.json").read_bytes()


@pytest.mark.parametrize("batch", [36, 80])  # a viewpoint or two at once
@pytest.mark.parametrize("damage", ["values", "cut values", "cut head", "empty"])
def test_damaged_leftovers_are_encoded_again(damage: str, batch: int, pictured: Path, tmp_path: Path) -> None:
    with pytest.raises(InterruptedHereError):
        build(pictured, tmp_path / "i.npy", batch=batch, encoder=Interrupted(1 if batch == 80 else 3))
    unfinished = tmp_path / ".i.npy.unfinished"
    content = bytearray(unfinished.read_bytes())
    assert len(content) > 36 * 276 * 2
    content[len(content) // 2] ^= 1 if damage == "values" else 0
    unfinished.write_bytes(content[: {"cut values": -5, "cut head": 9, "empty": 0}.get(damage)])
    build(pictured, tmp_path / "i.npy", batch=batch)
    build(pictured, tmp_path / "o.npy", batch=batch)
    assert (tmp_path / "i.npy").read_bytes() == (tmp_path / "o.npy").read_bytes()
    assert not unfinished.exists()


def test_leftovers_of_other_settings_are_not_mixed_in(pictured: Path, tmp_path: Path) -> None:
    with pytest.raises(InterruptedHereError):
        build(pictured, tmp_path / "i.npy", encoder=Interrupted(2))
    with pytest.raises(
        UserError, match=r"made with other settings than .* and batch 9; use the same, choose"
    ):
        build(pictured, tmp_path / "i.npy", batch=9)
    build(pictured, tmp_path / "i.npy")


def test_two_processes_do_not_build_the_same_store(pictured: Path, tmp_path: Path) -> None:
    with (tmp_path / ".i.npy.unfinished").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is building this store; wait for it"):
            build(pictured, tmp_path / "i.npy")


def test_numbers_that_are_not_finite_are_neither_stored_nor_kept(pictured: Path, tmp_path: Path) -> None:
    class Broken(HousesSmall):
        def encode(self, pictures: Sequence[Image.Image]) -> Tensor:
            encoded = super().encode(pictures)
            encoded[4, 7] = torch.nan
            return encoded

    for _ in range(2):
        with pytest.raises(DataError, match="'scan_v0', view 4, column 7 is nan, expected a finite number"):
            build(pictured, tmp_path / "i.npy", encoder=Broken())
    assert len((tmp_path / ".i.npy.unfinished").read_bytes().splitlines()) == 1, "only the settings"


# Encoders


def test_the_small_encoder_tells_colours_sides_and_edges() -> None:
    pixels = np.full((48, 64, 3), 255, np.uint8)
    pixels[:, :20] = (255, 0, 0)
    (row,) = HousesSmall().encode([Image.fromarray(pixels)]).numpy()
    assert row.shape == (276,)
    red, white = 3 * 16, 63
    assert row[red] == pytest.approx(math.sqrt(20 / 22))
    assert row[64 + white] == row[128 + white] == 1
    cells = row[192:].reshape(7, 3, 4)
    assert cells[0] == pytest.approx(np.ones((3, 4)))
    assert (cells[3].argmax(axis=1) == 1).all(), "the edge between red and white stands upright"
    assert cells[4:].max() == 0
    large = Image.fromarray(pixels).resize((640, 480), Image.Resampling.NEAREST)
    np.testing.assert_allclose(HousesSmall().encode([large])[0].numpy(), row, atol=1e-6)


def test_an_unknown_encoder_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError) as caught:
        open_encoder("openai/clip-vit-base-patch32")
    assert str(caught.value) == (
        "encoder 'openai/clip-vit-base-patch32' is not built in (houses-small), and others need "
        "transformers, which is not installed; run: pip install 'scenemem[images]'"
    )


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {**SMALL, "image_size": 32, "patch_size": 16}
TEXT = {**SMALL, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 8}
FAMILIES = {"resnet": "pooled output", "vit": "class token", "dinov2": "class token"}
FAMILIES |= {"clip": "image embedding", "siglip": "image embedding"}


@pytest.fixture(scope="module")
def transformers() -> Iterator[Any]:
    library = pytest.importorskip("transformers", reason="needs transformers: pip install 'scenemem[images]'")
    library.utils.logging.set_verbosity_error()
    library.utils.logging.disable_progress_bar()
    yield library
    library.utils.logging.enable_progress_bar()
    library.utils.logging.set_verbosity_warning()


@pytest.fixture(scope="module")
def model_folder(transformers: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Saves a tiny network of a family with weights drawn at random."""
    root = tmp_path_factory.mktemp("models")

    def made(family: str) -> Path:
        folder = root / family
        if folder.exists():
            return folder
        t = transformers
        layers = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
        torch.manual_seed(3)
        model = {
            "resnet": lambda: t.ResNetModel(t.ResNetConfig(**layers)),
            "vit": lambda: t.ViTForImageClassification(t.ViTConfig(**VISION)),  # has no pooler
            "dinov2": lambda: t.Dinov2Model(t.Dinov2Config(**VISION)),
            "clip": lambda: t.CLIPModel(
                t.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=12)
            ),
            "siglip": lambda: t.SiglipModel(t.SiglipConfig(text_config=TEXT, vision_config=VISION)),
        }[family]()
        model.save_pretrained(folder)
        t.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
        return folder

    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_networks_of_transformers_encode_each_picture_as_alone(
    family: str, model_folder: Callable[[str], Path], pictured: Path, tmp_path: Path
) -> None:
    encoder = open_encoder(str(model_folder(family)))
    assert open_encoder(str(model_folder(family))).name == encoder.name, "or a killed run could not go on"
    info = build(pictured, tmp_path / "i.npy", encoder=encoder)
    assert info.width == {"clip": 12}.get(family, 16)
    assert info.encoder.startswith(f"{family}, {FAMILIES[family]} of "), (
        "the name of the folder, not its place"
    )
    _, values = read_store(tmp_path / "i.npy")
    one = read_cameras(DataFolder(pictured))[1]
    views = Drawn().views(one)
    alone = torch.cat([encoder.encode([view]) for view in views])
    np.testing.assert_allclose(encoder.encode(views).numpy(), alone.numpy(), atol=1e-5)
    np.testing.assert_array_equal(values[1], encoder.encode(views).numpy().astype(np.float16))
    assert alone.std(dim=0).max() > 1e-3, "pictures are told apart"


def test_the_class_token_is_that_of_the_network(
    transformers: Any, model_folder: Callable[[str], Path]
) -> None:
    folder = model_folder("vit")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8))
    network = transformers.ViTForImageClassification.from_pretrained(folder).eval()
    pixels = transformers.AutoImageProcessor.from_pretrained(folder)(images=picture, return_tensors="pt")
    with torch.no_grad():
        expected = network.vit(**pixels).last_hidden_state[:, 0]
    encoded = TransformersEncoder(str(folder)).encode([picture])
    np.testing.assert_allclose(encoded.numpy(), expected.numpy(), atol=1e-6)


def test_the_checksum_follows_weights_and_preparation(
    transformers: Any, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = model_folder("dinov2")
    other = Path(shutil.copytree(folder, tmp_path / "dinov2"))
    first = TransformersEncoder(str(folder)).name
    assert first == TransformersEncoder(str(other)).name
    assert len(first.rpartition("sha256 ")[2]) == 64
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}, do_normalize=False).save_pretrained(
        other
    )
    assert TransformersEncoder(str(other)).name != first
    network = transformers.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        network.layernorm.weight[0] += 0.5
    network.save_pretrained(folder.parent / "changed")
    shutil.copy(folder / "preprocessor_config.json", folder.parent / "changed")
    changed = TransformersEncoder(str(folder.parent / "changed")).name
    assert changed.rpartition("sha256 ")[2] != first.rpartition("sha256 ")[2]


def test_a_model_that_cannot_be_used_is_refused(
    transformers: Any, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    expected = r"empty' is neither built in \(houses-small\) nor a model that transformers can load \(.*\)"
    with pytest.raises(UserError, match=expected):
        open_encoder(str(tmp_path / "empty"))
    with pytest.raises(
        UserError, match=r"expected the name of a model on the hub or a folder with config\.json"
    ):
        open_encoder("./no/such/place")
    network = transformers.AutoModel.from_pretrained(model_folder("resnet"))
    weights = {key: value for key, value in network.state_dict().items() if "encoder.stages.1" not in key}
    network.save_pretrained(tmp_path / "resnet", state_dict=weights)
    shutil.copy(model_folder("resnet") / "preprocessor_config.json", tmp_path / "resnet")
    with pytest.raises(UserError, match=r"resnet': \d+ weights are missing, first 'encoder\.stages\.1"):
        open_encoder(str(tmp_path / "resnet"))
