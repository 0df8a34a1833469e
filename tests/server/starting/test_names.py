"""Names of entries that mean something to a shell; files that a stub must not import."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from brisk.fork_server.build import find_compiler
from brisk.triton.backend_directory import assemble
from brisk.triton.locate import ServerInstallation
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import doubled, write_entry
from support.server.serve_command import ServeCommand, Serving

pytestmark = [pytest.mark.timing, pytest.mark.beside]

NAMES = ("with space", "it's", "a;touch ran", "$(touch ran)", "a$b", 'a"b', "ünï日本", "a  b", "&")


def answer(served: ServeCommand, name: str) -> list[float]:
    """By gRPC: HTTP's names are not decoded by Triton."""
    address = served.url_of("grpc")
    with InferenceClient(address, Transport.GRPC) as client:
        return [float(y) for y in client.infer(name, {"x": np.ones((1, 4), np.float32)})["y"][0]]


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_a_server_with_a_compiler_serves_entries_of_any_name(
    tmp_path: Path, serve: Serving, mode: str
) -> None:
    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    repository = tmp_path / "a repository's"
    for name in NAMES:
        write_entry(repository, name, doubled())
    options = [f"--model-control-mode={mode}"]
    options += [f"--load-model={name}" for name in NAMES if mode == "explicit"]
    with serve(tmp_path, [repository], options) as served:
        for name in NAMES:
            assert answer(served, name) == [2.0] * 4, name
    assert not list(tmp_path.rglob("ran"))


def test_without_one_such_an_entry_is_left_out_by_name_and_the_others_are_served(
    tmp_path: Path, serve: Serving
) -> None:
    repository = tmp_path / "repository"
    for name in ("good", "with space", "it's"):
        write_entry(repository, name, doubled())
    environment = {"BRISK_FORK_STUBS": "0"}
    with serve(tmp_path, [repository], environment=environment) as served:
        assert served.ask("good", 1) == [2.0] * 4
        for name in ("with space", "it's"):
            assert f"'{repository / name}' is left out" in served.log_text
        assert [entry["name"] for entry in served.post("repository/index")] == ["good"]
    with serve(tmp_path, [repository], ["--model-control-mode=explicit"], environment) as served:
        assert f"do not load '{repository / 'with space'}'" in served.log_text
        served.load("good")
        assert served.ask("good", 1) == [2.0] * 4


@pytest.mark.parametrize("mode", ["none", "explicit"])
def test_one_whose_name_is_no_utf_8_text_keeps_no_other_from_being_served(
    tmp_path: Path, serve: Serving, mode: str
) -> None:
    repository = tmp_path / "repository"
    for name in ("good", "m\udcfcller"):
        write_entry(repository, name, doubled(), 'platform: "onnxruntime_onnx"')
    with serve(tmp_path, [repository], [f"--model-control-mode={mode}"]) as served:
        if mode == "explicit":
            served.load("good")
        assert served.ask("good", 1) == [2.0] * 4
        assert "ller' is not served: its name is no UTF-8 text" in served.log_text


def test_a_backend_directory_may_be_relative(
    tmp_path: Path, serve: Serving, installation: ServerInstallation
) -> None:
    assemble(tmp_path / "backends", installation)
    write_entry(tmp_path / "repository", "model", doubled())
    named = ["--backend-directory", "backends"]
    with serve(tmp_path, [tmp_path / "repository"], named, working_directory=tmp_path) as served:
        assert served.ask("model", 1) == [2.0] * 4


def test_a_server_that_started_without_the_preload_is_told_by_the_doctor(tmp_path: Path) -> None:
    from brisk.doctor.deployment import Severity
    from brisk.doctor.installation import names
    from support.deployments import deployment

    write_entry(tmp_path / "repository", "it's", doubled())
    repositories = (tmp_path / "repository",)
    (found,) = names(deployment(tmp_path, server=os.getpid(), repositories=repositories))
    assert found.verdict is Severity.PROBLEM
    assert "it's" in found.found
    preloaded = {"LD_PRELOAD": "/opt/brisk_server_preload.so"}
    (found,) = names(deployment(tmp_path, repositories=repositories, environment=preloaded))
    assert found.verdict is Severity.GOOD


def test_nothing_in_the_working_directory_of_the_server_is_run(
    tmp_path: Path, serve: Serving
) -> None:
    if find_compiler() is None:
        pytest.skip("there is no C++ compiler")
    repository = tmp_path / "repository"
    for number in range(2):
        write_entry(repository, f"model{number}", doubled())
    modules = ("brisk", "numpy", "json", "asyncio", "importlib", "triton_python_backend_utils")
    for name in modules:
        text = f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(1)"
        (repository / f"{name}.py").write_text(text)
    with serve(tmp_path, [Path()], working_directory=repository) as served:
        for number in range(2):
            assert served.ask(f"model{number}") == [2.0] * 8
    assert not (tmp_path / "ran").exists()
