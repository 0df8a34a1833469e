"""The priority class of requests; whatever names a class uses these names."""

from __future__ import annotations

from enum import Enum


class JobClass(str, Enum):
    """How urgent a job is, most urgent first."""

    REALTIME = "realtime"
    NORMAL = "normal"
    BESTEFFORT = "besteffort"
