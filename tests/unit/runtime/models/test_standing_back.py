"""Loads beside a real-time model are less urgent than it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.os_priority import LOADING
from brisk.protocol.records import LoadModel, Region
from brisk.protocol.request_flags import MARK_BYTES
from brisk.runtime.models.loader import LoadOutcome
from brisk.runtime.models.table import SessionTable
from brisk.runtime.preemption.lower_priority import standing_back


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_and_the_threads_it_starts_are_nicer_and_the_caller_is_not() -> None:
    found: list[int] = []

    def work() -> str:
        found.append(niceness())
        child = threading.Thread(target=lambda: found.append(niceness()))
        child.start()
        child.join()
        return "done"

    before = niceness()
    assert standing_back(work) == "done"
    assert found == [LOADING] * 2
    assert niceness() == before < LOADING
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_what_the_work_raises_reaches_the_caller() -> None:
    def work() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        standing_back(work)


class _Loader:
    """Notes how each load was asked for."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def load(
        self,
        ticket: int,
        path: Path,
        job_class: str,
        begin: Any,
        end: Any,
        stands_back: bool = False,
    ) -> int:
        self.asked.append(stands_back)
        return ticket

    def give_memory_back(self) -> None:
        return None


def _peer(number: int) -> Any:
    return SimpleNamespace(
        number=number,
        view=SimpleNamespace(memory=lambda region: memoryview(bytearray(MARK_BYTES))),
    )


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (("realtime", "normal"), True),
        (("realtime", "realtime"), False),
        (("normal", "normal"), False),
    ],
)
def test_a_load_stands_back_while_a_more_urgent_model_is_served(
    tmp_path: Path, classes: tuple[str, str], expected: bool
) -> None:
    paths = [tmp_path / name / "model.onnx" for name in ("served", "loaded")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(b"model")
    loader = _Loader()
    table = SessionTable(loader, SimpleNamespace())  # type: ignore[arg-type]
    served, loaded = (
        LoadModel(path.parent.name, 1, str(path), 0, False, 8, kind, mark=Region(0, 0, MARK_BYTES))
        for path, kind in zip(paths, classes, strict=True)
    )
    table.bind(_peer(1), served)
    assert loader.asked == [False]  # nothing is served yet
    session: Any = SimpleNamespace(close=lambda: None, table=object())
    table.settle(LoadOutcome(1, session, None))
    table.bind(_peer(2), loaded)
    assert loader.asked == [False, expected]
