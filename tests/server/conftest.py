"""A real tritonserver for tests, on free loopback ports, with a runtime of its own.

``start_server(repository, options=…)`` starts one and stops it after the test, ``start_shared``
after the module's; ``sample_server`` serves all sample entries and is shared by the whole run. A
server ends while the next test begins; one that is timed, or that is no server's, begins when all
have ended. Where a test has failed and a server has died, its log's end is among what is
reported.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tritonclient import http

from brisk.triton.backend_directory import assemble
from brisk.triton.launch import TritonServer
from brisk.triton.locate import ServerInstallation, locate_server
from brisk_bench.samples.expectations import is_current
from brisk_client.inference import InferenceClient, Transport
from support.server.running import (
    SAMPLES,
    Endings,
    StartServer,
    ends_of_dead_servers,
    running_server,
)
from support.server.serve_command import Serving, serving

_endings = pytest.StashKey[Endings]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.extend(ends_of_dead_servers())
    return report


def is_timed(item: pytest.Item) -> bool:
    return bool(item.get_closest_marker("timing") and not item.get_closest_marker("beside"))


@pytest.hookimpl(trylast=True)  # fixtures have been made, and a server starts meanwhile
def pytest_runtest_setup(item: pytest.Item) -> None:
    if is_timed(item):
        endings_of(item.session).await_all()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    here = Path(__file__).parent
    if nextitem is None or not nextitem.path.is_relative_to(here):
        endings_of(item.session).await_all()


def endings_of(session: pytest.Session) -> Endings:
    return session.config.stash.setdefault(_endings, Endings())


@pytest.fixture(scope="session")
def endings(request: pytest.FixtureRequest) -> Endings:
    return endings_of(request.session)


@pytest.fixture(scope="session")
def installation() -> ServerInstallation:
    return locate_server()


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory, installation: ServerInstallation) -> Path:
    """A backend directory with Brisk as ``brisk`` and as ``onnxruntime``."""
    return assemble(tmp_path_factory.mktemp("backends"), installation)


@contextlib.contextmanager
def starting(
    folder: Path, installation: ServerInstallation, backends: Path, endings: Endings
) -> Iterator[StartServer]:
    """``start(repository, options=(), environment=None) -> TritonServer``, ready; its log is in
    ``folder``."""
    with contextlib.ExitStack() as servers:
        numbers = itertools.count(1)

        def start(
            repository: Path,
            options: Sequence[str] = (),
            environment: Mapping[str, str] | None = None,
        ) -> TritonServer:
            log = folder / f"tritonserver-{next(numbers)}.log"
            return servers.enter_context(
                running_server(
                    installation, repository, backends, log, options, environment, endings
                )
            )

        yield start


@pytest.fixture
def start_server(
    tmp_path: Path, installation: ServerInstallation, backends: Path, endings: Endings
) -> Iterator[StartServer]:
    """Servers of one test: see ``starting``."""
    with starting(tmp_path, installation, backends, endings) as start:
        yield start


@pytest.fixture(scope="module")
def start_shared(
    tmp_path_factory: pytest.TempPathFactory,
    installation: ServerInstallation,
    backends: Path,
    endings: Endings,
) -> Iterator[StartServer]:
    """Servers that the tests of a module share."""
    folder = tmp_path_factory.mktemp("shared-servers")
    with starting(folder, installation, backends, endings) as start:
        yield start


@pytest.fixture(scope="module")
def control(server: TritonServer) -> Iterator[http.InferenceServerClient]:
    """Loads and unloads what the module's ``server`` serves."""
    with http.InferenceServerClient(server.endpoints.http, network_timeout=120.0) as opened:
        yield opened


@pytest.fixture
def client(server: TritonServer) -> Iterator[InferenceClient]:
    """Asks the module's ``server``."""
    with InferenceClient(server.endpoints.http, Transport.HTTP) as opened:
        yield opened


@pytest.fixture(scope="session")
def sample_server(
    tmp_path_factory: pytest.TempPathFactory, installation: ServerInstallation, backends: Path
) -> Iterator[TritonServer]:
    for entry in sorted(file.parent for file in SAMPLES.glob("*/config.pbtxt")):
        assert is_current(entry), f"sample '{entry.name}' is not generated; run `make samples`"
    log = tmp_path_factory.mktemp("sample-server") / "tritonserver.log"
    with running_server(installation, SAMPLES, backends, log) as server:
        yield server


@pytest.fixture
def serve(endings: Endings) -> Serving:
    """``brisk serve``; it has not ended behind the block, but while what comes next begins."""
    return functools.partial(serving, endings=endings)
