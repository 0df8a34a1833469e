"""What `brisk status` shows of workers' states."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from brisk.cli.commands.status import _show
from brisk.cli.views.status import _COLUMNS, ProcessUse, StatusSnapshot, quantile_s, render
from brisk.protocol.records import Sample
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.protocol.status import Incident, ModelStatus, RunStatus, Status
from brisk.telemetry.metrics import BOUNDS_NS


def model(
    name: str,
    *,
    is_ready: bool = True,
    layers: int = 54,
    loaded: int = 54,
    is_settled: bool = True,
    answered: int = 40,
    shared_layers: int = 0,
) -> ModelStatus:
    return ModelStatus(
        *(name, 1, is_ready, 2, 3, answered, "/m"),
        layers=layers,
        loaded_layers=loaded,
        is_settled=is_settled,
        job_class="realtime",
        weight_bytes=2**20,
        failed=6,
        shared_layers=shared_layers,
    )


def snapshot(
    *models: ModelStatus,
    at_s: float = 1.0,
    samples: Sequence[Sample] = (),
    use: ProcessUse | None = None,
    incidents: tuple[Incident, ...] = (),
) -> StatusSnapshot:
    status = Status(
        pid=7,
        role="foreground",
        device="cpu",
        uptime_ns=10**9,
        threads=2,
        frontends=2,
        model_count=len(models),
        models=models,
        runs=(
            RunStatus("net", "realtime", 1, False, 10**6, 5),
            RunStatus("net", "normal", 4, True, 10**6, 5),
        ),
        incidents=incidents,
    )
    return StatusSnapshot(status, tuple(samples), at_s, use)


def shown(
    now: StatusSnapshot,
    before: StatusSnapshot | None = None,
    height: int | None = None,
    width: int = 200,
) -> list[str]:
    page = io.StringIO()
    known = {} if before is None else {before.worker: before}
    Console(file=page, width=width).print(render([now], known, height, width))
    return [line.strip() for line in page.getvalue().splitlines()]


def row(lines: Sequence[str], name: str) -> list[str]:
    (found,) = (line for line in lines if line.startswith(f"{name}/1"))
    return found.split()


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (model("net"), "ready"),
        (model("net", is_settled=False), "warming up"),
        (model("net", loaded=12), "ready, 12 of 54"),
        (model("net", is_ready=False, layers=0, loaded=0), "loading"),
        (model("net", shared_layers=53), "ready, 53 shared"),
    ],
)
def test_a_model_has_one_row_with_its_state(status: ModelStatus, state: str) -> None:
    line = " ".join(row(shown(snapshot(status)), "net"))
    assert line == f"net/1 realtime {state} 1.0 MiB 3 0 6"


def test_a_name_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _show(RuntimePaths(tmp_path, "cpu"), [snapshot(model("net[v1]:x:"))], 0.0)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert row(lines, "net[v1]:x:")


def test_a_worker_has_one_line_with_what_it_takes_of_the_machine() -> None:
    before = snapshot(at_s=1.0, use=ProcessUse(10.0, 2**20))
    now = snapshot(model("net"), at_s=3.0, use=ProcessUse(11.0, 2**21))
    line = shown(now, before)[0]
    assert line.startswith("foreground 7 on cpu · up 1.0 s · 50% of a core · 2 MiB")
    assert "1 running, 4 parked, 3 queued" in line


def test_rates_quantiles_and_starts_are_the_workers_own() -> None:
    classes = [0] * (len(BOUNDS_NS) + 1)
    classes[3] = 100
    samples = [
        Sample("brisk_cold_starts_total", ("net", "1", "model"), (2,)),
        Sample("brisk_cold_starts_total", ("net", "1", "artefact"), (1,)),
    ]
    busy = model("net", answered=60)._replace(durations=tuple(classes))
    now = snapshot(busy, at_s=3.0, samples=samples)
    cells = row(shown(now, snapshot(model("net"))), "net")
    assert cells[cells.index("3") + 1] == "10.0"
    assert cells[-2:] == ["3", "6"]
    assert "ms" in cells


def test_a_quantile_lies_within_its_class_and_none_is_made_up() -> None:
    classes = [0] * (len(BOUNDS_NS) + 1)
    assert quantile_s(classes, 0.5) is None
    assert quantile_s((), 0.5) is None
    classes[2] = 10
    classes[5] = 1
    middle, last = quantile_s(classes, 0.5), quantile_s(classes, 0.99)
    assert middle is not None
    assert last is not None
    assert BOUNDS_NS[1] / 1e9 < middle <= BOUNDS_NS[2] / 1e9
    assert BOUNDS_NS[4] / 1e9 < last <= BOUNDS_NS[5] / 1e9
    slow = [0] * len(BOUNDS_NS) + [4]
    assert quantile_s(slow, 0.5) == BOUNDS_NS[-1] / 1e9


def test_busy_models_come_first_and_those_without_room_are_counted() -> None:
    models = [model(f"net{number}", answered=number) for number in range(20)]
    lines = shown(snapshot(*models), height=15)
    names = [line.split("/")[0] for line in lines if line.startswith("net")]
    assert names == [f"net{number}" for number in range(19, 19 - len(names), -1)]
    assert f"… and {20 - len(names)} more" in lines
    assert len(lines) <= 15
    assert len([line for line in shown(snapshot(*models)) if line.startswith("net")]) == 20


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_columns_give_way_and_no_header_is_cut(width: int) -> None:
    classes = [0] * (len(BOUNDS_NS) + 1)
    classes[3] = 100
    busy = model("a_model_of_a_team", shared_layers=53)._replace(durations=tuple(classes))
    lines = shown(snapshot(busy), width=width)
    (heads,) = (line for line in lines if "p99" in line)
    assert set(heads.split()) <= {*" ".join(_COLUMNS).split()}
    assert any("a_model_of_a_team/1" in line for line in lines)


def test_a_worker_that_is_new_has_no_rate_of_the_one_before() -> None:
    other = snapshot(model("net", answered=10), at_s=1.0)
    other = other._replace(status=other.status._replace(pid=8))
    cells = row(shown(snapshot(model("net", answered=60), at_s=3.0), other), "net")
    assert "25.0" not in cells


def test_recent_errors_are_shown() -> None:
    incident = Incident(10**9, "request of model 'net': too large")
    assert "1.0 s ago: request of model 'net': too large" in shown(snapshot(incidents=(incident,)))


def test_it_says_how_far_a_model_that_arrives_has_come() -> None:
    arriving = model("net")._replace(arriving="40 of 98 MB are here, 57 MB/s")
    assert "net arrives: 40 of 98 MB are here, 57 MB/s" in shown(snapshot(arriving))


def test_a_line_longer_than_the_width_is_whole_unless_the_terminal_has_no_room_for_it() -> None:
    end = "again with 2,966 samples, 563 are there"
    learning = model("net")._replace(learning=f"does not pay: {'nothing is shorter, ' * 5}{end}")
    incident = Incident(10**9, f"request of model 'net': {'too large, ' * 10}the end")
    now = snapshot(learning, incidents=(incident,))
    once = " ".join(shown(now, width=80))
    assert end in once
    assert "the end" in once
    looking = shown(now, width=80, height=20)
    assert end not in " ".join(looking)
    assert len([line for line in looking if line.endswith("…")]) == 2
