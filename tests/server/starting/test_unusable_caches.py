"""A first start where the cache directory cannot be used: served without, with one line; where it
is in a path that Triton or the loader cannot name, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.fork_server.build import find_compiler, place_launchers
from brisk.fork_server.start import SERVER_PRELOAD
from brisk.triton.server_preload import can_start_stubs, is_preloaded, preloading
from support.remote.couriers import free_ports
from support.server.entries import doubled, write_entry
from support.server.serve_command import serving
from support.waiting import PATIENCE_S

pytestmark = [pytest.mark.timing, pytest.mark.beside]

SERVICES = ("http", "grpc", "metrics")


@pytest.mark.parametrize("place", ["file", "/proc/brisk", "everybodys"])
def test_a_server_starts_without_its_cache_and_says_so_once(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "everybodys").mkdir()
    (tmp_path / "everybodys").chmod(0o777)  # who writes there would decide what code runs
    write_entry(tmp_path / "repository", "model", doubled())
    cache = tmp_path / place  # an absolute one stays what it is
    environment = {"BRISK_CACHE_DIR": str(cache), "BRISK_ARTEFACTS": "build"}
    with serving(tmp_path, [tmp_path / "repository"], environment=environment) as served:
        assert served.ask("model") == [2.0] * 8
        assert served.log_text.count(f"the cache directory '{cache}' cannot be used") == 1
        assert "Traceback" not in served.log_text
    assert list((tmp_path / "everybodys").iterdir()) == []


@pytest.mark.parametrize("name", ["a cache", "a:cache", "a$cache"])
def test_a_server_starts_whatever_characters_its_cache_has_in_its_path(
    tmp_path: Path, name: str
) -> None:
    """The backends, with the library that the server is to load, lie elsewhere if the loader would
    take their path for several."""
    write_entry(tmp_path / "repository", "model", doubled())
    write_entry(tmp_path / "repository", "it's", doubled())
    cache = tmp_path / name
    environment = {"BRISK_CACHE_DIR": str(cache)}
    with serving(tmp_path, [tmp_path / "repository"], environment=environment) as served:
        assert served.ask("model") == [2.0] * 8
        is_elsewhere = served.log_text.count(
            f"the cache directory '{cache}' cannot be used (Triton"
        )
        assert is_elsewhere == (name != "a$cache")
        assert served.log_text.count("all else is kept there (BRISK_CACHE_DIR)") == is_elsewhere
        assert "nothing is kept" not in served.log_text
        ready = {entry["name"] for entry in served.post("repository/index")}
        assert ready == ({"model", "it's"} if find_compiler() is not None else {"model"})


def test_directories_whose_stubs_cannot_be_started_are_refused(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()  # without an entry no runtime is started
    places = {"BRISK_CACHE_DIR": tmp_path / "a cache", "BRISK_RUNTIME_DIR": tmp_path / "a:run"}
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [
            Path(sys.executable).with_name("brisk"),
            "serve",
            "--model-control-mode=explicit",
            "--repository",
            tmp_path / "repository",
            *(f"--{each}-port={port}" for each, port in zip(SERVICES, free_ports(3), strict=True)),
        ],
        env={**os.environ, **{each: str(place) for each, place in places.items()}},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "Triton cannot start a stub whose path has a blank" in done.stderr
    for name, place in places.items():
        assert name in done.stderr
        assert f"{place}/backends" in done.stderr


def test_a_library_is_preloaded_only_by_a_path_that_the_loader_takes_as_one(
    tmp_path: Path,
) -> None:
    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    for name, is_loaded in (("plain", True), ("a b", False), ("a:b", False), ("it's", True)):
        folder = tmp_path / name
        folder.mkdir()
        place_launchers([folder])
        before = {"LD_PRELOAD": "/lib/other.so"}
        environment = preloading(before, folder)
        assert (environment == before) is not is_loaded
        assert is_preloaded(environment) is is_loaded
        assert can_start_stubs(folder, environment) is is_loaded
        assert can_start_stubs(folder, before) is (name == "plain")
    named_alike = {"LD_PRELOAD": f"/lib/{SERVER_PRELOAD}/other.so"}
    assert not is_preloaded(named_alike)
