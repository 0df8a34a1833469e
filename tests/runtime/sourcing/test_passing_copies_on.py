"""Couriers that fetch from each other: whoever ends, lies or hangs, the rest get what was
published."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from brisk.copies.local import HEADER_BYTES, PROGRESS
from brisk.errors import InvalidConfigurationError
from brisk.sourcing.sources.certificates import make_keys
from support.remote.couriers import CourierHost, check_equal, free_ports
from support.remote.published import Published, publish
from support.remote.registries import RegistryServer
from support.waiting import PATIENCE_S, wait_until

Start = Callable[..., CourierHost]
Serve = Callable[..., RegistryServer]

GONE = "http://127.0.0.1:9/manifest.json"
"""Where nobody answers."""


def named(ports: Sequence[int], but: int = 0) -> dict[str, str]:
    return {"BRISK_PEERS": ",".join(f"127.0.0.1:{port}" for port in ports if port != but)}


def here(host: CourierHost, published: Published) -> int:
    progress = (host.copy_folder(published) / PROGRESS).read_bytes()[HEADER_BYTES:]
    return progress.count(1)


def fetch_all(hosts: Sequence[CourierHost], published: Published, url: str) -> None:
    """At all hosts at once, each of which keeps it until all have it."""
    errors: list[BaseException] = []
    together = threading.Barrier(len(hosts))

    def fetch(host: CourierHost) -> None:
        try:
            with host.client() as client:
                client.fetch(published, url)
                together.wait(PATIENCE_S)
        except BaseException as error:  # noqa: BLE001  # raised below
            together.abort()
            errors.append(error)

    threads = [threading.Thread(target=fetch, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not errors, errors
    for host in hosts:
        check_equal(host, published)


def test_hosts_that_come_together_ask_the_web_server_about_once(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    """Three hosts: each byte leaves the web server once, or little more often."""
    published = publish(tmp_path / "m", 16_000_000)
    registry = serve(published, bytes_per_s=8e6)
    ports = free_ports(3)
    hosts = [start(named(ports, port), port) for port in ports]
    fetch_all(hosts, published, registry.manifest_url)
    size = sum(map(len, published.contents))
    assert registry.sent_bytes < 2 * size


def test_a_host_comes_to_what_its_peer_has_when_the_web_server_is_gone(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 8_000_000)
    registry = serve(published)
    (port,) = free_ports(1)
    has = start(port=port)
    with has.client() as first:
        first.fetch(published, registry.manifest_url)
        lacks = start(named([port]))
        with lacks.client() as client:
            client.fetch(published, GONE)  # the manifest, too
    check_equal(lacks, published)


def test_a_web_server_that_goes_half_way_is_done_without(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 12_000_000)
    good, bad = serve(published), serve(published, bytes_per_s=4e6)
    (port,) = free_ports(1)
    late = start(port=port)
    host = start(named([port]))
    with host.client() as client, late.client() as other:
        client.open(published, bad.manifest_url)
        wait_until(lambda: here(host, published) > 8, "some of it")
        bad.is_broken = True
        other.fetch(published, good.manifest_url)
        for _ in client.wait(published):
            pass
    check_equal(host, published)


@pytest.mark.parametrize("silently", [False, True])
def test_a_peer_that_ends_or_hangs_half_way_is_left(
    tmp_path: Path, start: Start, serve: Serve, silently: bool
) -> None:
    published = publish(tmp_path / "m", 12_000_000)
    registry = serve(published, bytes_per_s=6e6)
    (port,) = free_ports(1)
    peer = start(port=port)
    host = start(named([port]))
    with peer.client() as other, host.client() as client:
        other.open(published, registry.manifest_url)
        wait_until(lambda: here(peer, published) > 12, "some of it at the peer")
        client.open(published, registry.manifest_url)
        wait_until(lambda: here(host, published) > 4, "some of it")
        assert peer.process is not None
        if silently:
            peer.process.send_signal(19)  # SIGSTOP: connections stay, and nothing comes
        else:
            peer.kill()
        registry.bytes_per_s = 0.0
        began_s = time.monotonic()
        for _ in client.wait(published):
            pass
        assert time.monotonic() - began_s < 20
        if silently:
            peer.process.send_signal(18)
    check_equal(host, published)


def test_two_that_have_nothing_but_each_other_tell_so_and_end(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    """Each asks the other, which asks it. When the web server is back both come to their end."""
    published = publish(tmp_path / "m", 6_000_000)
    registry = serve(published, bytes_per_s=8e6)
    ports = free_ports(2)
    hosts = [start(named(ports, port), port) for port in ports]
    with hosts[0].client() as one, hosts[1].client() as other:
        one.open(published, registry.manifest_url)
        other.open(published, registry.manifest_url)
        wait_until(lambda: here(hosts[0], published) > 4, "the first chunks")
        registry.is_silent = True
        progress = next(each for each in one.wait(published) if each["problem"])
        assert "127.0.0.1" in progress["problem"]
    registry.is_silent = False
    fetch_all(hosts, published, registry.manifest_url)


def test_a_peer_that_lies_is_blamed_and_asked_no_more(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    """Its file was damaged after it had been verified."""
    published = publish(tmp_path / "m", 6_000_000)
    registry = serve(published)
    (port,) = free_ports(1)
    liar = start(port=port)
    with liar.client() as other:
        other.fetch(published, registry.manifest_url)
        list(other.wait(published, is_compared=True))
        model = liar.copy_folder(published) / "1" / "model.onnx"
        with open(model, "r+b") as file:
            file.write(bytes(6_000_000))
        slow = serve(published, bytes_per_s=8e6)
        host = start(named([port]))
        with host.client() as client:
            client.fetch(published, slow.manifest_url)
            rejected = {
                each["name"]: each["rejected"] for each in client.status(published)["sources"]
            }
    check_equal(host, published)
    assert [count for name, count in rejected.items() if str(port) in name] == [1]
    assert host.log.count("is not what the manifest says") == 1


def test_an_answer_ends_quietly_when_the_last_user_of_the_copy_goes(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    """The peer reads slowly: what the host has not sent by then it does not send."""
    published = publish(tmp_path / "m", 40_000_000)
    (port,) = free_ports(1)
    host = start(port=port)
    with socket.socket() as peer:
        with host.client() as client:
            client.fetch(published, serve(published).manifest_url)
            list(client.wait(published, is_compared=True))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            peer.settimeout(PATIENCE_S)
            peer.connect(("127.0.0.1", port))
            path = f"/v1/copies/{published.sha256}/files/0"
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert peer.recv(1 << 10).startswith(b"HTTP/1.1 200")
        with host.client() as client:
            wait_until(lambda: not client.ask("status", {})["copies"], "the copy's end")
        end, count = b"", 0
        while not end.endswith(b"\r\n0\r\n\r\n"):
            piece = peer.recv(1 << 20)
            assert piece, "the connection was cut"
            count += len(piece)
            end = (end + piece)[-16:]
    assert count < 39_000_000
    assert "Traceback" not in host.log
    assert "Error" not in host.log


def test_hosts_with_certificates_of_one_authority_talk_and_others_do_not(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 3_000_000)
    registry = serve(published)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    make_keys(ours, ["127.0.0.1", "localhost"])
    make_keys(theirs, ["127.0.0.1"])
    (port,) = free_ports(1)
    has = start({"BRISK_PEER_KEYS": str(ours / "127.0.0.1")}, port)
    with has.client() as other:
        other.fetch(published, registry.manifest_url)
        friend = start({**named([port]), "BRISK_PEER_KEYS": str(ours / "localhost")})
        with friend.client() as client:
            client.fetch(published, GONE)
        check_equal(friend, published)
        for settings in ({"BRISK_PEER_KEYS": str(theirs / "127.0.0.1")}, {}):
            stranger = start({**named([port]), **settings})
            with stranger.client() as client:
                client.fetch(published, registry.manifest_url)
                assert client.bytes_from(published, "peer") == 0
            check_equal(stranger, published)


def test_plain_connections_leave_this_machine_never(tmp_path: Path) -> None:
    from brisk.sourcing.process import read_settings

    for name in ("BRISK_PEERS", "BRISK_PEER_LISTEN"):
        with pytest.raises(InvalidConfigurationError, match="brisk hosts init"):
            read_settings({name: "10.0.0.2:7700"})
    read_settings({"BRISK_PEERS": "127.0.0.1:7700", "BRISK_PEER_LISTEN": "[::1]:7700"})
