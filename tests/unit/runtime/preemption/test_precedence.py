"""Computing threads go before other processes while a real-time model is served."""

from __future__ import annotations

import ast
import contextlib
import os
import threading
import time

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.os_priority import LOADING, Precedence, set_threads
from brisk.settings import realtime_niceness
from support.open_files import no_descriptor_left


def test_threads_of_the_interpreter_are_spared_and_a_change_is_made_once() -> None:
    made: list[tuple[int, frozenset[int]]] = []
    told: list[str] = []

    def change(niceness: int, spared: frozenset[int]) -> bool:
        made.append((niceness, spared))
        return True

    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        precedence = Precedence(-7, told.append, lambda: {threading.get_native_id()}, change)
        for serves in (False, True, True, False, False):
            precedence.follow(serves)
    finally:
        ended.set()
        other.join()
    assert not told
    assert [niceness for niceness, _ in made] == [-7, os.getpriority(os.PRIO_PROCESS, 0)]
    assert other.native_id in made[0][1]
    assert threading.main_thread().native_id not in made[0][1]


def test_where_it_is_refused_it_is_told_once_and_not_tried_again() -> None:
    tried: list[int] = []
    told: list[str] = []

    def refuse(niceness: int, spared: frozenset[int]) -> bool:
        tried.append(niceness)
        return False

    precedence = Precedence(-7, told.append, set, refuse)
    for serves in (True, False, True):
        precedence.follow(serves)
    assert tried == [-7]
    (text,) = told
    assert "niceness -7 is refused" in text


def test_a_niceness_reaches_all_threads_but_those_excepted() -> None:
    """In a child: going back down needs a privilege."""
    child = os.fork()
    if not child:
        ended = threading.Event()
        other = threading.Thread(target=ended.wait)
        other.start()
        spared = other.native_id or 0
        before = os.getpriority(os.PRIO_PROCESS, 0)
        done = set_threads(before + 3, {spared})
        found = [os.getpriority(os.PRIO_PROCESS, each) for each in (os.getpid(), spared)]
        os._exit(0 if done and found == [before + 3, before] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("text", ["-21", "1", "low"])
def test_a_wrong_niceness_is_named(text: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"BRISK_REALTIME_NICENESS.*'{text}'"):
        realtime_niceness({"BRISK_REALTIME_NICENESS": text})


def test_a_niceness_is_read_and_has_a_default() -> None:
    assert realtime_niceness({}) == -15
    assert realtime_niceness({"BRISK_REALTIME_NICENESS": "0"}) == 0


def test_a_thread_that_stands_aside_lets_others_go_before_it() -> None:
    """In a child: going back down needs a privilege."""
    child = os.fork()
    if not child:
        status = 1
        try:
            ended = threading.Event()
            other = threading.Thread(target=ended.wait)
            other.start()
            assert other.native_id is not None
            usual = os.getpriority(os.PRIO_PROCESS, 0)
            precedence = Precedence(0, print, set)
            assert precedence.stand_aside(other.native_id) == frozenset()
            moved = os.getpriority(os.PRIO_PROCESS, other.native_id) == max(LOADING, usual)
            stayed = os.getpriority(os.PRIO_PROCESS, 0) == usual
            ended.set()
            status = 0 if moved and stayed else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _helpers_niceness() -> tuple[list[int], list[int]]:
    """Of ONNX Runtime's own threads, beside a run that stands aside, and when it is over."""
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    size = 1500
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "x"], ["y"])
    graph = helper.make_graph([node], "product", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    x, ended = np.ones((size, size), np.float32), threading.Event()

    def compute() -> None:
        while not ended.is_set():
            session.run(None, {"x": x})

    computing = threading.Thread(target=compute)
    computing.start()
    assert computing.native_id is not None
    precedence = Precedence(-1, print, set, lambda niceness, spared: True)
    precedence.follow(True)
    helpers: frozenset[int] = frozenset()
    for _ in range(200):  # until it is seen running
        helpers = precedence.stand_aside(computing.native_id)
        if helpers:
            break
        time.sleep(0.01)
    beside = [os.getpriority(os.PRIO_PROCESS, each) for each in helpers]
    precedence.rejoin(helpers)
    behind = [os.getpriority(os.PRIO_PROCESS, each) for each in helpers]
    ended.set()
    computing.join()
    return beside, behind


@pytest.mark.skipif(os.geteuid() != 0, reason="threads come back by a privilege alone")
def test_what_computes_with_a_run_stands_aside_with_it_and_comes_back() -> None:
    """In a child: the niceness of its threads is changed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.write(writing, repr(_helpers_niceness()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        beside, behind = ast.literal_eval(pipe.read())
    os.waitpid(child, 0)
    assert beside
    assert set(beside) == {LOADING}
    assert set(behind) == {-1}


def test_without_a_descriptor_precedence_is_taken_at_the_next_change() -> None:
    told: list[str] = []
    made: list[int] = []

    def change(niceness: int, spared: frozenset[int]) -> bool:
        made.append(len(os.listdir("/proc/self/task")) and niceness)
        return True

    precedence = Precedence(-7, told.append, set, change)
    with no_descriptor_left():
        precedence.follow(True)
    assert not made
    precedence.follow(True)
    assert made == [-7]
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    assert other.native_id is not None
    try:
        with no_descriptor_left():
            assert precedence.stand_aside(other.native_id) == frozenset()
    finally:
        ended.set()
        other.join()
    assert not told
