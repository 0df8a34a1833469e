"""All checks, in the order they are shown."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import cast

from brisk.doctor.base import Check, Deployment, Finding, Verdict

CHECKS = (
    "interpreter",
    "protocol",
    "threads",
    "spinning",
    "scheduling",
    "freezing",
    "scheduling_groups",
    "shared_memory",
    "left_regions",
    "descriptors",
    "cache",
    "artefacts",
    "auto_complete",
    "forked_stubs",
    "operators",
)


def examine(deployment: Deployment) -> Iterator[Finding]:
    """A check that fails itself is a finding, and stops no other."""
    for name in CHECKS:
        check = cast(Check, importlib.import_module(f"brisk.doctor.{name}"))
        try:
            yield from check.look(deployment)
        except Exception as error:  # noqa: BLE001  # whatever it is: the others must be heard
            text = f"the check itself failed: {type(error).__name__}: {error}"
            yield Finding(check.NAME, Verdict.UNKNOWN, text)
