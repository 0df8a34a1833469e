"""Triton without Brisk, in settings that its users can choose: the best one is the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brisk.errors import InvalidConfigurationError
from brisk_client.benchmarks.harness.peer_backends import ONNXRUNTIME, onnxruntime_backend

TRITON = "triton"
"""What the names of all its sides begin with."""

PYTHON = "python"
"""Triton's Python backend, with ONNX Runtime in it."""

RESOURCE = "turn"

PRIORITIES: Mapping[str, int] = {"realtime": 1, "besteffort": 100}
"""Of the rate limiter, which grants executions in inverse proportion."""


@dataclass(frozen=True, slots=True)
class TritonSetting:
    """How a server of Triton's own is set up.

    ``instances`` of each entry. ``threads``: of ONNX Runtime within an operator, by class; None:
    one for each core. ``turns``: executions that may run at once by the rate limiter; None: it is
    off. ``limited``: classes whose executions take a turn.
    """

    name: str
    backend: str = PYTHON
    instances: int = 1
    threads: Mapping[str, int | None] = field(default_factory=lambda: dict.fromkeys(PRIORITIES))
    turns: int | None = None
    limited: Sequence[str] = tuple(PRIORITIES)

    @property
    def side(self) -> str:
        return f"{TRITON} {self.name}"

    def threads_of(self, job_class: str, cores: int) -> int:
        return self.threads[job_class] or cores

    def options(self) -> list[str]:
        """Of the server's command line."""
        if self.turns is None:
            return ["--rate-limit=off"]
        return ["--rate-limit=execution_count", f"--rate-limit-resource={RESOURCE}:{self.turns}"]

    def instance_group(self, job_class: str) -> str:
        """Of ``config.pbtxt``."""
        limiter = ""
        if self.turns is not None:
            taken = f'resources [ {{ name: "{RESOURCE}" count: 1 global: true }} ] '
            limiter = (
                f" rate_limiter {{ {taken if job_class in self.limited else ''}"
                f"priority: {PRIORITIES[job_class]} }}"
            )
        return f"instance_group [ {{ count: {self.instances} kind: KIND_CPU{limiter} }} ]\n"


_ONE_EACH: Mapping[str, int | None] = dict.fromkeys(PRIORITIES, 1)


def settings_of(backend: str, label: str) -> tuple[TritonSetting, ...]:
    """What can be set there, from most to least restraint of best-effort work.

    ``one run``: a real-time request waits for one run at most, then has all cores. ``besteffort
    confined``: it never waits; best-effort work has one run at a time, of one thread. ``two
    runs``: two at once, each of as many threads as cores. ``thread a run``: two at once, of one
    thread each. ``free``: no limiter.
    """
    return (
        TritonSetting(f"{label}one run", backend, turns=1),
        TritonSetting(
            f"{label}besteffort confined",
            backend,
            threads={"realtime": None, "besteffort": 1},
            turns=1,
            limited=("besteffort",),
        ),
        TritonSetting(f"{label}two runs", backend, instances=2, turns=2),
        TritonSetting(f"{label}thread a run", backend, instances=2, threads=_ONE_EACH, turns=2),
        TritonSetting(f"{label}free", backend, instances=2),
    )


SETTINGS = settings_of(PYTHON, "")
PEER_SETTINGS = settings_of(ONNXRUNTIME, "C++ ")

QUICK_SETTINGS = ("one run", "two runs")


def choose_settings(names: Sequence[str] | None, peers: Path | None) -> tuple[TritonSetting, ...]:
    """Those called so, of Triton's Python backend and, where ``peers`` is given, of the C++ one.

    Raises InvalidConfigurationError as ``onnxruntime_backend``, and for a name that is none.
    """
    known = SETTINGS
    if peers is not None:
        onnxruntime_backend(peers)
        known += PEER_SETTINGS
    if names is None:
        return known
    for name in names:
        if all(setting.name != name for setting in known):
            listed = ", ".join(f"'{setting.name}'" for setting in known)
            raise InvalidConfigurationError(
                f"--triton-setting: there is no '{name}', only {listed}"
                + ("" if peers else "; those of the C++ backend need --peer-backends")
            )
    return tuple(setting for setting in known if setting.name in names)


def best_screened(screened: Mapping[str, Mapping[str, Any]]) -> str:
    """The side with the least p90 of its short run; one without an answer only where all are."""
    return min(screened, key=lambda side: screened[side].get("p90_ms", float("inf")))


def best_baseline(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row of least p99 among Triton's; None where none has answers.

    One with too few answers for a p99, where its p90 is the least: it may be the best one, and
    what is compared with it says so.
    """
    answered = [row for row in rows if "p90_ms" in row]
    if not answered:
        return None
    quickest = min(answered, key=lambda row: row["p90_ms"])
    told = [row for row in answered if not isinstance(row["p99_ms"], str)]
    if isinstance(quickest["p99_ms"], str) or not told:
        return quickest
    return min(told, key=lambda row: row["p99_ms"])
