"""How much of the code a newcomer has to read to follow one request."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import brisk
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.telemetry.observer import Observer
from support.runtime.runtime_process import quick_model
from support.waiting import wait_until

MOST_FILES = 30
MOST_OF_STUB_AND_PROTOCOL = 11
PACKAGE = Path(brisk.__file__).resolve().parent.parent
TRACED_STUB = Path(__file__).resolve().parents[2] / "support" / "traced_stub"


def is_settled(place: RuntimePaths) -> bool:
    with Observer(place, Role.FOREGROUND) as observer:
        return all(model.is_settled for model in observer.status().models)


@pytest.fixture
def files(place: RuntimePaths, tmp_path: Path) -> list[str]:
    """Those that a warm plain request runs through, in the stub and in the worker.

    Of several requests, the one with the fewest: nothing else happens meanwhile.
    """
    (tmp_path / "quick" / "1").mkdir(parents=True)
    quick_model(tmp_path / "quick" / "1" / "model.onnx")
    switch, noted = tmp_path / "switch", tmp_path / "noted"
    switch.write_bytes(b"\0")
    noted.touch()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{PACKAGE}{os.pathsep}{TRACED_STUB}",
        "BRISK_RUNTIME_DIR": str(place.base),
        "BRISK_METRICS_INTERVAL_S": "0",
        "TEST_TRACE_SWITCH": str(switch),
        "TEST_TRACED_FILES": str(noted),
    }
    command = [sys.executable, str(TRACED_STUB / "stub.py"), str(tmp_path / "quick"), "x"]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as stub:
        assert stub.stdin is not None
        assert stub.stdout is not None
        assert stub.stdout.readline() == "loaded\n"
        wait_until(lambda: is_settled(place), "the model to settle")
        stub.stdin.write("\n")
        stub.stdin.flush()
        assert stub.stdout.readline().startswith("done")
    assert stub.returncode == 0
    by_request: dict[str, set[str]] = defaultdict(set)
    for line in noted.read_text().splitlines():
        request, path = line.split(" ", 1)
        by_request[request].add(str(Path(path).relative_to(PACKAGE)))
    return sorted(min(by_request.values(), key=len))


def test_a_warm_plain_request_runs_through_at_most_30_files(files: list[str]) -> None:
    assert len(files) <= MOST_FILES, "\n".join([str(len(files)), *files])


def test_of_which_few_are_the_stub_s_and_the_protocol_s(files: list[str]) -> None:
    own = [file for file in files if file.startswith(("brisk/stub", "brisk/protocol", "model"))]
    assert {"brisk/stub/request_handler.py", "brisk/protocol/channel.py"} <= set(own)
    assert any(file.startswith("brisk/runtime/worker/") for file in files), files
    assert len(own) <= MOST_OF_STUB_AND_PROTOCOL, "\n".join(own)
