"""Who a stub is, and whose end is its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.protocol import stub_process
from brisk.protocol.stub_process import birth_of, parent_of
from support.open_files import no_descriptor_left

STUB = [b"/b/python/triton_python_backend_stub", b"/m/1/model.py", b"region", b"1", b"1", b"4711"]
STUB += [b"/b/python", b"336", b"m_0", b"/b/brisk"]


def test_a_process_that_is_no_stub_takes_its_parent_for_the_server() -> None:
    assert not stub_process.is_stub(stub_process.command_line())
    assert stub_process.server_of_stub() == os.getppid()
    assert stub_process.keepers() == [os.getppid()]


def test_a_fork_is_the_stub_that_it_has_become(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stub_process, "_forked", None)
    stub_process.become(STUB, 4712)
    assert stub_process.command_line() == STUB
    assert stub_process.keepers() == [4711, 4712]


def test_a_command_line_that_was_written_over_ends_with_its_last_argument(tmp_path: Path) -> None:
    line = stub_process.command_line(os.getpid())
    assert line[0] == Path("/proc/self/cmdline").read_bytes().split(b"\0")[0]
    assert line[-1]
    assert stub_process.command_line(2**22 + 1) == []


def test_a_process_that_has_ended_has_no_birth_even_before_its_parent_knows() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert birth_of(process.pid) == birth_of(process.pid) is not None
        assert parent_of(process.pid) == os.getpid()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert birth_of(process.pid) is None
    assert birth_of(process.pid) is None


def test_whether_a_process_lives_is_unknown_without_a_descriptor() -> None:
    parent, birth = os.getppid(), birth_of(os.getppid())
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        birth_of(parent)
    with no_descriptor_left():
        assert not stub_process.has_ended(parent, birth)
    assert not stub_process.has_ended(parent, birth)
    assert stub_process.has_ended(2**22 + 1, birth)


WATCHES = """
import resource, time
from brisk.protocol.stub_process import POLL_INTERVAL_S, end_with_server

limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
end_with_server()
time.sleep(2 * POLL_INTERVAL_S)
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
time.sleep(3 * POLL_INTERVAL_S)
print("lives", flush=True)
time.sleep(600)
"""


def test_a_stub_without_a_descriptor_lives_on_and_ends_with_its_server() -> None:
    server = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WATCHES!r}])"
    with subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"lives\n"
        process.kill()
        assert process.stdout.read() == b"", "the stub has closed it"
