"""A real tritonserver for tests, on free loopback ports, with a runtime of its own.

``start_server(repository, options=…)`` starts one and stops it after the test;
``sample_server`` serves all sample entries and is shared by the whole run. Where a test has
failed and a server has died, its log's end is among what is reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from brisk.triton.backend_directory import assemble
from brisk.triton.launch import TritonServer
from brisk.triton.locate import ServerInstallation, locate_server
from brisk_client.samples.expectations import is_current
from support.server.running import SAMPLES, StartServer, ends_of_dead_servers, running_server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.extend(ends_of_dead_servers())
    return report


@pytest.fixture(scope="session")
def installation() -> ServerInstallation:
    return locate_server()


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory, installation: ServerInstallation) -> Path:
    """A backend directory with Brisk as ``brisk`` and as ``onnxruntime``."""
    return assemble(tmp_path_factory.mktemp("backends"), installation)


@pytest.fixture
def start_server(
    tmp_path: Path, installation: ServerInstallation, backends: Path
) -> Iterator[StartServer]:
    """``start_server(repository, options=(), environment=None) -> TritonServer``, ready."""
    with contextlib.ExitStack() as servers:
        started = 0

        def start(
            repository: Path,
            options: Sequence[str] = (),
            environment: Mapping[str, str] | None = None,
        ) -> TritonServer:
            nonlocal started
            started += 1
            log = tmp_path / f"tritonserver-{started}.log"
            return servers.enter_context(
                running_server(installation, repository, backends, log, options, environment)
            )

        yield start


@pytest.fixture(scope="session")
def sample_server(
    tmp_path_factory: pytest.TempPathFactory, installation: ServerInstallation, backends: Path
) -> Iterator[TritonServer]:
    for entry in sorted(file.parent for file in SAMPLES.glob("*/config.pbtxt")):
        assert is_current(entry), f"sample '{entry.name}' is not generated; run `make samples`"
    log = tmp_path_factory.mktemp("sample-server") / "tritonserver.log"
    with running_server(installation, SAMPLES, backends, log) as server:
        yield server
