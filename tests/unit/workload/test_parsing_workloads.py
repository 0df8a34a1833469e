"""Workload files: DISB's own, the added fields, and messages that name what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brisk_client.workload.description import (
    Continuous,
    Dependent,
    Periodic,
    Poisson,
    Task,
    Trace,
    Workload,
)
from brisk_client.workload.parsing import parse_workload, read_workload

DISB = Path(__file__).resolve().parents[4] / "shared" / "disb"


def _task(**changes: Any) -> dict[str, Any]:
    task = {
        "id": "vgg",
        "load": {"type": "periodic", "frequency": 100},
        "client": {"model_name": "vgg19"},
    }
    return {**task, **changes}


def _parse(*tasks: dict[str, Any], folder: Path = Path()) -> Workload:
    return parse_workload({"time": 60, "tasks": list(tasks)}, folder)


def test_a_task_as_disb_writes_it() -> None:
    client = {
        "name": "vgg19_rt",
        "model_name": "vgg19-imagenet",
        "batch_size": 1,
        "tfs_grpc_addr": "localhost:8500",
        "triton_grpc_addr": "localhost:8001",
    }
    load = {"type": "periodic", "priority": 0, "frequency": 100}
    workload = _parse({"id": "vgg19_rt", "load": load, "client": client})
    expected = Task("vgg19_rt", "vgg19-imagenet", Periodic(100.0), job_class="realtime")
    assert workload == Workload(60.0, (expected,))


def test_a_periodic_load_of_lower_priority_is_not_coordinated() -> None:
    load = {"type": "periodic", "priority": 1, "frequency": 100}
    assert _parse(_task(load=load)).tasks[0].load == Periodic(100.0, 0.0)


def test_every_added_field_and_load_is_read() -> None:
    first = {
        "id": "a",
        "load": {"type": "periodic", "frequency": 10, "phase_ms": 250},
        "client": {
            "model_name": "m",
            "model_version": "3",
            "batch_size": 4,
            "sizes": {"x": [3, 8]},
        },
        "class": "normal",
        "deadline_ms": 500,
        "in_flight": 2,
        "drop_stale": False,
    }
    loads = [
        {"type": "poisson", "frequency": 5.5},
        {"type": "trace", "trace": [1500, 0, 500]},
        {"type": "continuous"},
        {"type": "dependent", "prev_task_ids": ["a", "b"]},
    ]
    others = [
        {"id": name, "load": load, "client": {"model_name": "m"}}
        for name, load in zip("bcde", loads, strict=True)
    ]
    expected = (
        Task("a", "m", Periodic(10.0, 0.25), "3", "normal", 0.5, 4, 2, False, {"x": (3, 8)}),
        Task("b", "m", Poisson(5.5)),
        Task("c", "m", Trace((0.0, 0.5, 1.5))),
        Task("d", "m", Continuous()),
        Task("e", "m", Dependent(("a", "b"))),
    )
    document = {"time": 2, "seed": 7, "tasks": [first, *others]}
    assert parse_workload(document, Path()) == Workload(2.0, expected, seed=7)


def test_a_trace_of_another_file_is_cut_to_the_workload(tmp_path: Path) -> None:
    lines = ["arrival_ms", "5000", "1000", "3000", "200000"]
    (tmp_path / "trace.csv").write_text("\n".join(lines))
    load = {"type": "trace", "file": "trace.csv", "begin_s": 1, "speed": 2}
    assert _parse(_task(load=load), folder=tmp_path).tasks[0].load == Trace((0.0, 1.0, 2.0))


def test_an_azure_trace_counts_from_its_first_request(tmp_path: Path) -> None:
    (tmp_path / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,8\n"
        "2023-11-16 18:18:03.9799601,110,27\n"
    )
    load = {"type": "trace", "file": "azure.csv"}
    found = _parse(_task(load=load), folder=tmp_path).tasks[0].load
    assert isinstance(found, Trace)
    assert found.arrivals_s == pytest.approx((0.0, 0.052), abs=1e-5)  # the third is after 60 s


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"klass": "realtime"}, "task 'vgg': unknown field 'klass', did you mean 'class'"),
        ({"class": "realtme"}, "task 'vgg': there is no class 'realtme'.*did you mean 'realtime'"),
        ({"load": {"type": "perodic"}}, "task 'vgg', load: 'type' must be one of periodic, "),
        ({"load": {"type": "periodic"}}, "task 'vgg', load: field 'frequency' is missing"),
        (
            {"load": {"type": "periodic", "frequency": 0}},
            "'frequency' must be a number above 0, not 0",
        ),
        (
            {"load": {"type": "poisson", "frequency": True}},
            "'frequency' must be a number above 0, not True",
        ),
        ({"load": {"type": "trace"}}, "a trace has either 'trace' or 'file'"),
        ({"load": {"type": "trace", "trace": [1, -2]}}, "milliseconds, which -2 is not"),
        (
            {"load": {"type": "dependent", "prev_task_ids": ["x"]}},
            "task 'vgg', load: there is no task 'x' to follow",
        ),
        (
            {"load": {"type": "dependent", "prev_task_ids": ["a", "a"]}},
            "'prev_task_ids' must be a list of task ids, each once, not",
        ),
        ({"load": {"type": "dependent", "prev_task_ids": ["vgg"]}}, "vgg wait for each other"),
        ({"client": {}}, "task 'vgg', client: field 'model_name' is missing"),
        ({"client": {"model_name": "m", "batch_size": 0}}, "a whole number of at least 1, not 0"),
        ({"client": {"model_name": "m", "sizes": {"x": [0]}}}, "'sizes' must be an object of"),
        ({"in_flight": 1.5}, "'in_flight' must be a whole number of at least 1, not 1.5"),
        ({"deadline_ms": float("nan")}, "'deadline_ms' must be a number above 0, not nan"),
        ({"deadline_ms": 10**400}, "'deadline_ms' must be a number above 0, not 1000"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _parse(_task(**changes))


def test_two_tasks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tasks have the id 'vgg'"):
        _parse(_task(), _task())


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    file.write_text("{")
    with pytest.raises(ValueError, match=r"w\.json': Expecting"):
        read_workload(file)


@pytest.mark.parametrize("bad", ["TIMESTAMP\nyesterday\n", "arrival_ms\n-4\n", "when\n3\n"])
def test_a_bad_trace_is_named(tmp_path: Path, bad: str) -> None:
    (tmp_path / "bad.csv").write_text(bad)
    with pytest.raises(ValueError, match=r"bad\.csv'.*(time stamp|milliseconds|is no trace)"):
        _parse(_task(load={"type": "trace", "file": "bad.csv"}), folder=tmp_path)


@pytest.mark.skipif(not DISB.is_dir(), reason="no published DISB files beside the checkout")
@pytest.mark.parametrize("name", ["A", "B", "C", "D", "E", "REAL"])
def test_the_published_files_are_read(name: str) -> None:
    workload = read_workload(DISB / f"{name}.json")
    classes = [task.job_class for task in workload.tasks]
    assert classes.count("realtime") in (1, 5)
    assert classes.count("besteffort") in (1, 5)
