"""Regions of Triton's stubs in /dev/shm that no process uses any more.

They stay when a server and its stubs are killed at once. `brisk serve` removes those of its own
servers at its next start, where it can prove whose they are: in a container started anew with the
same /dev/shm it cannot, and other ways to start a server remove none.
"""

from __future__ import annotations

from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity
from brisk.triton.regions import left

NAME = "left regions"
_MOST_NAMED = 3


def look(deployment: Deployment) -> Iterator[Finding]:
    try:
        regions = left(deployment.shared_memory)
    except OSError as error:
        yield Finding(NAME, Severity.UNKNOWN, f"{deployment.shared_memory}: {error}")
        return
    if not regions:
        yield Finding(NAME, Severity.GOOD, f"none in {deployment.shared_memory} that nobody uses")
        return
    size_mib = sum(region.size_bytes for region in regions) / 2**20
    names = ", ".join(region.path.name for region in regions[:_MOST_NAMED])
    more = f" and {len(regions) - _MOST_NAMED} more" if len(regions) > _MOST_NAMED else ""
    yield Finding(
        NAME,
        Severity.ADVICE,
        f"{len(regions)} in {deployment.shared_memory} that no process seen from here has mapped, "
        f"{size_mib:.1f} MiB: {names}{more}",
        "servers and stubs that were killed have left them; they take memory until the machine "
        "starts anew",
        "start the server with `brisk serve`, which removes those of its own killed ones; remove "
        "others by rm, unless a container that is not seen from here shares the folder",
    )
