"""The priority class of requests; requests, settings and metrics use these names."""

from __future__ import annotations

from enum import Enum


class JobClass(str, Enum):
    """The urgency of a job, most urgent first."""

    REALTIME = "realtime"
    NORMAL = "normal"
    BESTEFFORT = "besteffort"
