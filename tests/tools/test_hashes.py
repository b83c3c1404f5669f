"""The checksums of packages are compared before anything is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tools.hashes import compare, normalised

REPOSITORY = Path(__file__).resolve().parents[2]
HASHES = "# a remark\nsome-package==1.0 aa\nsome-package==1.0 bb\nother==2 cc\n"


def _item(name: str, version: str, sha256: str) -> dict[str, Any]:
    url = f"https://index/{name}-{version}-py3-none-any.whl"
    source = {"url": url, "archive_info": {"hashes": {"sha256": sha256}}}
    return {"metadata": {"name": name, "version": version}, "download_info": source}


def test_a_file_with_another_checksum_is_refused() -> None:
    report = {"install": [_item("Some_Package", "1.0", "bb"), _item("other", "2", "dd")]}
    told = "other-2-py3-none-any.whl has the sha256 dd, which is none of other==2's; do not install it"
    assert compare(report, HASHES) == ([told], [])


def test_what_has_no_known_checksum_is_named() -> None:
    local = _item("scenemem", "0", "")
    local["download_info"] = {"url": "file:///checkout", "dir_info": {"editable": True}}
    report = {"install": [_item("other", "3", "cc"), _item("other", "2", ""), local]}
    assert compare(report, HASHES) == ([], ["other==3", "other==2"])


def test_every_pinned_version_has_a_checksum() -> None:
    lines = Path(REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line.partition(";")[0].strip() for line in lines if "==" in line and not line.startswith("#")]
    known = (REPOSITORY / "constraints.sha256").read_text(encoding="utf-8").splitlines()
    listed = {line.split()[0] for line in known if not line.startswith("#")}
    assert {f"{normalised(name)}=={version}" for name, version in (pin.split("==") for pin in pins)} == listed
    assert all(re.fullmatch(r"\S+==\S+ [0-9a-f]{64}", line) for line in known if not line.startswith("#"))
