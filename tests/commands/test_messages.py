"""What commands print: every message that a new user meets has its text tested here."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from scenemem.commands import COMMANDS, console
from scenemem.learning.trainer import StepReport
from scenemem.presets import PRESETS
from scenemem.runs.loop import TrainingStatus, duration
from tests.commands.helpers import SMALL, Shell

QUICK = (*SMALL, "--iterations", 2, "--no-replays")


# progress


def _status(iteration: int, validation: dict[str, float] | None = None) -> TrainingStatus:
    step = StepReport(losses={"imitation": 1.23456, "reward": -0.5}, gradient=1.0, episodes=4)
    return TrainingStatus(iteration, 1000, step, 45.4, validation)


def test_off_a_terminal_training_prints_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("scenemem.commands.console.time.monotonic", lambda: now)
    with console.training_bar("ssm", "sr") as watch:
        for iteration in range(1, 41):
            now += 2.0
            watch(_status(iteration))
        watch(_status(41, {"sr": 0.5}))
        watch(_status(42, {"sr": 0.5}))
        watch(_status(1000, {"sr": 0.5}))
    facts = "45 episodes/s, imitation 1.235, reward -0.500"
    assert capsys.readouterr().err.splitlines() == [
        f"ssm: step 1 of 1,000, {facts}",
        f"ssm: step 16 of 1,000, {facts}, 33 min left",
        f"ssm: step 31 of 1,000, {facts}, 32 min left",
        f"ssm: step 41 of 1,000, {facts}, validation sr 0.500, 31 min left",
        f"ssm: step 1,000 of 1,000, {facts}, validation sr 0.500",
    ]


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((4.4, "4 s"), (89, "89 s"), (91, "2 min"), (5399, "90 min")),
        *((11_100, "3 h 05 min"), (2_250_000, "26 days")),
    ],
)
def test_spans_of_time_are_written_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds).replace("1 h 30 min", "90 min") == text


def test_a_narrow_terminal_keeps_count_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    narrow = Console(file=screen, force_terminal=True, width=48, color_system=None)
    monkeypatch.setattr(console, "console", narrow)
    with console.training_bar("ssm-no-grounding", "sr") as watch:
        watch(_status(12))
    last = screen.getvalue().split("\r")[-1]
    assert "12/1000" in last
    assert "-:--:--" in last


# tables


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
    assert shown.count("distance") == 1, "above the first part only"
    return shown


def test_a_wide_table_is_turned_or_broken_and_never_in_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = _printed(monkeypatch, 2)
    assert shown.count("agent-1") == 1, "one table"
    assert "agent-0" in shown.splitlines()[2], "on its side"
    assert _printed(monkeypatch, 2, width=300).splitlines()[4].split()[1] == "agent-0", "wide enough as it is"
    for agents, width, names in ((5, 80, 1), (3, 60, 1), (9, 80, 4), (9, 60, 8)):
        shown = _printed(monkeypatch, agents, width=width)
        assert shown.count("agent-2") == names, "too wide either way: broken where that takes fewer parts"


def test_compare_against_shows_whole_intervals_at_80_columns(
    basic: Path, ssm: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.output, "_width", 80)
    shown = shell("compare", basic, ssm, "--against", "basic")
    found = re.findall(r"[+-]\d+\.\d{3} \[[+-]\d+\.\d{3}, [+-]\d+\.\d{3}\]", shown)
    assert len(found) == 16, "eight metrics, over paths and over buildings"


# what comes next


def test_next_commands_are_quoted_for_the_shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "loaded_plugins", tuple)
    console.say_next("eval", Path("my runs/a&b"), "--data", "~/$x", note="needs an extra")
    assert capsys.readouterr().err == "next: scenemem eval 'my runs/a&b' --data '~/$x'   # needs an extra\n"
    monkeypatch.setattr(console, "loaded_plugins", lambda: ("my agents.py",))
    console.say_next("eval", "weights:it's!")
    typed = "scenemem eval 'weights:it'\"'\"'s!' --plugin 'my agents.py'"
    assert capsys.readouterr().err == f"next: {typed}\n", "with what the run needs"
    assert shlex.split(typed)[2:] == ["weights:it's!", "--plugin", "my agents.py"]


def test_next_commands_can_be_typed_where_the_program_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for started, program in ((".venv/bin/scenemem", ".venv/bin/scenemem"), ("python -m pytest", "scenemem")):
        monkeypatch.setattr("sys.argv", [started])
        assert console.program() == program
    (tmp_path / "scenemem").touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [".venv/bin/scenemem"])
    assert console.program() == "scenemem"


def test_a_training_names_what_comes_next(tiny_trainable: Path, tmp_path: Path, shell: Shell) -> None:
    out = tmp_path / "run"
    shown = shell("train", "basic", "--out", out, *QUICK)
    assert "basic: step 1 of 2, " in shown
    assert f"The run: {out}, 2 steps: sr " in shown
    for command in (f"eval {out}", f"view {out}", f"compare {out} OTHER_RUN"):
        assert f"next: scenemem {command} --data {tiny_trainable}" in shown


def test_eval_names_the_files_it_wrote(basic: Path, tmp_path: Path, shell: Shell) -> None:
    shown = shell("eval", basic)
    assert f"written to {basic / 'results' / 'val_unseen.json'}" in shown
    assert "%" not in shown, "fractions, as everywhere else"
    place = tmp_path / "kept"
    shown = shell("eval", basic, "--out", place, "--traces", 2)
    assert len(list((place / "traces").glob("val_unseen-*.json"))) == 2
    assert f"written to {place / 'traces'}" in shown


# mistakes


@pytest.mark.parametrize("command", ["eval", "view", "serve", "compare", "report", "speak eval"])
def test_a_run_that_is_not_there_is_refused_before_anything_is_built(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    monkeypatch.setattr("scenemem.houses.build.default_houses", None)
    refused = shell.split(*command.split(), tmp_path / "none", code=2).err
    assert "none holds no run (no preset.json); start one with 'scenemem train'" in refused


def test_what_is_missing_is_named(
    basic: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    half = Path(shutil.copytree(basic, tmp_path / "half"))
    (half / "checkpoints" / "best.safetensors").unlink()
    expected = "half has no best checkpoint yet; let it train on with --resume"
    assert expected in shell.refused("eval", half, "--checkpoint", "best")
    refused = shell.split("eval", basic, code=2).err
    assert "not on the embedded houses; name that data folder with --data DIR" in refused
    monkeypatch.setattr("scenemem.houses.build.default_houses", lambda **_: tiny_data)
    remark = "no --data: the embedded houses are used; name --data DIR for other data"
    assert remark in shell.split("eval", "expert").err


def test_an_unknown_split_lists_those_there_are(basic: Path, shell: Shell) -> None:
    for agent in (basic, "expert"):
        refused = shell.refused("eval", agent, "--split", "val_unsen")
        assert "has no split 'val_unsen' of r2r; did you mean val_unseen or val_seen" in refused
        assert "There are: train, val_seen, val_unseen, test" in refused


@pytest.mark.parametrize(
    ("words", "start", "end"),
    [
        ("trian ssm", "command 'trian ssm'; did you mean scenemem train?", "--help' lists all commands"),
        ("data chek", "command 'data chek'; did you mean scenemem data check", "data images"),
        ("train ssm-loca", "preset 'ssm-loca'; did you mean ssm-local", "and {more} more"),
    ],
)
def test_typos_get_a_suggestion_and_a_short_list(words: str, start: str, end: str, shell: Shell) -> None:
    refused = shell.split(*words.split(), code=2).err
    assert refused.startswith(f"error: unknown {start}")
    assert refused.endswith(end.format(more=len(PRESETS) - 8) + "\n")


@pytest.mark.parametrize("command", ["eval", "compare", "view", "report", "serve", "submit", "weights pack"])
def test_a_device_that_is_not_there_is_refused_by_every_command_that_walks(
    command: str, basic: Path, tmp_path: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    more = {
        "submit": ("--split", "test", "--out", tmp_path / "x.json"),
        "weights pack": ("--out", tmp_path / "x"),
    }
    refused = shell.refused(*command.split(), basic, *more.get(command, ()), "--device", "cuda")
    assert "--device cuda, but this machine has no such device; use --device cpu" in refused


EVAL = "eval BASIC --speaker SPEAKER"
DESCRIBE, AUGMENT = "speak describe SPEAKER", "speak augment SPEAKER --out x.json"
NO_RUN = "holds no run (no preset.json); start one with 'scenemem train'"
CHOOSE = "needs a --speaker to help choose among them"
WATCHED = "does not search, and a walk chosen among candidates cannot be watched; leave out --speaker"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train", "name a preset first: scenemem train PRESET; there are: ssm"),
        ("train hal9000", "unknown preset 'hal9000'; there are: ssm"),
        ("train basic --iterations 0", "error: iterations must be 1 or more, got 0"),
        ("train basic --threads 0", "error: --threads must be 1 or more, got 0"),
        ("train basic --seed -1", "error: --seed must be 0 or more, got -1"),
        ("train basic --walk.max-words 2", "max_words must be from 3 to"),
        ("eval SPEAKER", "holds a speaker, which describes paths; use it with 'scenemem speak'"),
        ("eval BASIC --split test", "keeps its goals secret"),
        ("eval BASIC --traces -1", "--traces must be 0 or more, got -1"),
        ("eval expert --traces 1", "'expert' is no run and keeps nothing; leave out --out and --traces"),
        ("eval expert --speaker SPEAKER", "'expert' draws no candidates; --speaker needs a trained run"),
        ("eval BASIC --candidates 4", f"--candidates 4 {CHOOSE}"),
        ("eval BASIC --candidates 0", f"--candidates 0 {CHOOSE}"),
        (f"{EVAL} --candidates 0", "the number of candidates must be 1 or more, got 0"),
        (f"{EVAL} --speaker-weight 2", "the speaker's weight must be in [0, 1], got 2.0"),
        (f"{EVAL} --split test", "'r2r test' keeps its goals secret"),
        (f"{EVAL} --processes 2", "with a speaker one process walks; leave out --processes or --speaker"),
        (f"{EVAL} --candidates 2 --traces 1", WATCHED),
        ("eval BASIC --speaker nowhere", f"nowhere {NO_RUN}"),
        ("eval BASIC --speaker BASIC", "holds no speaker; train one with 'scenemem speak train'"),
        ("compare", "name at least one run folder"),
        ("compare BASIC --processes 0", "--processes must be 1 or more, got 0"),
        ("compare BASIC --out table.doc", "expected a name ending in .md, .html or .svg"),
        (
            "compare BASIC --out t.svg",
            "t.svg: a picture shows differences from a row; name it with --against",
        ),
        ("report", "name at least one run folder: scenemem report RUN ..."),
        ("follow expert", f"expert {NO_RUN}"),
        ("submit x --split test", "name the leaderboard file with --out FILE, or --check to write none"),
        ("submit x --split test --out y --check", "or --check to write none; one of the two"),
        ("submit x --split test --out y", "x: no such run folder and no such result file"),
        ("weights pack BASIC --out x.bin", "the name of packed weights ends in .safetensors, that of a fold"),
        (
            "view BASIC --episode nope",
            "'r2r val_unseen' has no instruction 'nope'; its ids look like '2000_0'",
        ),
        ("view BASIC --count 0", "--count must be 1 or more, got 0"),
        ("view BASIC --out x.html", "x.html: with --episode one page is written and --out ends in .html"),
        ("view BASIC --episode 2000_0 --out x", "x: with --episode one page is written"),
        ("view none.json", "none.json: no such file"),
        (
            "view BASIC --split nope",
            "no split 'nope' of r2r; there are: train, val_seen, val_unseen, test, dev_u",
        ),
        ("view BASIC --split test", "secret, so nothing can be chosen; name an --episode"),
        ("view BASIC --speaker-weight 0.5", "--speaker-weight 0.5 needs a --speaker whose weight it is"),
        ("view BASIC --speaker SPEAKER", f"basic-0 {WATCHED}"),
        ("serve BASIC --port 70000", "--port must be in 0..65535, got 70000"),
        ("speak train parrot", "unknown speaker 'parrot'; there are: speaker, speaker-paper"),
        ("speak train --iterations 0", "iterations must be 1 or more, got 0"),
        ("speak train --seed -1", "--seed must be 0 or more, got -1"),
        ("speak train --features nothing", "no feature store 'nothing' (there are: tiny)"),
        ("speak eval SPEAKER --beam 0", "--beam must be 1 or more, got 0"),
        ("speak eval SPEAKER --agent nowhere", f"nowhere {NO_RUN}"),
        (DESCRIBE, "say what to describe: --path, --start and --goal, or --count"),
        (f"{DESCRIBE} --path s0 --count 1", "say what to describe"),
        (f"{DESCRIBE} --start s0", "a shortest path needs both ends: --start and --goal"),
        (f"{DESCRIBE} --path ' , '", "the path is empty, expected viewpoints separated by commas"),
        (f"{DESCRIBE} --path nowhere", "no scan has an included viewpoint 'nowhere'"),
        (f"{DESCRIBE} --path s0,nowhere", "scan 'spiral' has no included viewpoint 'nowhere'"),
        (f"{DESCRIBE} --path g00,g01", "several scans have a viewpoint 'g00' (grid, yard); name one with"),
        (f"{DESCRIBE} --path g00,g11 --scan grid", "no edge leads from grid_g00 to grid_g11"),
        (f"{DESCRIBE} --path s0 --scan attic", "unknown scan 'attic'"),
        (f"{DESCRIBE} --start g00 --goal g-alone --scan grid", "no way leads from grid_g00"),
        (f"{DESCRIBE} --count 0", "--count must be in 1.."),
        (f"{DESCRIBE} --count 1 --split test", "'r2r test' shows no paths"),
        (f"{DESCRIBE} --path s0 --beam 0", "the number of beams must be 1 or more, got 0"),
        (f"{AUGMENT} --keep 0", "--keep must be above 0 and at most 1, got 0"),
        (f"{AUGMENT} --sample --descriptions 0", "--descriptions must be 1 or more, got 0"),
        (f"{AUGMENT} --agent BASIC", "--agent helps to choose; say among what with --descriptions or --keep"),
        (f"{AUGMENT} --descriptions 2", "--descriptions compares texts that differ; add --sample"),
        (f"{AUGMENT} --count 0", "--count must be 1 or more, got 0"),
    ],
)
def test_mistakes_are_one_line(
    words: str,
    message: str,
    basic: Path,
    speaker: Path,
    tmp_path: Path,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"BASIC": basic, "SPEAKER": speaker}
    assert message in shell.refused(*(places.get(word, word) for word in shlex.split(words)))
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


# help


def test_every_command_that_takes_a_run_mentions_packed_weights(shell: Shell) -> None:
    for command in ("eval", "compare", "view", "report", "serve", "submit", "weights pack", "speak eval"):
        shown = shell.split(*command.split(), "--help").out
        assert "weights:NAME" in " ".join(shown.replace("│", " ").split()), command


def test_help_of_train_lists_the_presets_the_overlays_and_the_usual_commands(shell: Shell) -> None:
    shown = " ".join(shell.split("train", "--help").out.split())
    assert "Presets: ssm (the paper's agent), ssm-plus (with our additions), basic (the baseline)." in shown
    for words in ("ssm-no-grounding", "duet", "--task r4r", "--recipe published", "--speaker RUN"):
        assert words in shown
    assert "scenemem train ssm --data DIR --features captions --task r4r" in shown
    assert "r2r-captions" not in shown
    assert "--model.width" in shell.split("train", "basic", "--help").out


# completion


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts_have_every_command(name: str, shell: Shell) -> None:
    script = shell.split("completion", name).out
    for command in COMMANDS:
        assert command.split()[-1] in script
    assert "weights:ssm-plus-houses" in script
    assert "ssm-no-grounding" in script


def test_bash_completes(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "completion.sh").write_text(shell.split("completion", "bash").out)

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
