"""The machine of a measurement: the processor, its cores, the versions of the engines."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from brisk_bench.harness.report import Report


def new_report(
    name: str, packages: Sequence[str], notes: Sequence[str] = (), **machine: Any
) -> Report:
    """Return a report of this machine, without rows and checks.

    ``packages``: distributions whose versions it lists if they are installed. ``machine`` adds to
      the machine's description.
    """
    described = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2),
        **machine,
    }
    versions = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return Report(name, described, versions, [], [], list(notes))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    model = fields.get("model name", platform.machine())
    return f"{model} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"
