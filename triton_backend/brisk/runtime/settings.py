"""The runtime's settings: environment variables, read once when it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from brisk.errors import InvalidConfigurationError


@dataclass(frozen=True, slots=True)
class Settings:
    """``threads``: for computing one layer. ``idle_exit_s``: life without any client."""

    threads: int
    idle_exit_s: float


def read_settings() -> Settings:
    """``$BRISK_THREADS`` (default: usable cores), ``$BRISK_IDLE_EXIT_S`` (default: 10).

    Raises InvalidConfigurationError naming the variable that is no positive number.
    """
    return Settings(
        threads=int(_positive("BRISK_THREADS", len(os.sched_getaffinity(0)))),
        idle_exit_s=_positive("BRISK_IDLE_EXIT_S", 10.0),
    )


def _positive(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = 0.0
    if value <= 0:
        raise InvalidConfigurationError(f"{name} must be a positive number, not '{text}'")
    return value
