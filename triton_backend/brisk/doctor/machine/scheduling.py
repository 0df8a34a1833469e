"""SCHED_IDLE, under which artefacts are built and learned caches trained; a seccomp filter or an
old sandbox may refuse it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity
from brisk.os_priority import run_when_idle

NAME = "scheduling classes"


def look(deployment: Deployment) -> Iterator[Finding]:
    if _is_allowed():
        yield Finding(NAME, Severity.GOOD, "SCHED_IDLE may be used here")
        return
    yield Finding(
        NAME,
        Severity.ADVICE,
        "SCHED_IDLE is refused here",
        "what is made in the background runs at nice 19, as best-effort requests do, which it "
        "slows down",
        "allow sched_setscheduler in the container's seccomp profile",
    )


def _is_allowed() -> bool:
    """Tried in a child: there is no way back from SCHED_IDLE without a privilege."""
    child = os.fork()
    if not child:
        try:
            run_when_idle()
        except BaseException:  # noqa: BLE001  # nothing may return into the parent's code
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
