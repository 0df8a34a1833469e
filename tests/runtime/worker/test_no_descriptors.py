"""A worker that can open nothing more: it serves on, and ends no stub whose server lives."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.runtime.peers.connections import ORPHAN_GRACE_NS
from brisk.telemetry.observer import Observer
from support.open_files import no_descriptor_left
from support.runtime.runtime_process import describe, opened, worker_of

pytestmark = pytest.mark.timing

LONG_ENOUGH_S = ORPHAN_GRACE_NS / 1e9 + 2.5
"""For a worker, which looks once a second, to end a stub whose server has gone."""

STUB = """
import os, sys
from pathlib import Path
from brisk.protocol.channel import greet
from brisk.protocol.runtime_paths import RuntimePaths

connection = RuntimePaths(Path(sys.argv[1]), "cpu").connect(10.0)
print("connected", flush=True)
sys.stdin.readline()
greet(connection, os.getppid())
print("greeted", flush=True)
sys.stdin.readline()
"""


class Stub:
    """A process that a worker takes for a stub of this one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self._reads() == "connected"

    def _reads(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def greet(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._reads() == "greeted"

    @property
    def lives(self) -> bool:
        return self._process.poll() is None


@contextmanager
def a_stub(place: RuntimePaths) -> Iterator[Stub]:
    with subprocess.Popen(
        [sys.executable, "-c", STUB, str(place.base)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Stub(process)
        finally:
            process.kill()


def test_it_ends_no_stub_whose_server_it_cannot_look_for(place: RuntimePaths, quick: Path) -> None:
    with opened(place, describe(quick)):
        early, late = a_stub(place), a_stub(place)
        observer = Observer(place, Role.FOREGROUND)
    with early as first, late as second, observer:
        first.greet()
        worker = worker_of(place)
        with no_descriptor_left(worker):
            second.greet()
            time.sleep(LONG_ENOUGH_S)
            assert observer.statistics()
        time.sleep(LONG_ENOUGH_S)
        assert first.lives
        assert second.lives
        held = [each.labels for each in observer.statistics() if each.metric == "brisk_held_bytes"]
        assert ("foreground", "resident") in held
        assert worker_of(place) == worker
