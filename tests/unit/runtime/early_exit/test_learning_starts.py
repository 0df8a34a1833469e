"""When the process that learns first early answers is started, and what it leaves alone."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.exits.files.learning_record import (
    BUSY,
    OTHER_FILES,
    Aim,
    LearningRecord,
    Stage,
    collected,
    lock_file,
    read_record,
    write_record,
)
from brisk.exits.files.sample_files import write_samples
from brisk.exits.files.versions import learned_file, make_private_folder
from brisk.runtime.early_exit import first_learning
from brisk.runtime.early_exit.first_learning import MOST_FAILURES, FirstLearning
from brisk_bench.samples.writer import GraphWriter
from support.runtime.runtime_processes import hurry
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"no model")
    make_private_folder(file)
    return file


def put_classifier(file: Path, classes: int = 3) -> None:
    graph = GraphWriter("small", opset=18)
    value = graph.input("features", "float32", ("batch", 8))
    value = graph.add("Gemm", value, graph.weight(np.ones((8, classes))))
    scores = graph.add("Softmax", value, axis=1)
    graph.output(scores, "scores", "float32", ("batch", classes))
    onnx.save(graph.model(), file)


def run(model: Path, aim: Aim) -> int:
    """Return the exit status of the process that learns."""
    command = [sys.executable, "-m", "brisk.runtime.early_exit.learning_process", str(model)]
    command += [json.dumps(aim), "--threads", "1"]
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            hurry([process.pid])  # it steps aside once it has begun
            time.sleep(0.05)
        return process.returncode


def test_a_process_that_finds_another_file_than_the_loaded_one_does_nothing(model: Path) -> None:
    aim = Aim.of(model, 0.98, "", "")
    assert run(model, aim._replace(model_stamp="1 2")) == OTHER_FILES
    assert read_record(model) is None
    assert run(model, aim) == 0
    record = read_record(model)
    assert record is not None
    assert (record.stage, record.aim) == (Stage.UNFIT, aim)


def test_a_smaller_model_may_have_a_name_that_looks_like_an_option(model: Path) -> None:
    aim = Aim.of(model, 0.98, "", "--help")
    learning = FirstLearning(1 << 20, is_on=True, learns=True)

    def has_looked() -> bool:
        learning.look(model, aim, 1)
        if learning.process_id is not None:
            hurry([learning.process_id])
        return read_record(model) is not None

    wait_until(has_looked, "a record", every_s=0.05)
    learning.forget(set())
    record = read_record(model)
    assert record is not None
    assert record.aim == aim


@pytest.mark.parametrize(
    ("stage", "wanted", "is_kept"),
    [(Stage.UNFIT, 0, False), (Stage.REFUSED, 0, False), (Stage.REFUSED, 4000, True)],
)
def test_samples_go_once_nothing_is_learned_from_them_any_more(
    model: Path, stage: Stage, wanted: int, is_kept: bool
) -> None:
    aim = Aim.of(model, 0.98, "", "")
    write_record(model, LearningRecord(stage, aim, wanted=wanted, reason="slow"))
    write_samples(model, [{"features": np.ones((5, 8), np.float32)}])
    FirstLearning(1 << 20, is_on=True, learns=False).look(model, aim, 1)
    assert collected(model)[0] == 5, "the other worker deletes them"
    FirstLearning(1 << 20, is_on=True, learns=True).look(model, aim, 1)
    assert collected(model)[0] == (5 if is_kept else 0)


def test_what_the_file_before_was_asked_teaches_nothing_of_the_present_one(model: Path) -> None:
    """They may have the same form, and another preprocessing."""
    put_classifier(model)
    before = Aim.of(model, 0.98, "", "")
    write_record(model, LearningRecord(Stage.REFUSED, before, tries=1, wanted=4054))
    write_samples(model, [{"features": np.zeros((9000, 8), np.float32)}])
    assert collected(model)[0] == 9000
    stricter = before._replace(accuracy=0.985)
    assert run(model, stricter) == 0
    assert collected(model)[0] == 9000, "they are of the same file"
    put_classifier(model, classes=4)
    aim, learning = Aim.of(model, 0.98, "", ""), FirstLearning(1 << 20, is_on=True, learns=True)
    learned_file(model).write_bytes(b"caches of the file before")
    learning.begin(model, aim)
    assert not learned_file(model).exists()
    assert run(model, aim) == 0
    record = read_record(model)
    assert record is not None
    assert (record.stage, record.samples, record.tries) == (Stage.COLLECTING, 0, 0)
    assert record.aim == aim
    assert collected(model) == (0, 0)


@pytest.mark.parametrize("tries", [0, 1])
def test_learning_that_was_killed_goes_on_with_the_samples_that_it_had(
    model: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """It began with as many as found room, fewer than are wanted."""
    monkeypatch.setattr(first_learning, "find_spec", lambda name: ModuleSpec(name, None))
    aim, learning = Aim.of(model, 0.98, "", ""), FirstLearning(1 << 20, is_on=True, learns=True)
    record = LearningRecord(Stage.LEARNING, aim, wanted=2027, tries=tries)
    write_record(model, record)
    write_samples(model, [{"features": np.zeros((900, 8), np.float32)}])
    assert learning.look(model, aim, 1) == (False, "learning from 0 samples")
    assert learning.process_id is not None
    learning.forget(set())


def test_one_process_at_a_time_learns_of_a_model_whichever_runtime_has_started_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers may share a cache directory; the files of one would be the other's."""
    aim, learning = Aim.of(model, 0.98, "", ""), FirstLearning(1 << 20, is_on=True, learns=True)

    def has_ended() -> bool:
        learning.look(model, aim, 1)
        if learning.process_id is not None:
            hurry([learning.process_id])
        return learning.process_id is None

    # as other machines do: NFS has such locks of regular files alone, and those open for writing
    with lock_file(model).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(model, aim) == BUSY
        for _ in range(MOST_FAILURES + 1):
            monkeypatch.setattr(first_learning, "RESTART_S", 0.0)
            learning.look(model, aim, 1)
            monkeypatch.setattr(first_learning, "RESTART_S", 1e6)
            wait_until(has_ended, "a process that finds another one", every_s=0.05)
        assert learning.look(model, aim, 1) == (False, "is looked at"), "that is no failure"
        assert read_record(model) is None
    monkeypatch.setattr(first_learning, "RESTART_S", 0.0)
    learning.look(model, aim, 1)
    wait_until(lambda: has_ended() and read_record(model) is not None, "its turn", every_s=0.05)


