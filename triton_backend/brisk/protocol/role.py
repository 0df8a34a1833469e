"""Which of the device's workers a request goes to: each class has its own listening socket.

How many processes stand behind the two sockets is the runtime's affair: on a GPU one worker
listens on both.
"""

from __future__ import annotations

from enum import Enum


class Role(str, Enum):
    """What a worker serves; the value is the name of its socket."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"


def role_of(job_class: str) -> Role:
    """Best-effort requests go to the background, all others to the foreground."""
    return Role.BACKGROUND if job_class == "besteffort" else Role.FOREGROUND
