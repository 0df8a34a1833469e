"""What `brisk status` shows of a worker's state."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from brisk.cli.status.text import StatusSnapshot, render
from brisk.protocol.records import Incident, ModelStatus, RunStatus, SampleRecord, Status


def model(
    name: str,
    *,
    is_ready: bool = True,
    layers: int = 54,
    loaded: int,
    lanes: int,
    is_settled: bool = True,
) -> ModelStatus:
    return ModelStatus(
        *(name, 1, is_ready, 2, 3, 40, "/m"),
        layers=layers,
        loaded_layers=loaded,
        lanes=lanes,
        is_settled=is_settled,
    )


def shown(*models: ModelStatus) -> str:
    status = Status(
        pid=7,
        role="foreground",
        device="cpu",
        uptime_ns=10**9,
        threads=2,
        frontends=2,
        model_count=len(models),
        models=models,
        runs=(RunStatus("net", "realtime", 1, False, 10**6, 5),),
        incidents=(Incident(10**9, "request of model 'net': too large"),),
    )
    samples = (SampleRecord("brisk_held_bytes", ("foreground", "resident"), (2**20,)),)
    page = io.StringIO()
    Console(file=page, width=200).print(render(StatusSnapshot(status, samples, 1.0), None))
    return page.getvalue()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (model("net", loaded=54, lanes=0), "ready"),
        (model("net", loaded=54, lanes=0, is_settled=False), "ready, warming up"),
        (model("net", loaded=12, lanes=1), "ready, 12 of 54 layers, 1 lane"),
        (model("net", loaded=12, lanes=3), "ready, 12 of 54 layers, 3 lanes"),
        (model("net", is_ready=False, layers=0, loaded=0, lanes=0), "loading"),
    ],
)
def test_lanes_and_layers_are_shown_while_a_model_loads(status: ModelStatus, state: str) -> None:
    assert re.search(rf"net +1 +{state} +2 +3 +40 *$", shown(status), re.MULTILINE)


def test_runs_memory_and_recent_errors_are_shown() -> None:
    text = shown(model("net", loaded=54, lanes=0))
    for expected in ("foreground worker 7 on cpu", "computing", "1.0 MiB", "too large"):
        assert expected in text
