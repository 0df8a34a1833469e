"""/dev/shm: Triton's stubs keep their queues and the tensors in flight there, 1 MiB each at least.

Brisk's own tensors lie in memfds, which no limit of /dev/shm touches. Docker gives 64 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity

NAME = "shared memory"
WANTED_BYTES = 256 * 2**20
NEEDED_BYTES = 16 * 2**20


def look(deployment: Deployment) -> Iterator[Finding]:
    try:
        status = os.statvfs(deployment.shared_memory)
    except OSError as error:
        yield Finding(NAME, Severity.UNKNOWN, f"{deployment.shared_memory}: {error}")
        return
    size, free = status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail
    found = f"{size / 2**20:.0f} MiB, {free / 2**20:.0f} MiB of them free"
    if free >= WANTED_BYTES:
        yield Finding(NAME, Severity.GOOD, found)
        return
    yield Finding(
        NAME,
        Severity.PROBLEM if free < NEEDED_BYTES else Severity.ADVICE,
        found,
        "loads fail or stubs die of SIGBUS when it is full: each model instance takes 1 MiB, each "
        "request in flight as much as its tensors",
        "start the container with --shm-size=1g (Kubernetes: an emptyDir of medium Memory at "
        "/dev/shm)",
    )
