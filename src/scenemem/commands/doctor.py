"""``scenemem doctor``: one page about machine, installation and data, to paste into a bug report."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from contextlib import suppress
from typing import Any

from scenemem import __version__
from scenemem.commands.console import Data, Json, progress_bar, show, table
from scenemem.errors import UserError
from scenemem.formats.folder import DataFolder, cache_folder
from scenemem.registry import load_installed_plugins, loaded_plugins

_PACKAGES = (
    *("torch", "numpy", "safetensors", "msgspec", "gymnasium", "tyro", "rich", "jinja2", "pillow"),
    *("h5py", "transformers", "fastapi", "uvicorn", "sacrebleu", "tensorboard", "wandb"),  # optional ones
)
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SCENEMEM_CACHE", "SCENEMEM_DATA")


def doctor(data: Data = None, json: Json = False) -> None:
    """Show versions, devices, threads, the cache and (with --data) what 'data check' finds in a data folder.

    Nothing is sent anywhere.
    """
    found: dict[str, Any] = {"versions": _versions(), "machine": _machine(), "cache": _cache()}
    shown = [
        table(title, ("", ""), [(name, str(value)) for name, value in facts.items()])
        for title, facts in found.items()
    ]
    if data is not None:
        from scenemem.commands.data import contents
        from scenemem.runs.data_check import inspect_folder

        found["data"] = report = inspect_folder(DataFolder(data), progress_bar)
        shown.append(contents(report))
    show(json, found, *shown)


def _versions() -> dict[str, Any]:
    versions = dict.fromkeys(_PACKAGES, "not installed")
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    with suppress(UserError):  # a broken plugin is named below by its absence
        load_installed_plugins()
    return {
        "scenemem": __version__,
        "python": f"{platform.python_version()} ({sys.implementation.name})",
        "system": platform.platform(),
        **versions,
        "plugins": ", ".join(loaded_plugins()) or "none",
    }


def _machine() -> dict[str, Any]:
    import torch  # here, because --help needs none of it

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cards = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    memory = "unknown"
    with suppress(ValueError, OSError, AttributeError):
        memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GB"
    return {
        "processors": f"{usable} usable of {os.cpu_count()}",
        "torch threads": torch.get_num_threads(),
        "memory": memory,
        "graphics cards": ", ".join(cards) or "none",
        **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _cache() -> dict[str, Any]:
    folder = cache_folder()
    facts: dict[str, Any] = {"folder": str(folder), "exists": folder.is_dir()}
    if folder.is_dir():
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        facts |= {"writable": os.access(folder, os.W_OK), "size": f"{size / 2**20:.0f} MB"}
        facts["free"] = f"{shutil.disk_usage(folder).free / 2**30:.1f} GB"
    return facts
