"""Hosts with couriers and web servers of published models, ended after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.remote.couriers import CourierHost
from support.remote.published import Published
from support.remote.registries import RegistryServer

Start = Callable[..., CourierHost]
Serve = Callable[..., RegistryServer]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """``start(settings=None, port=0)``: a host whose courier runs."""
    hosts: list[CourierHost] = []

    def made(settings: dict[str, str] | None = None, port: int = 0) -> CourierHost:
        host = CourierHost(tmp_path_factory.mktemp("h"), settings, port)
        hosts.append(host)
        host.start()
        return host

    yield made
    for host in hosts:
        host.end()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(published, **options)``, as ``RegistryServer``."""
    servers: list[RegistryServer] = []

    def made(published: Published, **options: object) -> RegistryServer:
        server = RegistryServer(published.folder, **options)  # type: ignore[arg-type]
        servers.append(server)
        return server

    yield made
    for server in servers:
        server.close()


@pytest.fixture(scope="module")
def courier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CourierHost]:
    """One for all tests of a file, which leave it as it was."""
    host = CourierHost(tmp_path_factory.mktemp("c"))
    host.start()
    yield host
    host.end()
