"""Mutants: ``python -m benchmarks.faults.mutants --count 180 --out FILE``; goes on where it was stopped.

One comparison, sign, number or condition of the core is changed, and the tests of that file have to fail. The
changes are those of cosmic-ray (``pip install cosmic-ray``). Its own runner starts an interpreter for every
mutant and loads torch again; here tests run in forks of a process that has loaded it, in a copy of the
checkout. What is printed and reported of a mutant is its line before and after.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).resolve().parents[2]

TESTS = {
    "evaluation/metrics.py": ("evaluation/test_metrics.py",),
    "models/navigator.py": ("models/test_navigator.py",),
    "ssm/graph.py": ("ssm/test_graph.py",),
    "ssm/reading.py": ("ssm/test_reading.py", "ssm/test_paper.py"),
    "ssm/deciding.py": ("ssm/test_deciding.py", "ssm/test_paper.py"),
    "learning/objectives.py": ("learning/test_objectives_labels.py", "learning/test_objectives.py"),
    "tasks/episode_set.py": ("tasks/test_episode_set.py", "tasks/test_episode_set_batches.py"),
    "tasks/paths.py": ("tasks/test_paths.py",),
    "tasks/vocabulary.py": ("tasks/test_vocabulary.py",),
    "formats/connectivity.py": ("formats/test_connectivity.py",),
    "formats/decoding.py": ("formats/test_decoding.py",),
    "formats/episodes.py": ("formats/test_episodes.py",),
    "formats/results.py": ("formats/test_results.py",),
    "formats/tensors.py": ("formats/test_tensors.py", "learning/test_checkpoint.py"),
}
"""Files of the package, and the tests that have to kill their mutants."""

_SWAPS = {
    "Binary": (
        "Add_Sub",
        "Sub_Add",
        "Mul_Div",
        "Div_Mul",
        "FloorDiv_Mul",
        "Mod_Mul",
        "BitAnd_BitOr",
        "BitOr_BitAnd",
    ),
    "Comparison": (
        "Eq_NotEq",
        "NotEq_Eq",
        "Lt_LtE",
        "LtE_Lt",
        "Gt_GtE",
        "GtE_Gt",
        "Lt_GtE",
        "Gt_LtE",
        "Is_IsNot",
        "IsNot_Is",
    ),
    "Unary": ("Delete_USub", "Delete_Invert", "Delete_Not"),
}
OPERATORS = (
    *(f"core/Replace{kind}Operator_{swap}" for kind, swaps in _SWAPS.items() for swap in swaps),
    *(f"core/Replace{swap}" for swap in ("AndWithOr", "OrWithAnd", "TrueWithFalse", "FalseWithTrue")),
    *("core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak"),
    *("core/NumberReplacer", "core/AddNot", "core/ZeroIterationForLoop"),
)
"""The changes that are made, by their names in cosmic-ray."""

_LOADED = ("numpy", "torch", "safetensors.torch", "msgspec", "hypothesis.strategies", "networkx", "pytest")
_COPIED = ("src", "tests", "pyproject.toml")
_FORK = multiprocessing.get_context("fork")
_MEMORY = 8 << 30  # bytes a mutant may take


@dataclass(frozen=True)
class Mutant:
    """One change to one file of the package."""

    file: str
    operator: str  # name in cosmic-ray
    occurrence: int  # which of the places where the operator fits
    line: int
    before: str
    after: str

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.file} {self.operator} {self.occurrence}"


def main() -> None:
    """Try mutants of every file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=180, help="mutants, shared out among the files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="one file, as in evaluation/metrics.py")
    parser.add_argument("--out", type=Path, help="JSON file to write, or to go on with")
    chosen = parser.parse_args()
    for module in _LOADED:
        importlib.import_module(module)
    found = _before(chosen.out, chosen.seed)
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(place))
        for file, tests in TESTS.items():
            if chosen.only in ("", file):
                count = -(-chosen.count // len(TESTS))
                for tried in copy.attempts(file, tests, count, chosen.seed, found.setdefault(file, {})):
                    print(*tried.values(), sep="  ", flush=True)
                    if chosen.out is not None:
                        _write(chosen.out, chosen.seed, found)


def sampled(file: str, source: str, count: int, seed: int) -> dict[Mutant, str]:
    """Some of the mutants of a file, with its changed content: the kinds of changes take turns."""
    nodes, plain, lines = list(ast_nodes(get_ast(source))), _executed(source), source.splitlines()
    chance, places = random.Random(f"{seed} {file}"), list[tuple[int, float, str, int]]()
    for name in OPERATORS:
        operator = get_operator(name)()
        fits = sum(1 for node in nodes for _ in operator.mutation_positions(node))
        order = chance.sample(range(fits), fits)
        places += [(turn, chance.random(), name, place) for turn, place in enumerate(order)]
    found: dict[Mutant, str] = {}
    for _, _, name, place in sorted(places):
        if len(found) == count:
            break
        code: str = mutate_code(source, get_operator(name)(), place)
        if _executed(code) not in (plain, None):
            changed = enumerate(zip(lines, code.splitlines(), strict=True), start=1)
            line, (before, after) = next((line, pair) for line, pair in changed if pair[0] != pair[1])
            found[Mutant(file, name, place, line, before.strip(), after.strip())] = code
    return found


def _executed(source: str) -> str | None:
    """What is executed of a file, without annotations and kinds of parameters; None for invalid syntax."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # the "/" of positional parameters became another operator
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            node.args = [*node.posonlyargs, *node.args, *node.kwonlyargs]
            node.defaults += [default for default in node.kw_defaults if default is not None]
            node.posonlyargs, node.kwonlyargs, node.kw_defaults = [], [], []
        for name in {"annotation", "returns"} & set(node._fields):
            setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


class Copy:
    """A copy of the package and its tests, whose files are changed one at a time."""

    def __init__(self, root: Path) -> None:
        self.root, self.package = root, root / "src" / "scenemem"
        for name in _COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, root / name)
        # bytecode is good for the same content only: times are too coarse for changes that follow each other
        compileall.compile_dir(
            self.package, quiet=1, force=True, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )

    def attempts(
        self, file: str, tests: Sequence[str], count: int, seed: int, known: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """Try those mutants of a file that are not known; adds them to what is known, and yields them."""
        source = (self.package / file).read_text(encoding="utf-8")
        digest = hashlib.sha256(source.encode()).hexdigest()
        if known.get("sha256") != digest:
            known.update(sha256=digest, mutants={})
        missing = {
            mutant: code
            for mutant, code in sampled(file, source, count, seed).items()
            if mutant.name not in known["mutants"]
        }
        if not missing:
            return
        started = time.monotonic()
        if self.outcome(tests, seconds=600) != "survived":
            sys.exit(f"{', '.join(tests)} fail without a change already")
        seconds = 20 + 4 * (time.monotonic() - started)
        for mutant, code in missing.items():
            (self.package / file).write_text(code, encoding="utf-8")
            known["mutants"][mutant.name] = {**asdict(mutant), "outcome": self.outcome(tests, seconds)}
            yield known["mutants"][mutant.name]
        (self.package / file).write_text(source, encoding="utf-8")

    def outcome(self, tests: Sequence[str], seconds: float) -> str:
        """Run tests in a fork of this process  ->  ``survived``, ``killed`` or ``hung``."""
        process = _FORK.Process(target=_run, args=(self.root, tests))
        process.start()
        process.join(seconds)
        if process.is_alive():
            process.kill()
            process.join()
            return "hung"
        return "killed" if process.exitcode else "survived"


def _run(root: Path, tests: Sequence[str]) -> None:
    """Run tests on the copy, silently, and leave with the exit code of pytest."""
    import pytest
    from hypothesis import Phase, settings

    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    os.chdir(root)
    sys.path[:] = [str(root), str(root / "src"), *(place for place in sys.path if Path(place) != ROOT)]
    examples = (Phase.explicit, Phase.generate)  # a failing example need not become a simple one
    settings.register_profile("mutants", settings(phases=examples, database=None, derandomize=True))
    settings.load_profile("mutants")
    loaded = "ignore::pytest.PytestAssertRewriteWarning"  # plugins that are loaded already
    flags = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not real_data", "-W", loaded]
    code = int(pytest.main([*flags, *(f"tests/{test}" for test in tests)]))
    ours = Path(sys.modules["scenemem"].__file__ or "")
    os._exit(code if root in ours.parents else 99)


def _before(file: Path | None, seed: int) -> dict[str, Any]:
    """What an earlier call found with the same seed, by file."""
    if file is None or not file.is_file():
        return {}
    known = json.loads(file.read_bytes())
    found: dict[str, Any] = known["files"] if known["seed"] == seed else {}
    return found


def _write(file: Path, seed: int, found: dict[str, Any]) -> None:
    mutants = [mutant for known in found.values() for mutant in known.get("mutants", {}).values()]
    report = {
        "date": date.today().isoformat(),
        "seed": seed,
        "outcomes": Counter(mutant["outcome"] for mutant in mutants),
        "survivors": [mutant for mutant in mutants if mutant["outcome"] == "survived"],
        "files": found,
    }
    partial = file.with_name(f".{file.name}.partial")
    partial.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    partial.replace(file)


if __name__ == "__main__":
    main()
