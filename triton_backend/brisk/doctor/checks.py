"""All checks, in the order they are shown."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import cast

from brisk.doctor.base import Deployment, DeploymentCheck, Finding, Severity

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
