"""Checksums of the packages that tests and CI install, because versions alone do not say what is in a file.

``python tools/hashes.py write`` gets from the package index the checksums of everything that constraints.txt
pins and writes constraints.sha256. ``python tools/hashes.py check REPORT`` compares them with what
``pip install --dry-run --report REPORT`` would install, before anything is installed: a pinned file with
another checksum is refused. pip's own ``--require-hashes`` needs a complete list for every Python, and no
editable package.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS, HASHES = ROOT / "constraints.txt", ROOT / "constraints.sha256"
INDEX = "https://pypi.org/simple"
_WANTED = re.compile(r"-(?:py2\.py3|py3\d*|cp3\d+)-(?:none|abi3|cp31[0-3])-(?:any|manylinux.*x86_64.*)\.whl$")
_LINK = re.compile(r'href="[^"]*?(?P<file>[^/"#]+)#sha256=(?P<sha256>[0-9a-f]{64})"')


def main() -> None:
    """Write the checksums, or compare a report of pip with them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("write", "check"))
    parser.add_argument("report", nargs="?", type=Path, help="what pip install --report wrote")
    chosen = parser.parse_args()
    if chosen.what == "write":
        HASHES.write_text(_written(_pinned(CONSTRAINTS.read_text(encoding="utf-8"))), encoding="utf-8")
        return
    if chosen.report is None:
        parser.error("check needs the report of pip")
    report = json.loads(chosen.report.read_bytes())
    foreign, unknown = compare(report, HASHES.read_text(encoding="utf-8"))
    for line in foreign:
        sys.stderr.write(f"error: {line}\n")
    if unknown:
        sys.stderr.write(f"without a checksum to compare: {', '.join(unknown)}\n")
    sys.exit(1 if foreign else 0)


def compare(report: dict[str, Any], hashes: str) -> tuple[list[str], list[str]]:
    """What pip would install beside known checksums  ->  what differs, and what has no known checksum"""
    known: dict[str, set[str]] = {}
    for line in hashes.splitlines():
        if line and not line.startswith("#"):
            pin, digest = line.split()
            known.setdefault(pin, set()).add(digest)
    foreign, unknown = [], []
    for item in report["install"]:
        about, source = item["metadata"], item["download_info"]
        pin = f"{normalised(about['name'])}=={about['version']}"
        digest = source.get("archive_info", {}).get("hashes", {}).get("sha256", "")
        if "dir_info" in source:  # the checkout itself
            continue
        if pin not in known or not digest:
            unknown.append(pin)
        elif digest not in known[pin]:
            seen = f"{source['url'].rpartition('/')[2]} has the sha256 {digest}"
            foreign.append(f"{seen}, which is none of {pin}'s; do not install it")
    return foreign, unknown


def normalised(name: str) -> str:
    """A package's name as an index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pinned(constraints: str) -> list[tuple[str, str]]:
    lines = (line.partition(";")[0].strip() for line in constraints.splitlines())
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return sorted((normalised(name), version) for name, version in pairs)


def _written(pins: list[tuple[str, str]]) -> str:
    lines = ["# Written by tools/hashes.py: the sha256 of every wheel for Linux on x86-64 that is pinned."]
    for name, version in pins:
        with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
            page = answer.read().decode("utf-8")
        start = f"{name.replace('-', '_')}-{version}-"
        digests = {
            link["sha256"]
            for link in _LINK.finditer(page)
            if _comparable(unquote(link["file"])).startswith(start) and _WANTED.search(unquote(link["file"]))
        }
        lines += [f"{name}=={version} {digest}" for digest in sorted(digests)]
        if not digests:
            sys.stderr.write(f"no wheel of {name} {version}\n")
    return "\n".join(lines) + "\n"


def _comparable(filename: str) -> str:
    """The name of a wheel with its package's name normalised."""
    name, dash, rest = filename.partition("-")
    return normalised(name).replace("-", "_") + dash + rest


if __name__ == "__main__":
    main()