def test_containers_too_many_to_be_noted_start_no_process_after_the_other(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own time of the file, and what one notes pushes another one's out."""
    aim, learning = Aim.of(model, 0.98, "", ""), FirstLearning(1 << 20, is_on=True, learns=True)
    of_others = aim._replace(model_stamp="1 2")
    write_record(model, LearningRecord(Stage.UNFIT, of_others))
    learning.look(model, aim, 1)
    assert learning.process_id is not None

    def has_ended() -> bool:
        if learning.process_id is not None:
            hurry([learning.process_id])
        learning.look(model, aim, 1)
        return learning.process_id is None

    monkeypatch.setattr(first_learning, "RESTART_S", 1e6)
    wait_until(has_ended, "a first process")
    write_record(model, LearningRecord(Stage.UNFIT, of_others))
    learning.look(model, aim, 1)
    assert learning.process_id is None
    learning.look(model, aim._replace(accuracy=0.99), 1)
    assert learning.process_id is not None, "another promise is looked at at once"
    learning.forget(set())
    learning.begin(model, aim)
    learning.look(model, aim, 1)
    assert learning.process_id is not None, "so is another load"
    learning.forget(set())


def test_a_load_leaves_the_files_of_a_process_that_learns_for_another_container(
    model: Path,
) -> None:
    aim, learning = Aim.of(model, 0.98, "", ""), FirstLearning(1 << 20, is_on=True, learns=True)
    of_another = aim._replace(model_stamp="1 2")
    before = LearningRecord(Stage.SERVED, of_another)
    write_record(model, before)
    learned_file(model).write_bytes(b"learned")
    with lock_file(model).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        learning.keep(model, aim)
        assert read_record(model) == before
        learning.begin(model, aim)
        assert learned_file(model).exists()
    learning.keep(model, aim)
    assert read_record(model) == before.of_copy(aim)
    learning.begin(model, aim)
    assert not learned_file(model).exists()


def test_copies_of_a_model_that_share_a_cache_share_what_is_learned(model: Path) -> None:
    """Each container may have its own time of the file."""
    put_classifier(model)
    write_samples(model, [{"features": np.zeros((9, 8), np.float32)}])
    stamps = []
    for time_ns in (10**18, 2 * 10**18, 3 * 10**18):
        os.utime(model, ns=(time_ns, time_ns))
        aim = Aim.of(model, 0.98, "", "")
        stamps.append(aim.model_stamp)
        assert run(model, aim) == 0
        if len(stamps) == 1:
            record = read_record(model)
            assert record is not None
            write_record(model, replace(record, stage=Stage.REFUSED, tries=2, reason="slow"))
    record = read_record(model)
    assert record is not None
    assert (record.stage, record.tries, record.reason) == (Stage.REFUSED, 2, "slow")
    assert (*record.copies, record.aim.model_stamp) == tuple(stamps)
    assert all(record.is_for(aim._replace(model_stamp=each)) for each in stamps)
    assert collected(model)[0] == 9


@pytest.mark.parametrize(
    ("accuracy", "wanted", "tries", "share", "takes"),
    [
        (0.98, 2000, 0, 1.0, True),
        (0.98, 2000, 1, 1.0, False),
        (0.98, 2000, 1, 0.5, True),
        (0.99, 5000, 0, 1.0, False),
        (0.98, 900, 1, 1.0, True),
    ],
)
def test_no_samples_are_taken_where_too_few_find_room_to_be_tried_with(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    accuracy: float,
    wanted: int,
    tries: int,
    share: float,
    takes: bool,
) -> None:
    """``share``: of the room, for some 1,000 rows, that is full."""
    monkeypatch.setattr(first_learning, "find_spec", lambda name: ModuleSpec(name, None))
    write_samples(model, [{"features": np.zeros((1000, 8), np.float32)}])
    aim, most_bytes = Aim.of(model, accuracy, "", ""), int(collected(model)[1] / share)
    record = LearningRecord(Stage.REFUSED, aim, wanted=wanted, tries=tries)
    write_record(model, record)
    learning = FirstLearning(most_bytes, is_on=True, learns=False)
    assert learning.look(model, aim, 1)[0] is takes


def test_a_process_leaves_a_model_alone_of_which_nothing_is_left_to_learn(model: Path) -> None:
    aim = Aim.of(model, 0.98, "", "")
    record = LearningRecord(Stage.REFUSED, aim, reason="does not pay", tries=3)
    write_record(model, record)
    assert run(model, aim) == 0
    assert read_record(model) == record


def test_learning_that_keeps_failing_is_given_up_in_words_until_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process can write nothing where the cache directory is a file."""
    monkeypatch.setattr(first_learning, "RESTART_S", 0.0)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "file"))
    model = tmp_path / "model.onnx"
    model.write_bytes(b"no model")
    aim, learning = Aim.of(model, 0.98, "", ""), FirstLearning(1 << 20, is_on=True, learns=True)
    told = (False, "")

    def has_given_up() -> bool:
        nonlocal told
        told = learning.look(model, aim, 1)
        if learning.process_id is not None:
            hurry([learning.process_id])
        return told[1].startswith("given up: ")

    wait_until(has_given_up, "the last failure", every_s=0.1)
    assert told[0] is False, "samples are not wanted any more"
    assert f"has failed {MOST_FAILURES} times, for reasons that the runtime's log" in told[1]
    assert caplog.text.count("ended with status 1") == MOST_FAILURES
    assert "given up until its next load" in caplog.text
    assert learning.process_id is None
    learning.begin(model, aim)
    assert learning.look(model, aim, 1) == (False, "is looked at")
    assert learning.process_id is not None
    learning.forget(set())
    assert learning.process_id is None


def test_a_process_that_learns_of_a_file_is_ended_once_that_is_replaced(model: Path) -> None:
    aim, learning = Aim.of(model, 0.98, "", ""), FirstLearning(1 << 20, is_on=True, learns=True)
    learning.look(model, aim, 1)
    assert learning.process_id is not None
    model.with_suffix(".new").write_bytes(b"another one")
    model.with_suffix(".new").rename(model)
    collects, told = learning.look(model, aim, 1)
    assert not collects
    assert told.startswith("off: a file of the model is another than the loaded one")
    assert learning.process_id is None
    loaded_anew = Aim.of(model, 0.98, "", "")
    assert learning.look(model, loaded_anew, 1) == (False, "is looked at")
    assert learning.process_id is not None
    learning.forget(set())
