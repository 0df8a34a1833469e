"""The demonstration, the sample models, and the commands of `brisk bench`, which are listed here.

Nothing in this package serves requests, and no client needs it. A command's module is imported
when it runs: some need torch, or packages of the extra ``bench``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before any side imports it: official builds send it

BENCHMARKS: Mapping[str, str] = {
    "chain": "brisk_bench.chain",
    "cold": "brisk_bench.cold",
    "conformance": "brisk_bench.conformance",
    "density": "brisk_bench.density",
    "entries": "brisk_bench.entries",
    "exits": "brisk_bench.exits",
    "exits_learned": "brisk_bench.exits.learned",
    "exits_served": "brisk_bench.exits.served",
    "hop": "brisk_bench.hop",
    "load_beside": "brisk_bench.load_beside",
    "pipeline": "brisk_bench.pipeline",
    "preempt": "brisk_bench.preempt",
    "pressure": "brisk_bench.pressure",
    "siblings": "brisk_bench.siblings",
    "soak": "brisk_bench.soak",
    "sourcing": "brisk_bench.sourcing",
    "start": "brisk_bench.start",
    "streamed": "brisk_bench.streamed",
    "throughput": "brisk_bench.throughput",
    "warm": "brisk_bench.warm",
}
"""Benchmarks, each with the module whose ``main`` takes its arguments. Each shows a report; its
exit status says whether all that it expects holds."""

PREPARATIONS: Mapping[str, str] = {"real_models": "brisk_bench.real_models"}
"""Commands that measure nothing: they prepare the inputs of benchmarks."""

COMMANDS: Mapping[str, str] = {**BENCHMARKS, **PREPARATIONS}


def main_of(name: str) -> Callable[[Sequence[str]], int]:
    """Return the ``main`` of a command of COMMANDS."""
    main: Callable[[Sequence[str]], int] = importlib.import_module(COMMANDS[name]).main
    return main
