"""The sides and measurements of `brisk bench preempt`, as its options choose them.

Sides are Brisk under each policy, real-time clients alone, and Triton as it is. Triton without
Brisk has settings that its users can choose; the best one is the baseline.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brisk.errors import InvalidConfigurationError
from brisk_bench.disb.networks import NETWORKS
from brisk_bench.disb.workloads import REAL, WORKLOADS
from brisk_bench.harness.peer_backends import ONNXRUNTIME, onnxruntime_backend

RT_ONLY = "RT-only"
"""The real-time clients alone, on the server of the default policy."""

DEFAULT_POLICY = "preemptive"

DEADLINE = "deadline"
"""The side whose real-time requests have a deadline; otherwise it is the default policy."""

POLICIES = ("sequential", "shared", DEFAULT_POLICY, DEADLINE)

TRITON = "triton"
"""The prefix of the names of all Triton's sides."""

PYTHON = "python"
"""Triton's Python backend, with ONNX Runtime in it."""

RESOURCE = "turn"

PRIORITIES = {"realtime": 1, "besteffort": 100}
"""The rate limiter's priorities by class; it grants executions in inverse proportion."""

BOTH = tuple(PRIORITIES)


@dataclass(frozen=True, slots=True)
class TritonSetting:
    """The settings of a server of Triton's own, with ``instances`` of each entry.

    ``turns``: executions that may run at once by the rate limiter; None: it is off.
    ``limited``: classes whose executions take a turn.
    ``one_threaded``: classes whose operators have one thread; others one for each core.
    """

    name: str
    instances: int
    turns: int | None
    limited: Sequence[str] = BOTH
    one_threaded: Sequence[str] = ()
    backend: str = PYTHON

    @property
    def side(self) -> str:
        return f"{TRITON} {self.name}"

    def options(self) -> list[str]:
        """Return the rate limiter's options on the server's command line."""
        if self.turns is None:
            return ["--rate-limit=off"]
        return ["--rate-limit=execution_count", f"--rate-limit-resource={RESOURCE}:{self.turns}"]

    def instance_group(self, job_class: str) -> str:
        """Return the instance group in ``config.pbtxt`` of an entry of the class."""
        limiter = ""
        if self.turns is not None:
            resources = f'resources [ {{ name: "{RESOURCE}" count: 1 global: true }} ] '
            limiter = (
                f" rate_limiter {{ {resources if job_class in self.limited else ''}"
                f"priority: {PRIORITIES[job_class]} }}"
            )
        return f"instance_group [ {{ count: {self.instances} kind: KIND_CPU{limiter} }} ]\n"


CONFINED = "besteffort confined"
"""The name of the setting that leaves real-time work nearly alone. Its best variant takes part in
all rounds, since it says most about throughput."""

SETTINGS = (
    TritonSetting("one run", 1, turns=1),
    TritonSetting(CONFINED, 1, 1, ("besteffort",), one_threaded=("besteffort",)),
    TritonSetting("two runs", 2, turns=2),
    TritonSetting("thread a run", 2, turns=2, one_threaded=BOTH),
    TritonSetting("free", 2, turns=None),
)
"""Settings of Triton, from most to least restraint of best-effort work. ``one run``: a real-time
request waits for one run at most, then has all cores. ``besteffort confined``: it never waits;
best-effort work has one run at a time, of one thread."""

PEER_SETTINGS = tuple(
    replace(each, name=f"C++ {each.name}", backend=ONNXRUNTIME) for each in SETTINGS
)

QUICK_SETTINGS = ("one run", "two runs")


def choose_settings(names: Sequence[str] | None, peers: Path | None) -> tuple[TritonSetting, ...]:
    """Return the settings of these names, all if None; those in C++ only if ``peers`` is given.

    Raises InvalidConfigurationError as ``onnxruntime_backend`` does, and for an unknown name.
    """
    settings: tuple[TritonSetting, ...] = SETTINGS
    if peers is not None:
        onnxruntime_backend(peers)
        settings += PEER_SETTINGS
    if names is None:
        return settings
    for name in names:
        if all(setting.name != name for setting in settings):
            listed = ", ".join(f"'{setting.name}'" for setting in settings)
            raise InvalidConfigurationError(
                f"--triton-setting: there is no '{name}', only {listed}"
                + ("" if peers else "; those of the C++ backend need --peer-backends")
            )
    return tuple(setting for setting in settings if setting.name in names)


