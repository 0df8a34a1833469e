"""What a measurement was made on: the processor, its cores, the versions of the engines."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from brisk_client.report import Report


def new_report(
    name: str, packages: Sequence[str], notes: Sequence[str] = (), **machine: Any
) -> Report:
    """Without rows and checks. ``machine`` adds to what describes it."""
    described = {**describe_machine(), **machine}
    return Report(name, described, installed_versions(*packages), [], [], list(notes))


def describe_machine() -> dict[str, Any]:
    """Processor, cores, memory, kernel, and how busy the machine is just now."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2),
    }


def installed_versions(*packages: str) -> dict[str, str]:
    """Versions by distribution name; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in fields.items()}
    model = named.get("model name", platform.machine())
    return f"{model} (family {named.get('cpu family', '?')}, model {named.get('model', '?')})"
