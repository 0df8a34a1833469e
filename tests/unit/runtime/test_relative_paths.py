"""Settings with relative paths: they mean the same in processes that work elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from brisk.copies.connection import CourierConnection
from brisk.doctor.deployment import find_deployment
from brisk.errors import InvalidConfigurationError
from brisk.protocol.runtime_paths import Role, runtime_place
from brisk.settings import (
    absolute_paths,
    cache_directory,
    peer_keys,
    runtime_directory,
    runtime_settings,
)
from brisk.stub.runtime_client.runtime_process import open_connection
from support.waiting import wait_until

RELATIVE = {
    "BRISK_RUNTIME_DIR": "run",
    "BRISK_CACHE_DIR": "cache",
    "BRISK_PEER_KEYS": "keys/a",
    "BRISK_PYTHON": "bin/python",
    "XDG_CACHE_HOME": "xdg",
    "XDG_RUNTIME_DIR": "",
}


def open_runtime() -> None:
    open_connection(runtime_place("cpu"), Role.FOREGROUND)


@pytest.mark.parametrize("start", [open_runtime, CourierConnection])
def test_a_process_that_is_started_has_the_folders_of_whoever_starts_it(
    start: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{{ pwd; env; }} > '{tmp_path}/started'; exit 3\n")
    python.chmod(0o755)
    for name, value in RELATIVE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidConfigurationError, match=f"with {python}"):
        start()
    place, *lines = (tmp_path / "started").read_text().splitlines()
    assert place == "/"
    given = dict(line.split("=", 1) for line in lines if "=" in line)
    assert {name: given[name] for name in RELATIVE} == {
        name: str(tmp_path / value) if value else "" for name, value in RELATIVE.items()
    }
    assert cache_directory(given) == cache_directory() == tmp_path / "cache"
    assert runtime_directory(given) == runtime_directory() == tmp_path / "run"
    assert peer_keys(given) == peer_keys() == tmp_path / "keys" / "a"
    assert runtime_settings(given) == runtime_settings()


def test_a_python_that_is_looked_for_in_path_and_absolute_paths_stay() -> None:
    settings = {"BRISK_PYTHON": "python3.12", "BRISK_CACHE_DIR": "/var/cache/brisk", "HOME": "me"}
    assert absolute_paths(settings) == {"BRISK_CACHE_DIR": "/var/cache/brisk"}


def test_relative_paths_of_a_server_are_those_in_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "run"))
    server = subprocess.Popen(
        ["tritonserver", "-c", "read end"],
        executable="/bin/sh",
        cwd=tmp_path,
        env={**os.environ, **RELATIVE},
        stdin=subprocess.PIPE,
    )
    try:
        wait_until(lambda: find_deployment((), "cpu").server == server.pid, "the server")
        assert cache_directory(find_deployment((), "cpu").environment) == tmp_path / "cache"
    finally:
        server.communicate()
