"""Stopping a process by a descriptor of it, as best-effort work is in the middle of a layer.

Kernels before 5.3, and seccomp filters of their time, have no such descriptors.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity

NAME = "freezing"


def look(deployment: Deployment) -> Iterator[Finding]:
    refusal = _refusal()
    if refusal is None:
        yield Finding(NAME, Severity.GOOD, "best-effort layers can be stopped half-way")
        return
    yield Finding(
        NAME,
        Severity.ADVICE,
        f"processes cannot be stopped by their descriptors here ({refusal})",
        "a best-effort layer that a real-time request comes upon goes on beside it at nice 19: "
        "such requests took up to a tenth longer",
        "use Linux 5.3 or newer; allow pidfd_open and pidfd_send_signal in the container's "
        "seccomp profile",
    )


def _refusal() -> str | None:
    """Tried with a child that waits."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        handle = os.pidfd_open(child)
        try:
            for number in (signal.SIGSTOP, signal.SIGCONT):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
    except (OSError, AttributeError) as error:
        return str(error)
    finally:
        os.close(writing)
        os.waitpid(child, 0)
    return None
