"""The runtime's settings: environment variables, read once when it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass

from brisk.errors import InvalidConfigurationError

LARGEST = 1e6
"""Of any number here: an idle time of 11 days, which the system can still wait for at once."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``threads``: for computing one layer. ``idle_exit_s``: life without any client."""

    threads: int
    idle_exit_s: float


def read_settings() -> Settings:
    """``$BRISK_THREADS`` (default: usable cores), ``$BRISK_IDLE_EXIT_S`` (default: 10).

    Raises InvalidConfigurationError naming the variable that is no such number.
    """
    threads = _positive("BRISK_THREADS", len(os.sched_getaffinity(0)))
    if not threads.is_integer():
        raise InvalidConfigurationError(f"BRISK_THREADS must be a whole number, not '{threads}'")
    return Settings(
        threads=int(threads),
        idle_exit_s=_positive("BRISK_IDLE_EXIT_S", 10.0),
    )


def _positive(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = 0.0
    if not 0 < value <= LARGEST:
        raise InvalidConfigurationError(
            f"{name} must be a positive number of at most {LARGEST:.0f}, not '{text}'"
        )
    return value
