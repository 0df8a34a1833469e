"""A server whose settings are not those of the runtime that is there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from brisk import __version__
from brisk.doctor.machine import threads
from brisk.errors import InvalidConfigurationError
from brisk.protocol.channel import Receiver, send_record
from brisk.protocol.records import PROTOCOL_VERSION, Hello, Record, Refused, Welcome
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.segments.prepared.form import find_prepared
from brisk.settings import runtime_settings, unknown_variables
from brisk.telemetry.observer import Observer
from support.deployments import deployment
from support.runtime.runtime_process import (
    describe,
    infer,
    opened,
    processes_of,
    submit,
    supervisor_of,
)
from support.runtime.runtime_processes import hurry_helpers
from support.waiting import wait_until

ROW = np.ones((1, 4), np.float32)


@contextmanager
def stub(
    place: RuntimePaths, *settings: str, server: int = 1, role: Role = Role.FOREGROUND
) -> Iterator[socket.socket]:
    """Of a server that has these, by its process number."""
    connection = place.connect(5, role)
    with connection:
        own = Hello(PROTOCOL_VERSION, __version__, os.getpid(), server, settings)
        send_record(connection, own)
        yield connection


def answer(connection: socket.socket) -> Record:
    return Receiver(connection).receive()[0]


def test_the_same_settings_are_welcome(place: RuntimePaths, quick: Path) -> None:
    with opened(place, describe(quick)), stub(place, *runtime_settings()) as connection:
        assert isinstance(answer(connection), Welcome)


def test_a_relative_cache_directory_is_the_one_of_whoever_starts_the_runtime(
    place: RuntimePaths, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime works in ``/``, and a stub beside the first one wants the same folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRISK_CACHE_DIR", "relative")
    monkeypatch.setenv("BRISK_ARTEFACTS", "build")
    with opened(place, describe(quick)):

        def is_prepared() -> bool:
            hurry_helpers(place.base)
            return find_prepared(quick) is not None

        wait_until(is_prepared, "the prepared form")
        with stub(place, *runtime_settings()) as connection:
            assert isinstance(answer(connection), Welcome)
    assert (tmp_path / "relative" / "artefacts").is_dir()
    assert not Path("/relative").exists()


@pytest.mark.parametrize("role", list(Role))
def test_a_runtime_that_nobody_uses_makes_way(
    place: RuntimePaths, quick: Path, role: Role
) -> None:
    """Also for a server with best-effort entries alone."""
    with opened(place, describe(quick)):
        before = supervisor_of(place)
    with (
        stub(place, "BRISK_THREADS=7", role=role) as connection,
        pytest.raises((EOFError, OSError)),
    ):
        answer(connection)
    wait_until(lambda: before not in processes_of(place), "the end of the runtime")
    with opened(place, describe(quick)) as following:
        np.testing.assert_array_equal(infer(following, ROW), -ROW)
        assert supervisor_of(place) != before


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("BRISK_THREADS", "two", "BRISK_THREADS must be a whole number from 1 to .*not 'two'"),
        ("BRISK_POLICY", "preemptiv", "BRISK_POLICY: unknown policy 'preemptiv'"),
    ],
)
def test_a_runtime_that_cannot_start_says_why_to_whoever_started_it(
    name: str,
    value: str,
    said: str,
    place: RuntimePaths,
    quick: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    with (
        pytest.raises(InvalidConfigurationError, match=f"the runtime of cpu cannot start: {said}"),
        opened(place, describe(quick)),
    ):
        pass
    assert not [path for path in place.base.iterdir() if path.name.endswith(".failed")]


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("job_class", ["normal", "besteffort"])
def test_either_worker_tells_servers_apart_whichever_of_them_the_other_server_uses(
    place: RuntimePaths, quick: Path, job_class: str, role: Role
) -> None:
    """Both sides are named, and the other server goes on."""
    with (
        opened(place, describe(quick, job_class=job_class)) as busy,
        stub(place, "BRISK_THREADS=7", role=role) as other,
    ):
        refused = answer(other)
        assert isinstance(refused, Refused)
        assert "BRISK_THREADS=1" in refused.message
        assert "this server has BRISK_THREADS=7" in refused.message
        assert "BRISK_RUNTIME_DIR" in refused.message
        np.testing.assert_array_equal(submit(busy, ROW, job_class)[1].output(), -ROW)


def test_an_observer_uses_no_runtime(place: RuntimePaths, quick: Path) -> None:
    with opened(place, describe(quick)):
        pass
    with (
        Observer(place, Role.FOREGROUND),
        stub(place, "BRISK_THREADS=7") as connection,
        pytest.raises((EOFError, OSError)),
    ):
        answer(connection)


HOLD = """
import sys, time
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.stub.runtime_client.runtime_process import open_connection
from pathlib import Path
connection = open_connection(RuntimePaths(Path(sys.argv[1]), "cpu"), Role.FOREGROUND)
print("welcome", flush=True)
sys.stdin.read()
"""


def test_a_process_that_a_runtime_has_welcomed_is_compared_with_the_next_one(
    place: RuntimePaths, quick: Path
) -> None:
    """Another server has started that one meanwhile."""
    with opened(place, describe(quick)):
        pass
    wait_until(lambda: not processes_of(place), "the end of the runtime, which is idle")
    command = [sys.executable, "-c", HOLD, str(place.base)]
    environment = {**os.environ, "BRISK_MAX_WAITING": "7"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"welcome\n"
        with (
            pytest.raises(InvalidConfigurationError, match=r"was started with .*MAX_WAITING=7"),
            opened(place, describe(quick)),
        ):
            pass
        assert other.stdin is not None
        other.stdin.close()


def test_doctor_tells_the_threads_of_the_runtime_that_is_there(
    place: RuntimePaths, quick: Path, tmp_path: Path
) -> None:
    settings = {"BRISK_RUNTIME_DIR": str(place.base), "BRISK_THREADS": "77"}
    with opened(place, describe(quick)):
        found, *_ = threads(deployment(tmp_path, environment=settings))
    assert found.found.startswith("1 thread on")


def test_a_setting_that_is_none_is_told_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_THREAD", "2")
    monkeypatch.setenv("BRISK_TEST_SOMETHING", "2")
    lines = list(unknown_variables())
    assert lines == ["there is no setting BRISK_THREAD, did you mean BRISK_THREADS?"]
