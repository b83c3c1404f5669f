"""What commands say: every message that a new user meets has its text tested here."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from scenemem.cli import main
from scenemem.commands import console
from scenemem.commands.table import COMMANDS
from scenemem.learning.trainer import StepReport
from scenemem.presets import PRESETS
from scenemem.runs.loop import TrainingStatus, duration

SMALL = ("--iterations", "2", "--learning.batch", "4", "--model.width", "16", "--selection.every", "1")


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    shown = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, shown.out, shown.err


@pytest.fixture(scope="module")
def trained(tiny_trainable: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "basic-0"
    flags = ("--data", str(tiny_trainable), "--out", str(out), "--selection.save-every", "1", "--no-replays")
    with pytest.raises(SystemExit) as caught:
        main(["train", "basic", *flags, *SMALL])
    assert caught.value.code == 0
    return out


def _status(iteration: int, validation: dict[str, float] | None = None) -> TrainingStatus:
    step = StepReport(losses={"imitation": 1.23456, "reward": -0.5}, gradient=1.0, episodes=4)
    return TrainingStatus(iteration, 1000, step, 45.4, validation)


def test_off_a_terminal_training_prints_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("scenemem.commands.console.time.monotonic", lambda: now)
    with console.training_bars(["ssm"], "sr") as watch:
        for iteration in range(1, 41):
            now += 2.0
            watch("ssm", _status(iteration))
        watch("ssm", _status(41, {"sr": 0.5}))
        watch("ssm", _status(42, {"sr": 0.5}))
        watch("ssm", _status(1000, {"sr": 0.5}))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "ssm: step 1 of 1,000, 45 episodes/s, imitation 1.235, reward -0.500",
        "ssm: step 16 of 1,000, 45 episodes/s, imitation 1.235, reward -0.500, 33 min left",
        "ssm: step 31 of 1,000, 45 episodes/s, imitation 1.235, reward -0.500, 32 min left",
        "ssm: step 41 of 1,000, 45 episodes/s, imitation 1.235, reward -0.500, validation sr 0.500, "
        "31 min left",
        "ssm: step 1,000 of 1,000, 45 episodes/s, imitation 1.235, reward -0.500, validation sr 0.500",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (4.4, "4 s"),
        (89, "89 s"),
        (91, "2 min"),
        (5399, "90 min"),
        (11_100, "3 h 05 min"),
        (2_250_000, "26 days"),
    ],
)
def test_spans_of_time_are_told_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds).replace("1 h 30 min", "90 min") == text


def test_a_narrow_terminal_keeps_count_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    narrow = Console(file=screen, force_terminal=True, width=48, color_system=None)
    monkeypatch.setattr(console, "console", narrow)
    with console.training_bars(["ssm-no-grounding"], "sr") as watch:
        watch("ssm-no-grounding", _status(12))
    last = screen.getvalue().split("\r")[-1]
    assert "12/1000" in last
    assert "-:--:--" in last


def _printed(monkeypatch: pytest.MonkeyPatch, agents: int, *, width: int = 80) -> str:
    """A table of eight intervals per agent."""
    screen = io.StringIO()
    monkeypatch.setattr(console, "output", Console(file=screen, width=width, color_system=None))
    rows = [[f"agent-{row}", *(f"+0.{row}8{n} [+0.059, +0.110]" for n in range(8))] for row in range(agents)]
    console.print_whole("distance", ("agent", *map(str, range(8))), rows)
    shown = screen.getvalue()
    for cell in (cell for row in rows for cell in row[1:]):
        assert cell in shown, "whole and in one line"
    assert max(map(len, shown.splitlines())) <= width
    return shown


def test_a_table_that_is_too_wide_is_turned_on_its_side(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _printed(monkeypatch, 2)
    assert shown.count("agent-1") == 1, "one table"
    assert "agent-0" in shown.splitlines()[2]
    assert _printed(monkeypatch, 2, width=300).splitlines()[4].split()[1] == "agent-0", "wide enough as it is"


def test_a_table_too_wide_either_way_is_broken_between_columns_and_never_in_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _printed(monkeypatch, 5).count("agent-4") == 4


def test_next_commands_are_quoted_for_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    console.say_next("eval", Path("my runs/a&b"), "--data", "~/$x", note="needs an extra")
    assert capsys.readouterr().err == "next: scenemem eval 'my runs/a&b' --data '~/$x'   # needs an extra\n"


def test_compare_against_shows_whole_intervals_at_80_columns(
    trained: Path,
    tiny_trainable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console.output, "_width", 80)
    other = tmp_path / "other"
    where = ("--data", tiny_trainable, "--out", other)
    flags = (*where, "--seed", 1, "--selection.save-every", 1, "--no-replays")
    assert _run(capsys, "train", "basic", *flags, *SMALL)[0] == 0
    described = json.loads((other / "preset.json").read_text())
    described["name"] = "rival"
    (other / "preset.json").write_text(json.dumps(described))
    code, out, _ = _run(capsys, "compare", trained, other, "--against", "basic", "--data", tiny_trainable)
    assert code == 0
    found = re.findall(r"[+-]\d+\.\d{3} \[[+-]\d+\.\d{3}, [+-]\d+\.\d{3}\]", out)
    assert len(found) == 16, "eight metrics, over paths and over buildings"


def test_the_end_of_a_training_names_what_comes_next(
    tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    flags = ("--data", tiny_trainable, "--out", out, "--selection.save-every", "1", "--no-replays")
    code, _, err = _run(capsys, "train", "basic", *flags, *SMALL)
    assert code == 0
    assert "basic: step 1 of 2, " in err
    assert f"The run: {out}, 2 steps: sr " in err
    assert f"next: scenemem eval {out} --data {tiny_trainable}" in err
    assert f"next: scenemem view {out} --data {tiny_trainable}" in err


@pytest.mark.parametrize("command", ["eval", "view", "serve", "compare", "speak eval"])
def test_a_run_that_is_not_there_is_told_before_anything_is_built(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def building(*_: object, **__: object) -> None:
        raise AssertionError("the houses must not be built")

    monkeypatch.setattr("scenemem.houses.build.default_houses", building)
    code, _, err = _run(capsys, *command.split(), tmp_path / "none")
    assert code == 2
    assert "none holds no run (no preset.json); start one with 'scenemem train'" in err


def test_a_run_without_the_checkpoint_is_told_too(
    trained: Path, tmp_path: Path, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = Path(shutil.copytree(trained, tmp_path / "half"))
    (half / "checkpoints" / "best.safetensors").unlink()
    code, _, err = _run(capsys, "eval", half, "--checkpoint", "best", "--data", tiny_trainable)
    assert (code, "half has no best checkpoint yet; let it train on with --resume" in err) == (2, True)


def test_forgetting_the_data_folder_is_told(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, "eval", trained)
    assert code == 2
    assert "not on the embedded houses; name that data folder with --data DIR" in err


def test_using_the_houses_is_told(
    monkeypatch: pytest.MonkeyPatch, tiny_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scenemem.houses.build.default_houses", lambda **_: tiny_data)
    code, _, err = _run(capsys, "eval", "expert")
    assert code == 0
    assert "no --data: the embedded houses are used; name --data DIR for other data" in err


def test_an_unknown_split_lists_those_there_are(
    trained: Path, tiny_trainable: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for agent in (trained, "expert"):
        code, _, err = _run(capsys, "eval", agent, "--split", "val_unsen", "--data", tiny_trainable)
        assert code == 2
        assert "has no split 'val_unsen' of r2r; did you mean val_unseen or val_seen" in err
    assert "There are: train, val_seen, val_unseen, test" in err


def test_typos_get_a_suggestion_and_a_short_list(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, "trian", "ssm")
    assert code == 2
    assert (
        err == "error: unknown command 'trian ssm'; did you mean scenemem train? 'scenemem --help' lists all "
        "commands\n"
    )
    _, _, err = _run(capsys, "data", "chek")
    assert err.startswith("error: unknown command 'data chek'; did you mean scenemem data check")
    _, _, err = _run(capsys, "train", "ssm-no-groundin")
    assert err.startswith("error: unknown preset 'ssm-no-groundin'; did you mean ssm-no-grounding")
    assert err.rstrip().endswith(f"and {len(PRESETS) - 8} more")


def test_every_command_that_takes_a_run_says_so_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("eval", "compare", "view", "report", "serve", "submit", "weights pack", "speak eval"):
        _, out, _ = _run(capsys, *command.split(), "--help")
        assert "weights:NAME" in " ".join(out.replace("│", " ").split()), command


def test_off_a_terminal_long_work_prints_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with console.progress_bar("building houses") as advance:
        for done in (1, 24, 30, 48):
            advance(done, 72)
    assert capsys.readouterr().err.splitlines() == [
        "building houses: 24 of 72, 62 s left",
        "building houses: 48 of 72, 31 s left",
    ]
    clock = iter([0.0, 60.0])
    with console.bytes_bar("fetching") as advance:
        advance(40_000_000, 118_000_000)
    assert capsys.readouterr().err == "fetching: 40.0 of 118.0 MB, 2 min left\n"


@pytest.mark.parametrize("command", ["eval", "compare", "view", "report", "serve", "submit", "weights pack"])
def test_a_device_that_is_not_there_is_told_by_every_command_that_walks(
    command: str,
    trained: Path,
    tiny_trainable: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    more = {
        "submit": ("--split", "test", "--out", tmp_path / "x.json"),
        "weights pack": ("--out", tmp_path / "x"),
    }
    words = (*command.split(), trained, "--data", tiny_trainable, *more.get(command, ()), "--device", "cuda")
    code, _, err = _run(capsys, *words)
    assert code == 2
    assert "--device cuda, but this machine has no such device; use --device cpu" in err


def test_eval_says_where_it_wrote(
    trained: Path, tiny_trainable: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", tiny_trainable)
    code, out, err = _run(capsys, "eval", trained, *data)
    assert code == 0
    assert f"written to {trained / 'results' / 'val_unseen.json'}" in err
    assert "%" not in out, "fractions, as everywhere else"
    place = tmp_path / "kept"
    code, _, err = _run(capsys, "eval", trained, *data, "--out", place, "--traces", 2)
    assert code == 0
    assert {file.name for file in place.iterdir()} == {
        "val_unseen.json",
        "val_unseen.jsonl",
        "val_unseen.stamp.json",
        "traces",
    }
    assert len(list((place / "traces").glob("val_unseen-*.json"))) == 2
    assert f"written to {place / 'traces'}" in err
    for flags, message in (
        (("expert", "--traces", 1), "'expert' is no run and keeps nothing; leave out --out and --traces"),
        ((trained, "--traces", -1), "--traces must be 0 or more, got -1"),
    ):
        code, _, err = _run(capsys, "eval", *flags, *data)
        assert (code, message in err) == (2, True)


def test_a_result_file_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = _run(capsys, "submit", tmp_path / "x", "--split", "test", "--out", tmp_path / "y.json")
    assert (code, "x: no such run folder and no such result file" in err) == (2, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "completion", shell)
    assert code == 0
    for name in COMMANDS:
        assert name.split()[-1] in out
    assert "weights:ssm-plus-houses" in out


def test_bash_completes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = _run(capsys, "completion", "bash")
    (tmp_path / "completion.sh").write_text(out)

    def completed(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        script = f"source completion.sh; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _scenemem; "
        script += 'printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        return done.stdout.split()

    assert completed("scenemem", "comp") == ["compare", "completion"]
    assert completed("scenemem", "data", "fe") == ["fetch", "features"]
    assert "ssm-no-grounding" in completed("scenemem", "train", "ssm-no")
    assert completed("scenemem", "eval", "weights:ssm-plus-h") == ["weights:ssm-plus-houses"]
    assert completed("scenemem", "eval", "x", "--split", "val_u") == ["val_unseen"]


def test_next_commands_can_be_typed_where_the_program_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "scenemem")])
    assert console.program() == str(Path(".venv", "bin", "scenemem"))
    monkeypatch.setattr("sys.argv", [str(tmp_path.parent / "scenemem")])
    assert console.program() == str(tmp_path.parent / "scenemem")
    monkeypatch.setattr("sys.argv", ["python -m pytest"])
    assert console.program() == "scenemem"
    (tmp_path / "scenemem").touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(tmp_path / ".venv" / "bin" / "scenemem")])
    assert console.program() == "scenemem"


def test_help_of_train_lists_the_presets_the_overlays_and_the_usual_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Presets: ssm (the paper's agent), ssm-plus (with our additions), basic (the baseline)." in shown
    for words in ("ssm-no-grounding", "duet", "--task r4r", "--recipe published", "--speaker RUN"):
        assert words in shown
    assert "scenemem train ssm --data DIR --features captions --task r4r" in shown
    assert "r2r-captions" not in shown
