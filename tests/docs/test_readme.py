"""The README shows the commands first and the package as it is."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_commands_and_python_come_before_line_25() -> None:
    opening = "\n".join(README.splitlines()[:24])
    for line in ("make demo", "make test", "import scenemem as sm", "agent.walk("):
        assert line in opening


def test_every_file_the_readme_links_to_exists() -> None:
    links = {link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link}
    assert len(links) > 5
    assert [link for link in links if not (REPOSITORY / link).is_file()] == []


def test_the_tree_of_the_readme_is_the_package() -> None:
    tree = README[README.index("src/scenemem/\n") :]
    package = REPOSITORY / "src" / "scenemem"
    there = {path.name for path in package.glob("*.py") if not path.name.startswith("_")}
    there |= {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    named = set(re.findall(r"(?:^  |   )([a-z_]+(?:/|\.py))  ", tree, flags=re.MULTILINE))
    assert named - {"notebooks/", "docs/", "runs/"} == there - {"runs/"}
