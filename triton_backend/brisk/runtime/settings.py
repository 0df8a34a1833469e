"""The runtime's settings: environment variables, read once when it starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from brisk.errors import InvalidConfigurationError
from brisk.scheduling.policies import DEFAULT_POLICY, Limits, Policy, find_policy
from brisk.scheduling.queue import DEFAULT_BOUND
from brisk.settings import (
    DEFAULT_SAMPLES_MIB,
    OF_THE_RUNTIME,
    cache_limit_bytes,
    computes_in_stubs,
    realtime_niceness,
    runs_side_by_side,
)

MIB = 1024 * 1024
CONTROL_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""The memory limit, in bytes, of a container with a control group of version 2."""

SAMPLED_SHARE = 0.2
ADAPTATION_S = 60.0

MAX_LOAD_S = 600.0

NORMAL_SHARE = 0.05
"""The fraction of the foreground worker's time that normal work gets while real-time work fills
it: real-time work then takes 1.05 times as long."""

LARGEST = 1e6
"""The largest value of any setting: as seconds, 11 days, which the system can still wait for."""


MOST_THREADS = 1024
"""The most threads unless there are more cores: a worker that makes thousands is ended as
stuck."""


class ArtefactUse(str, Enum):
    """How artefacts are used."""

    BUILD = "build"
    """Artefacts are used, and made in the background if there are none."""
    USE = "use"
    """Artefacts are used, and none are made."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in a runtime's environment."""

    threads: int
    """The threads that compute one segment."""
    idle_exit_s: float
    """The time that the runtime lives without any client."""
    policy: Policy
    limits: Limits
    outstanding_launches: int
    """The launches, except those of real-time runs, that may be on a GPU at once."""
    gpu_bytes: int
    """The memory of a GPU that models may take; 0: no limit."""
    max_waiting: int
    """The number of requests, of all models together, that may wait in a worker."""
    background_bytes: int
    """The memory that the background worker may take."""
    artefacts: ArtefactUse
    sampled_share: float
    """The fraction of the runs of models with learned caches whose inputs are kept."""
    sample_bytes: int
    """The most bytes of such inputs for each model."""
    adaptation_s: float
    """The time between two times that caches learn from such inputs; 0: never."""
    realtime_niceness: int
    """The niceness of computing threads while a real-time model is served; 0: unchanged."""
    max_load_s: float
    """The longest that a model's load may take."""
    computes_in_stubs: bool
    """Whether stubs are offered small models."""
    runs_side_by_side: bool
    """Whether several runs compute at once when requests crowd."""


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of environment variables, which docs/configuration.md explains.

    Raises InvalidConfigurationError, which names the variable, if a value is invalid.
    """
    cache_limit_bytes(environment)  # checked here: the builder, which uses it, reports it late
    cores = len(os.sched_getaffinity(0))
    read = _Reader(environment)
    return Settings(
        threads=read.whole("BRISK_THREADS", cores, max(cores, MOST_THREADS)),
        idle_exit_s=read.positive("BRISK_IDLE_EXIT_S", 10.0),
        policy=_policy(environment),
        limits=Limits(
            share=read.between("BRISK_BESTEFFORT_SHARE", 0.0, 0.0, 0.5),
            normal_share=read.between("BRISK_NORMAL_SHARE", NORMAL_SHARE, 0.0, 0.5),
        ),
        outstanding_launches=read.whole("BRISK_OUTSTANDING_LAYERS", 2),
        gpu_bytes=int(read.between("BRISK_GPU_MEMORY", 0.0, 0.0, LARGEST) * MIB),
        max_waiting=read.whole("BRISK_MAX_WAITING", DEFAULT_BOUND),
        background_bytes=int(
            read.positive("BRISK_BACKGROUND_MIB", _half_of_the_memory_mib()) * MIB
        ),
        artefacts=_artefact_use(environment),
        sampled_share=read.between("BRISK_SAMPLED_SHARE", SAMPLED_SHARE, 0.0, 1.0),
        sample_bytes=int(read.positive("BRISK_SAMPLES_MIB", DEFAULT_SAMPLES_MIB) * MIB),
        adaptation_s=read.between("BRISK_ADAPTATION_S", ADAPTATION_S, 0.0, LARGEST),
        realtime_niceness=realtime_niceness(environment),
        max_load_s=read.positive("BRISK_MAX_LOAD_S", MAX_LOAD_S),
        computes_in_stubs=computes_in_stubs(environment),
        runs_side_by_side=runs_side_by_side(environment),
    )


def wrong_runtime_settings(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield a line for each variable with an invalid value, with which a runtime does not
    start."""
    for name in OF_THE_RUNTIME:
        if value := environment.get(name):
            try:
                read_settings({name: value})
            except InvalidConfigurationError as error:
                yield str(error)


def _policy(environment: Mapping[str, str]) -> Policy:
    try:
        return find_policy(environment.get("BRISK_POLICY") or DEFAULT_POLICY)
    except InvalidConfigurationError as error:
        raise InvalidConfigurationError(f"BRISK_POLICY: {error}") from None


def _half_of_the_memory_mib() -> float:
    """Return half of the machine's memory, or of its control group's limit if that has one."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        size = min(size, int(CONTROL_GROUP_LIMIT.read_text()))
    return min(max(1.0, size / MIB / 2), LARGEST)


class _Reader:
    """Reads numbers of an environment's variables; a variable that is not set has a default."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def between(self, name: str, default: float, least: float, greatest: float) -> float:
        expected = f"a number from {least:g} to {greatest:g}"
        return self._number(name, default, expected, lambda value: least <= value <= greatest)

    def positive(self, name: str, default: float) -> float:
        expected = f"a positive number of at most {LARGEST:.0f}"
        return self._number(name, default, expected, lambda value: 0 < value <= LARGEST)

    def whole(self, name: str, default: int, most: int = int(LARGEST)) -> int:
        expected = f"a whole number from 1 to {most}"

        def fits(value: float) -> bool:
            return value.is_integer() and 1 <= value <= most

        return int(self._number(name, default, expected, fits))

    def _number(
        self, name: str, default: float, expected: str, fits: Callable[[float], bool]
    ) -> float:
        text = self._environment.get(name) or str(default)
        with contextlib.suppress(ValueError):
            if fits(value := float(text)):
                return value
        raise InvalidConfigurationError(f"{name} must be {expected}, not '{text}'")


def _artefact_use(environment: Mapping[str, str]) -> ArtefactUse:
    text = environment.get("BRISK_ARTEFACTS") or ArtefactUse.BUILD.value
    known = [choice.value for choice in ArtefactUse]
    if text not in known:
        import difflib

        near = difflib.get_close_matches(text.lower(), known, n=1)
        guess = f"; did you mean '{near[0]}'?" if near else ""
        raise InvalidConfigurationError(
            f"BRISK_ARTEFACTS must be one of {', '.join(known)}, not '{text}'{guess}"
        )
    return ArtefactUse(text)
