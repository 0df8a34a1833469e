"""Open files: every model instance takes a connection and some shared memories of the runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from brisk.doctor.base import Deployment, Finding, Severity

NAME = "open files"
WANTED = 4096


def look(deployment: Deployment) -> Iterator[Finding]:
    process = "self" if deployment.server is None else str(deployment.server)
    limits = Path(f"/proc/{process}/limits").read_text().splitlines()
    hard = next(line for line in limits if line.startswith("Max open files")).split()[4]
    if hard == "unlimited" or int(hard) >= WANTED:
        yield Finding(NAME, Severity.GOOD, f"up to {hard}")
        return
    yield Finding(
        NAME,
        Severity.ADVICE,
        f"up to {hard}",
        f"with more than about {int(hard) // 8} model instances further ones cannot connect",
        f"raise the hard limit: docker run --ulimit nofile={WANTED}:65536",
    )
