"""Memory is given back while no request waits, and behind loads."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator

import pytest

from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.models import yielding
from brisk.runtime.models.loader import Loader
from brisk.runtime.models.yielding import Yielding, tidy_up
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.settings import ArtefactUse
from brisk.stub.runtime_client.runtime_process import allocator_settings
from support.runtime.gates import LAZY
from support.waiting import TIMED


class Knot:
    """Unreachable only for the collector."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def knot() -> Iterator[weakref.ref[Knot]]:
    gc.disable()
    yield weakref.ref(Knot())
    gc.enable()


def beside_a_run() -> RunsInProgress:
    return RunsInProgress([LAZY])


def test_it_waits_for_the_end_of_requests_and_then_collects(knot: weakref.ref[Knot]) -> None:
    runs, looks = beside_a_run(), iter(range(3))

    def await_load(timeout_s: float) -> bool:
        if next(looks) == 2:
            runs.leading.clear()
        return False

    assert tidy_up(Yielding(runs), await_load)
    assert list(looks) == []
    assert knot() is None


def test_a_load_that_comes_meanwhile_goes_first(knot: weakref.ref[Knot]) -> None:
    loads = [False, True]
    assert not tidy_up(Yielding(beside_a_run()), lambda timeout_s: loads.pop(0))
    assert knot() is not None


def test_requests_without_an_end_do_not_keep_it_for_ever(
    knot: weakref.ref[Knot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yielding, "LONGEST_WAIT_S", 0.01)
    assert tidy_up(Yielding(beside_a_run()), lambda timeout_s: False)
    assert knot() is None


GIVING_BACK = """
import sys
from brisk.runtime.memory import give_back

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) // 256

def freed(mib):
    blocks = [bytearray(1 << 20) for _ in range(mib)]
    for block in blocks:
        block[::4096] = bytes(len(block[::4096]))

freed(int(sys.argv[1]))
before = resident_mib()
print(int(give_back()), before - resident_mib())
"""


@pytest.mark.parametrize(("freed_mib", "goes_back"), [(300, True), (20, False)])
def test_much_freed_memory_goes_back_and_little_is_kept(freed_mib: int, goes_back: bool) -> None:
    environment = {
        **os.environ,
        **allocator_settings({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}),
    }
    command = [sys.executable, "-c", GIVING_BACK, str(freed_mib)]
    ended = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    given, returned_mib = map(int, ended.stdout.split())
    assert given == goes_back
    assert returned_mib > 200 if goes_back else abs(returned_mib) < 5


@pytest.mark.timing
@pytest.mark.beside  # what is compared is this process's own time on a core
def test_models_that_go_together_leave_a_lane_that_rests() -> None:
    """Each asks for it: what was asked for twice stopped itself, again and again."""
    loader = Loader(
        "cpu", 1, lambda: None, ArtefactUse.OFF, CacheWatch(None), 60.0, RunsInProgress()
    )
    for _ in range(5):
        loader.give_memory_back()
    time.sleep(0.2)
    before_s = time.process_time()
    time.sleep(0.5)
    with TIMED:
        assert time.process_time() - before_s < 0.2
