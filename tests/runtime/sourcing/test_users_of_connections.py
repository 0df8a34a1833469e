"""Without certificates, copies are served to this user's and root's processes: whose a connection
is, the kernel says, and no other connection's entry is taken for its."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brisk.sourcing.serving import user_of_connection
from support.remote.couriers import CourierHost, free_ports
from support.remote.published import publish
from support.remote.registries import RegistryServer
from support.waiting import PATIENCE_S, wait_until


@contextlib.contextmanager
def connected(
    family: socket.AddressFamily, host: str, own: str = ""
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the client's and the server's end of a connection to ``host``."""
    with socket.socket(family) as listener, socket.socket(family) as client:
        listener.bind((host, 0))
        listener.listen()
        if own:
            client.bind((own, 0))
        client.connect(listener.getsockname())
        server, _ = listener.accept()
        with server:
            yield client, server


IPV4, IPV6 = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")


@pytest.mark.parametrize(("family", "host"), [IPV4, IPV6], ids=["IPv4", "IPv6"])
def test_an_established_connection_is_of_its_clients_user(
    family: socket.AddressFamily, host: str
) -> None:
    with connected(family, host) as (_, server):
        assert user_of_connection(server.getpeername(), server.getsockname()) == os.geteuid()


def test_a_client_may_have_a_socket_for_both_versions() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket(socket.AF_INET6) as own:
        own.connect(("::ffff:127.0.0.1", listener.getsockname()[1]))
        server, peer = listener.accept()
        with server:
            assert user_of_connection(peer, server.getsockname()) == os.geteuid()


def test_ports_alone_do_not_say_whose_a_connection_is() -> None:
    """Another local user has a connection between other addresses with the same two ports."""
    with connected(socket.AF_INET, "127.0.0.2", "127.0.0.3") as (_, server):
        ports = server.getpeername()[1], server.getsockname()[1]
        assert user_of_connection(("127.0.0.1", ports[0]), ("127.0.0.1", ports[1])) is None
        assert user_of_connection(("127.0.0.3", ports[0]), ("127.0.0.1", ports[1])) is None
        assert user_of_connection(server.getpeername(), server.getsockname()) == os.geteuid()


def test_a_connection_that_has_ended_is_not_taken_for_roots() -> None:
    """The kernel lists such a socket as user 0's for a minute."""
    with connected(socket.AF_INET, "127.0.0.1") as (client, server):
        names = client.getsockname(), server.getsockname()
        client.close()
        assert server.recv(1) == b""
    listed = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f":{names[0][1]:04X}"
    waiting = [each for each in listed if each[1].endswith(port) and each[3] == "06"]
    assert [each[7] for each in waiting] == ["0"]
    assert user_of_connection(*names) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_users_process_is_refused_a_copy(
    tmp_path: Path,
    start: Callable[..., CourierHost],
    serve: Callable[..., RegistryServer],
) -> None:
    published = publish(tmp_path / "m", 300_000)
    (port,) = free_ports(1)
    host = start(port=port)
    with host.client() as client:
        client.fetch(published, serve(published).manifest_url)
    asked = (
        "import os, socket, sys\n"
        "os.setuid(int(sys.argv[3]))\n"
        "s = socket.socket()\n"
        "s.settimeout(10)\n"
        "s.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "s.sendall(f'GET {sys.argv[2]} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'.encode())\n"
        "print(s.recv(12).decode())\n"
    )

    def answer(user: int) -> str:
        path = f"/v1/copies/{published.sha256}/manifest"
        command = [sys.executable, "-c", asked, str(port), path, str(user)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        return done.stdout.strip()

    wait_until(lambda: answer(0) == "HTTP/1.1 200", "the copy, for root")
    assert answer(65534) == "HTTP/1.1 403"
