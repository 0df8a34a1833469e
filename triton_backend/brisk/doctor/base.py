"""What a check is given, and what it says."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol, cast


class Severity(str, Enum):
    """``ADVICE`` costs something, ``PROBLEM`` stops something from working; ``UNKNOWN`` cannot
    be seen from here."""

    GOOD = "good"
    ADVICE = "advice"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """``found``: what is. ``cost``: measured or documented. ``change``: what to do about it.

    A good or unknown finding has neither cost nor change.
    """

    check: str
    verdict: Severity
    found: str
    cost: str = ""
    change: str = ""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is looked at.

    ``environment`` and ``command`` are those of the running server; where none was found
    (``server`` None), the environment of this process and no command. ``shared_memory`` and
    ``cgroup`` are paths as that server sees them.
    """

    server: int | None
    environment: Mapping[str, str]
    command: tuple[str, ...]
    repositories: tuple[Path, ...]
    device: str
    shared_memory: Path
    cgroup: Path


class DeploymentCheck(Protocol):
    """A module of this package; its docstring says why the matter is one."""

    NAME: str

    def look(self, deployment: Deployment) -> Iterator[Finding]:
        """One or more findings."""


CHECKS = (
    "installation.interpreter",
    "installation.protocol",
    "machine.threads",
    "machine.spinning",
    "machine.scheduling",
    "machine.suspension",
    "machine.scheduling_groups",
    "machine.shared_memory",
    "installation.left_regions",
    "machine.descriptors",
    "installation.cache",
    "installation.artefacts",
    "installation.auto_complete",
    "installation.forked_stubs",
    "installation.operators",
)


def examine(deployment: Deployment) -> Iterator[Finding]:
    """A check that fails itself is a finding, and stops no other."""
    for name in CHECKS:
        check = cast(DeploymentCheck, importlib.import_module(f"brisk.doctor.{name}"))
        try:
            yield from check.look(deployment)
        except Exception as error:  # noqa: BLE001  # whatever it is: the others must be heard
            text = f"the check itself failed: {type(error).__name__}: {error}"
            yield Finding(check.NAME, Severity.UNKNOWN, text)
