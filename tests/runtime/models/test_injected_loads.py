"""Loads that crash, hang, are slow, fail half-way or lose their file, in a real runtime.

``FAULTS`` is imported by the runtime's interpreter before anything else and stands between a
segment and its source; the file ``fault`` says what happens to the next segment number 2, or that
every exchange for warm sessions crashes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.errors import BriskError, UnavailableError
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.runtime.sessions.attempts import MOST_DEATHS
from brisk.segments.model.sources import BareModel
from brisk.stub.runtime_client.client import RuntimeClient
from support.models.segment_models import info, save
from support.open_files import skip_without_leases
from support.pipeline_entries import write
from support.runtime.runtime_process import (
    describe,
    end_processes,
    infer,
    is_settled,
    opened,
    processes_of,
    quick_model,
    submit,
    worker_of,
)
from support.waiting import wait_until

FAULTS = '''
import os, pathlib, signal, sys, threading, time

def strike(index):
    """A word is done once and then forgotten, a word with "!" each time."""
    file = pathlib.Path(os.environ["BRISK_TEST_FAULT"])
    if index != 2 or not file.exists():
        return
    word, _, argument = file.read_text().partition(" ")
    if not word.endswith("!"):
        file.unlink()
    if word.startswith("crash"):
        signal.raise_signal(11)  # in this thread: else the load may end before another dies
    elif word.startswith("fail"):
        raise ValueError("injected")
    elif word.startswith("short"):
        raise MemoryError
    elif word.startswith("hang") and threading.current_thread() is not threading.main_thread():
        time.sleep(3600)
    elif word.startswith("slow"):
        time.sleep(float(argument or 0.5))
    elif word.startswith("truncate"):
        os.truncate(argument, 4096)

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "brisk.runtime.sessions.segment_session":
            return None
        sys.meta_path.remove(self)
        from brisk.segments import starting
        class Table(starting.SegmentTable):
            def __init__(self, count, load):
                def struck(index):
                    strike(index)
                    return load(index)
                super().__init__(count, struck)
        starting.SegmentTable = Table
        load_warm = starting.StartingSegments.load_warm
        def crash_or_load_warm(self, may_go_on):
            file = pathlib.Path(os.environ["BRISK_TEST_FAULT"])
            is_meant = len(self.program.plan.segments) > 2 and file.exists()
            if is_meant and file.read_text() == "exchange!":
                signal.raise_signal(11)
            return load_warm(self, may_go_on)
        starting.StartingSegments.load_warm = crash_or_load_warm
        return None

if "brisk.runtime" in sys.orig_argv:
    sys.meta_path.insert(0, Finder())
'''

WIDTH, LAYERS, BATCH = 512, 24, 256
"""Of a model of several segments."""
ROWS = np.random.default_rng(5).standard_normal((BATCH, WIDTH)).astype(np.float32)


def _chain(path: Path, layers: int = LAYERS) -> tuple[Path, np.ndarray]:
    """Products with a bounded function between them, and the answer to ``ROWS``."""
    made = np.random.default_rng(6)
    weights = [
        (made.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        for _ in range(layers)
    ]
    nodes, value, answer = [], "x", ROWS
    for number, weight in enumerate(weights):
        product, result = f"p{number}", "y" if number == layers - 1 else f"v{number}"
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [product]))
        nodes.append(helper.make_node("Softsign", [product], [result]))
        answer = answer @ weight
        answer, value = answer / (1 + abs(answer)), result
    path.parent.mkdir(parents=True, exist_ok=True)
    ends = [[info(name, BATCH, WIDTH)] for name in "xy"]
    named = {f"w{number}": weight for number, weight in enumerate(weights)}
    return save(path, nodes, *ends, named), answer


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "fault"


@pytest.fixture(scope="module")
def faulty_place(fault: Path) -> Iterator[RuntimePaths]:
    """A runtime with the fault in it, which serves all tests; a model besides is always open."""
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    made = RuntimePaths(parent / "runtime", "cpu")
    (fault.parent / "sitecustomize.py").write_text(FAULTS)
    with pytest.MonkeyPatch.context() as environment:
        search = f"{fault.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        for name, value in {
            "PYTHONPATH": search,
            "BRISK_TEST_FAULT": str(fault),
            "BRISK_CACHE_DIR": str(fault.parent / "cache"),
            "BRISK_THREADS": "2",
            "BRISK_ARTEFACTS": "use",
            "BRISK_SAMPLED_SHARE": "0",
        }.items():
            environment.setenv(name, value)
        with opened(made, describe(quick_model(fault.parent / "other.onnx"))):
            yield made
    end_processes(made)
    shutil.rmtree(parent)


@pytest.fixture
def other(faulty_place: RuntimePaths, quick: Path) -> Iterator[RuntimeClient]:
    with opened(faulty_place, describe(quick)) as connection:
        yield connection


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, np.ndarray]:
    return _chain(tmp_path / "chain" / "1" / "model.onnx")


def _assert_others_are_served(other: RuntimeClient) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(infer(other, rows), -rows)


@pytest.mark.parametrize("word", ["slow", "hang"])
def test_a_slow_or_hung_lane_delays_the_answer(
    faulty_place: RuntimePaths,
    other: RuntimeClient,
    chain: tuple[Path, np.ndarray],
    fault: Path,
    word: str,
) -> None:
    path, expected = chain
    worker = worker_of(faulty_place)
    fault.write_text(word)
    with opened(faulty_place, describe(path)) as connection:
        np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
        _assert_others_are_served(other)
    assert worker_of(faulty_place) == worker


def test_a_request_that_is_late_while_a_segment_loads_does_not_end_the_worker(
    faulty_place: RuntimePaths, other: RuntimeClient, chain: tuple[Path, np.ndarray], fault: Path
) -> None:
    """It waits for the segment, which is told nothing; runs that do not end are ended by force."""
    path, expected = chain
    worker = worker_of(faulty_place)
    fault.write_text("slow 3")
    with opened(faulty_place, describe(path)) as connection:
        late_ns = time.monotonic_ns() + 200_000_000
        error = submit(connection, ROWS, deadline_ns=late_ns)[1].wait().error
        assert isinstance(error, UnavailableError)
        np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
        _assert_others_are_served(other)
    assert worker_of(faulty_place) == worker


def test_a_load_that_ends_its_worker_once_is_done_again(
    faulty_place: RuntimePaths, other: RuntimeClient, chain: tuple[Path, np.ndarray], fault: Path
) -> None:
    path, expected = chain
    worker = worker_of(faulty_place)
    fault.write_text("crash")
    with opened(faulty_place, describe(path)) as connection:
        np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
        _assert_others_are_served(other)
    assert worker_of(faulty_place) != worker


def test_a_load_that_ends_every_worker_is_given_up_and_others_are_served(
    faulty_place: RuntimePaths, other: RuntimeClient, chain: tuple[Path, np.ndarray], fault: Path
) -> None:
    path, _ = chain
    fault.write_text("crash!")
    try:
        with pytest.raises(BriskError, match="worker"):
            _load_and_ask(faulty_place, path)
        _assert_others_are_served(other)
    finally:
        fault.unlink()


def test_a_load_that_ends_every_worker_fails_no_request_of_another_model(
    faulty_place: RuntimePaths, chain: tuple[Path, np.ndarray], fault: Path, tmp_path: Path
) -> None:
    """Requests of another model are being computed all the time, by every worker that dies."""
    path, _ = chain
    other, expected = _chain(tmp_path / "other" / "1" / "model.onnx", layers=6)
    assert len(BareModel(other, 2).plan.segments) <= 2  # the fault strikes number 2
    answers: list[np.ndarray | BaseException] = []
    is_over = threading.Event()

    def ask() -> None:
        try:
            while not is_over.is_set():
                answers.append(infer(connection, ROWS))
        except BaseException as error:  # noqa: BLE001  # told by the assertion below
            answers.append(error)

    with opened(faulty_place, describe(other)) as connection:
        infer(connection, ROWS)
        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        fault.write_text("crash!")
        try:
            with pytest.raises(BriskError, match="worker"):
                _load_and_ask(faulty_place, path)
        finally:
            fault.unlink()
            before = len(answers)
            deadline_s = time.monotonic() + 30
            while len(answers) < before + 3 and time.monotonic() < deadline_s:
                time.sleep(0.01)
            is_over.set()
            for thread in asking:
                thread.join()
    assert len(answers) >= 3
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def test_a_model_whose_exchange_ends_every_worker_is_served_as_it_started(
    faulty_place: RuntimePaths, other: RuntimeClient, chain: tuple[Path, np.ndarray], fault: Path
) -> None:
    path, expected = chain
    description = describe(path)
    workers = set(processes_of(faulty_place)[1:])  # one may end before the first look below
    assert workers

    def has_settled() -> bool:
        workers.update(processes_of(faulty_place)[1:])
        return is_settled(faulty_place, description.name)

    fault.write_text("exchange!")
    try:
        with opened(faulty_place, description) as connection:
            wait_until(has_settled, "the end of the attempts", every_s=0.02)
            assert 2 <= len(workers) <= 1 + MOST_DEATHS
            worker = worker_of(faulty_place)
            np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
            _assert_others_are_served(other)
            assert worker_of(faulty_place) == worker
    finally:
        fault.unlink()


def test_a_model_that_memory_was_short_for_is_served_once_there_is_enough(
    faulty_place: RuntimePaths, other: RuntimeClient, chain: tuple[Path, np.ndarray], fault: Path
) -> None:
    path, expected = chain
    description = describe(path)
    fault.write_text("short!")
    with opened(faulty_place, description) as connection:
        worker = worker_of(faulty_place)
        for _ in range(2):
            error = submit(connection, ROWS)[1].wait().error
            assert isinstance(error, UnavailableError), error
            assert "not enough memory" in str(error)
        _assert_others_are_served(other)
        fault.unlink()
        np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
        wait_until(lambda: is_settled(faulty_place, description.name), "kernels that stay", 60.0)
        np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
        assert worker_of(faulty_place) == worker


def test_a_pipeline_whose_network_memory_was_short_for_is_refused_and_loads_later(
    faulty_place: RuntimePaths, other: RuntimeClient, chain: tuple[Path, np.ndarray], fault: Path
) -> None:
    path, expected = chain
    node = {
        "inputs": {"x": "request.x"},
        "variants": {"only": {"file": path.name, "accuracy": 1}},
    }
    described = {"objective_ms": 10_000, "nodes": {"single": node}, "outputs": {"y": "single.y"}}
    description = describe(write(path.parent, described), name="traffic")
    worker = worker_of(faulty_place)
    fault.write_text("short!")
    with (
        pytest.raises(UnavailableError, match="not enough memory"),
        opened(faulty_place, description),
    ):
        pass
    _assert_others_are_served(other)
    fault.unlink()
    with opened(faulty_place, description) as connection:
        np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
    assert worker_of(faulty_place) == worker


def _load_and_ask(place: RuntimePaths, path: Path) -> None:
    """Either the load or the request is told; which is a matter of time."""
    with opened(place, describe(path)) as connection:
        error = submit(connection, ROWS)[1].wait().error
        if error is not None:
            raise error


def test_a_load_that_fails_half_way_fails_requests_by_its_reason_and_can_be_tried_again(
    faulty_place: RuntimePaths, other: RuntimeClient, chain: tuple[Path, np.ndarray], fault: Path
) -> None:
    path, expected = chain
    worker = worker_of(faulty_place)
    fault.write_text("fail")
    with pytest.raises(BriskError, match="segment 2: ValueError: injected"):
        _load_and_ask(faulty_place, path)
    _assert_others_are_served(other)
    with opened(faulty_place, describe(path)) as connection:
        np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
    assert worker_of(faulty_place) == worker


def test_a_model_cut_off_while_it_is_mapped_answers_as_it_was_loaded(
    faulty_place: RuntimePaths, other: RuntimeClient, chain: tuple[Path, np.ndarray], fault: Path
) -> None:
    """Who cuts it off waits until its pages are copied: without, touching one is SIGBUS."""
    path, expected = chain
    skip_without_leases(fault.parent)
    worker = worker_of(faulty_place)
    fault.write_text(f"truncate {path}")
    with opened(faulty_place, describe(path)) as connection:
        np.testing.assert_allclose(infer(connection, ROWS), expected, rtol=1e-4, atol=1e-5)
    assert not fault.exists()
    assert path.stat().st_size == 4096
    _assert_others_are_served(other)
    assert worker_of(faulty_place) == worker
