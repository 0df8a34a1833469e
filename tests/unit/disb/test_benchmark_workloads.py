"""DISB's workloads as the benchmark asks them: the published ones, and their scaling."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk_bench.disb.networks import NETWORKS
from brisk_bench.disb.workloads import (
    WORKLOADS,
    demand,
    due_before_the_next,
    fit,
    laps,
    read_real,
    realtime_only,
)
from brisk_client.workload.description import Periodic, Poisson, Task, Trace, Workload
from brisk_client.workload.parsing import read_workload

SHARED = Path(__file__).resolve().parents[4] / "shared" / "disb"

PAPER_S = {name: network.paper_ms / 1e3 for name, network in NETWORKS.items()}


@pytest.mark.skipif(not SHARED.is_dir(), reason="no published DISB files beside the checkout")
@pytest.mark.parametrize("name", ["A", "C", "D", "E"])
def test_the_workloads_are_the_published_ones(name: str) -> None:
    published = read_workload(SHARED / f"{name}.json")
    ours = WORKLOADS[name]
    assert [task.load for task in ours.tasks] == [task.load for task in published.tasks]
    assert [task.job_class for task in ours.tasks] == [t.job_class for t in published.tasks]


@pytest.mark.skipif(not SHARED.is_dir(), reason="no published DISB files beside the checkout")
def test_the_real_trace_keeps_its_arrivals() -> None:
    workload = read_real(SHARED / "REAL.json")
    traces = [task.load for task in workload.tasks if isinstance(task.load, Trace)]
    assert sum(len(trace.arrivals_s) for trace in traces) == pytest.approx(43 * 38, rel=0.05)
    assert {task.model for task in workload.tasks} == set(NETWORKS)


def test_the_demands_of_the_paper_s_machine() -> None:
    shares = {name: round(demand(each, PAPER_S), 2) for name, each in WORKLOADS.items()}
    assert shares == {"A": 0.44, "B": 0.97, "C": 0.44, "D": 0.7, "E": 0.7}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_fitted_workload_needs_as_much_of_this_machine(name: str) -> None:
    alone_s = {n: s * (2 + number) for number, (n, s) in enumerate(PAPER_S.items())}
    fitted, factor = fit(WORKLOADS[name], alone_s, 5.0)
    assert factor > 2
    assert fitted.duration_s == 5.0
    assert demand(fitted, alone_s) == pytest.approx(demand(WORKLOADS[name], PAPER_S))


def test_a_run_with_too_few_requests_for_its_tail_lasts_longer_but_not_for_ever() -> None:
    alone_s = {name: 2 * each_s for name, each_s in PAPER_S.items()}  # C: 50 requests a second
    durations_s = [fit(WORKLOADS["C"], alone_s, 10.0, n)[0].duration_s for n in (400, 750, 5000)]
    assert durations_s == pytest.approx([10.0, 15.0, 20.0])


def test_only_open_loops_need_a_measured_latency() -> None:
    """Best-effort clients of other networks never rest, and have none."""
    _, factor = fit(WORKLOADS["C"], {"vgg": 3 * PAPER_S["vgg"]}, 5.0)
    assert factor == pytest.approx(3.0)


def test_all_sides_meet_the_same_phases() -> None:
    alone_s = dict.fromkeys(NETWORKS, 0.01)
    fitted, _ = fit(WORKLOADS["D"], alone_s, 5.0)
    loads = [task.load for task in fitted.tasks]
    phases = [load.phase_s for load in loads if isinstance(load, Periodic)]
    assert phases == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])


def test_a_trace_is_stretched_and_cut() -> None:
    from brisk_bench.disb.workloads import slow_down
    from brisk_client.workload.description import Task, Workload

    workload = Workload(10.0, (Task("t", "vgg", Trace((0.0, 1.0, 4.0))),))
    slowed = slow_down(workload, 2.0, 5.0)
    assert slowed.tasks[0].load == Trace((0.0, 2.0))


def test_laps_of_a_workload_have_each_arrival_of_a_trace_once_and_others_anew() -> None:
    arrivals = tuple(number * 0.7 for number in range(30))
    tasks = (
        Task("trace", "vgg", Trace(arrivals)),
        Task("random", "vgg", Poisson(9.0)),
        Task("frames", "vgg", Periodic(9.0, phase_s=0.05)),
    )
    found = laps(Workload(21.0, tasks, seed=3), 5.0)
    assert [lap.duration_s for lap in found] == [5.25] * 4
    assert len({lap.seed for lap in found}) == 4
    at_s: list[float] = []
    for number, lap in enumerate(found):
        assert lap.tasks[1:] == tasks[1:]
        load = lap.task("trace").load
        assert isinstance(load, Trace)
        at_s += [number * 5.25 + arrival_s for arrival_s in load.arrivals_s]
        assert all(0 <= arrival_s < 5.25 for arrival_s in load.arrivals_s)
    assert at_s == pytest.approx(list(arrivals))
    assert len(laps(Workload(2.0, tasks), 5.0)) == 1


def test_real_time_clients_alone_are_those_of_the_workload() -> None:
    tasks = realtime_only(WORKLOADS["E"]).tasks
    assert all(isinstance(task.load, Poisson) for task in tasks)
    assert len(tasks) == 5


def test_the_deadline_of_a_frame_is_the_next_one() -> None:
    tasks = due_before_the_next(WORKLOADS["E"]).tasks
    deadlines_s = {(task.job_class, task.deadline_s) for task in tasks}
    assert deadlines_s == {("realtime", 0.05), ("besteffort", None)}


def test_a_trace_of_other_models_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    task = '{"id": "a_rt", "load": {"type": "continuous"}, "client": {"model_name": "mine"}}'
    file.write_text(f'{{"time": 1, "tasks": [{task}]}}')
    with pytest.raises(ValueError, match=r"mine\.json': task 'a_rt' asks 'mine', not resnet152"):
        read_real(file)
