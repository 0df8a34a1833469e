"""Measuring candidates is bounded by what it computes, not by what others do meanwhile."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from brisk.execution import profiling
from brisk.execution.plan import make_plan
from brisk.graph.reader import read_program
from brisk.solutions.catalogue import default_catalogue
from unit.execution.starting_models import CPU, chain

LONGEST_S = 5.0
LAYERS = 8


def measured_layers(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, clock_s: float, processor_s: float
) -> list[bool]:
    """Which layers were measured while each look at a clock found it advanced so far."""
    clock, processor = itertools.count(0.0, clock_s), itertools.count(0.0, processor_s)
    fake = SimpleNamespace(
        monotonic=lambda: next(clock),
        thread_time=lambda: next(processor),
        thread_time_ns=time.thread_time_ns,
    )
    monkeypatch.setattr(profiling, "time", fake)
    catalogue = default_catalogue()
    plan = make_plan(read_program(chain(directory, 4).path), CPU, catalogue)
    found = profiling.profile(plan, (), catalogue, LONGEST_S, lambda: None)
    return [bool(each) for each in found.layers]


@pytest.mark.parametrize(
    ("clock_s", "processor_s", "expected"),
    [
        (LONGEST_S / 2, 0.0, LAYERS),  # others had the processors
        (0.0, LONGEST_S / 2, 2),
        (profiling.MOST_PATIENCE * LONGEST_S / 2, 0.0, 2),
    ],
)
def test_measuring_ends_after_its_own_time_or_many_times_that_on_the_clock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clock_s: float,
    processor_s: float,
    expected: int,
) -> None:
    found = measured_layers(tmp_path, monkeypatch, clock_s=clock_s, processor_s=processor_s)
    assert found == [index < expected for index in range(LAYERS)]
