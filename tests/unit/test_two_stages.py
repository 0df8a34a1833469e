"""Which process of a parallel run gets which tests, and when; processes are played."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("xdist", reason="pytest-xdist is not installed")

from two_stages import BESIDE, MARK, TwoStages, is_timed

ROOT = Path(__file__).resolve().parents[2]
CLOCKS = re.compile(r"perf_counter|process_time|processor_s|cpu_s|monotonic\(\) - ")
"""What a file that measures a time has in it."""

GRAPH = [f"tests/unit/graph/test_element_types.py::test_{number}" for number in range(4)]
WIRE = [f"tests/unit/protocol/test_codec.py::test_{number}[a::b]" for number in range(4)]
SERVER = [f"tests/server/priorities/test_faults.py::test_{number}" for number in range(3)]
GATED = ["tests/unit/runtime/requests/test_transport.py::test_0"]


class Played:
    """A process: what it was sent, and whether it was told that nothing more comes."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="played")
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    """Two processes that run ``tests`` in turns, each as soon as it knows what comes next."""

    def __init__(self, tests: list[str]) -> None:
        options = SimpleNamespace(tx=["2*popen"], numprocesses=2, loadscopereorder=True)
        config = SimpleNamespace(
            option=options, rootpath=ROOT, getvalue=lambda name: getattr(options, name)
        )
        self.tests = tests
        self.scheduler = TwoStages(config)  # type: ignore[arg-type]
        self.living = [Played(), Played()]
        self.order: list[tuple[int, str]] = []
        played = list(self.living)
        for process in played:
            self.scheduler.add_node(process)  # type: ignore[arg-type]
        for process in played:
            self.scheduler.add_node_collection(process, tests)  # type: ignore[arg-type]
        self.scheduler.schedule()
        done = dict.fromkeys(played, 0)
        for _ in range(1000):
            for number, process in enumerate(played):
                if process not in self.living:
                    continue
                known = len(process.sent) - done[process]
                if known > 1 or (known == 1 and process.shutting_down):
                    index = process.sent[done[process]]
                    done[process] += 1
                    self.order.append((number, tests[index]))
                    self.scheduler.mark_test_complete(process, index)  # type: ignore[arg-type]
                elif known == 0 and process.shutting_down:
                    self.living.remove(process)
                    if process in self.scheduler.nodes:
                        assert self.scheduler.remove_node(process) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tests",
    [GRAPH + WIRE + SERVER, SERVER + GRAPH + GATED + WIRE, GRAPH + SERVER, SERVER, GRAPH + WIRE],
    ids=["in order", "mixed", "one file beside", "nothing beside", "nothing alone"],
)
def test_all_tests_run_once_and_what_runs_alone_runs_last_in_one_process(tests: list[str]) -> None:
    run = Run(tests)
    assert sorted(test for _, test in run.order) == sorted(tests)
    assert run.living == []
    assert run.scheduler.tests_finished
    alone = [place for place, (_, test) in enumerate(run.order) if test in SERVER + GATED]
    assert alone == list(range(len(tests) - len(alone), len(tests)))
    assert len({run.order[place][0] for place in alone}) <= 1


def test_a_process_that_has_files_beside_others_is_given_whole_files() -> None:
    run = Run(GRAPH + WIRE)
    assert len({number for number, test in run.order if test in GRAPH}) == 1
    assert {number for number, _ in run.order} == {0, 1}


def test_what_starts_servers_is_marked() -> None:
    """But for what asserts nothing about times; what measures none runs beside others."""
    files = [*(ROOT / "tests" / "server").rglob("test_*.py")]
    marked = {file for file in files if MARK in file.read_text()}
    beside = {file for file in marked if BESIDE in file.read_text()}
    assert len(marked) > len(files) / 2
    assert {file for file in files if is_timed(file)} == marked - beside
    assert 0 < len(beside) < len(marked)
    measuring = {file.name for file in beside if CLOCKS.search(file.read_text())}
    assert measuring <= {"test_completed_view.py"}, "which has a bound of seconds"


def test_a_mark_within_a_text_is_none() -> None:
    """What ``test_second_run`` writes and runs has marks of its own."""
    file = ROOT / "tests" / "unit" / "test_second_run.py"
    assert MARK in file.read_text()
    assert not is_timed(file)


def test_the_short_files_come_last(request: pytest.FixtureRequest) -> None:
    unit = ROOT / "tests" / "unit"
    are_short = [item.path.is_relative_to(unit) for item in request.session.items]
    assert are_short == sorted(are_short)