# What is measured.

PARTS = ("workloads", "preemption", "layers", "pairs", "equality")

WAITING = "sequential"
"""The policy that lets a running best-effort job end: the wait-based preemption of figure 12."""

SECONDS, ROUNDS = 60.0, 3
"""The duration of a run, as in REEF, and the runs of each side."""

MOST_TIMES = 2
"""The most rounds, as a multiple of those wanted, while fewer than wanted were quiet."""

TRIAL_S = 10.0
"""The duration of the trial of each of Triton's settings, for each workload, before its rounds."""

INTERRUPTIONS = 1000
"""Interruptions of best-effort work by a real-time request, for each row of figures 12 and 13: a
p99 takes so many."""

POINTS, SERVED_REQUESTS = 10_000, 20
"""Interruptions in the part ``equality``: at the wire, and of each network through Triton."""

OTHERS_SHARE = 10
"""The divisor of requests to policies and settings that make a request wait: they are slow, and
nothing is claimed about their tails."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurements of one run of the benchmark.

    ``probed``: policies whose preemption is measured.
    ``settings``: none if Triton is not among ``sides``.
    ``rounds``: quiet ones wanted, of ``most_rounds`` in all.
    ``seconds``: of each run of a round.
    ``trial_s``: of one short run of each setting of Triton's, which finds the best of them for
      each workload; that one and the confined one take part in the rounds.
    ``peers``: folder of Triton's C++ backend, if a setting uses it.
    ``real``: DISB's REAL.json; without it REAL is left out.
    """

    quick: bool
    parts: Sequence[str]
    workloads: Sequence[str]
    sides: Sequence[str]
    probed: Sequence[str]
    settings: Sequence[TritonSetting]
    networks: Sequence[str]
    rounds: int
    seconds: float
    trial_s: float
    interruptions: int
    points: int
    served_requests: int
    peers: Path | None
    real: Path | None
    threads: int

    @property
    def most_rounds(self) -> int:
        return self.rounds if self.quick else MOST_TIMES * self.rounds

    def requests_of(self, side: str) -> int:
        """Return the number of requests for each row of figures 12 and 13."""
        if side == DEFAULT_POLICY:
            return self.interruptions
        return max(1, self.interruptions // OTHERS_SHARE)


def plan_of(chosen: argparse.Namespace) -> Plan:
    """Return the plan by the options: all where nothing is chosen, or a part of it if ``quick``.

    Raises InvalidConfigurationError if settings or peers do not exist, or REAL is chosen without
    its file.
    """
    quick = chosen.quick
    if REAL in (chosen.workloads or ()) and chosen.real is None:
        raise InvalidConfigurationError(
            f"--workload {REAL} needs its trace: --real FILE, DISB's REAL.json"
        )
    sides = tuple(dict.fromkeys(chosen.sides or (DEFAULT_POLICY, "shared", TRITON)))
    probed = (DEFAULT_POLICY,) if quick else (DEFAULT_POLICY, WAITING)
    settings = choose_settings(
        chosen.settings or (QUICK_SETTINGS if quick else None), chosen.peers
    )
    seconds = min(chosen.seconds, 2.0) if quick else chosen.seconds
    return Plan(
        quick=quick,
        parts=chosen.parts or PARTS,
        workloads=chosen.workloads or (("C",) if quick else (*WORKLOADS, REAL)),
        sides=(RT_ONLY, *sides),
        probed=[name for name in probed if name in sides or not chosen.sides],
        settings=settings if TRITON in sides else (),
        networks=chosen.networks or (("vgg", "bert") if quick else tuple(NETWORKS)),
        rounds=1 if quick else chosen.rounds,
        seconds=seconds,
        trial_s=min(seconds, chosen.trial_s),
        interruptions=min(chosen.interruptions, 20) if quick else chosen.interruptions,
        points=min(chosen.points, 200) if quick else chosen.points,
        served_requests=5 if quick else SERVED_REQUESTS,
        peers=chosen.peers,
        real=chosen.real,
        threads=len(os.sched_getaffinity(0)),
    )
