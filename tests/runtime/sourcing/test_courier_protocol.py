"""Whatever a process sends to a courier, or a host to its copies: it is answered or refused, and
others are served."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.errors import InvalidRequestError
from support.remote.couriers import CourierHost, check_equal, free_ports
from support.remote.published import Published, form_of, publish
from support.remote.registries import RegistryServer
from support.waiting import PATIENCE_S, wait_until

Start = Callable[..., CourierHost]
Serve = Callable[..., RegistryServer]
FORM = "model.segments"


def memory_bytes(host: CourierHost) -> int:
    assert host.process is not None
    pages = Path(f"/proc/{host.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "request_line",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"open": {}}',
        b'{"open": {"url": "https://x/m", "sha256": "../../x"}}',
        b'{"open": {"url": 3, "sha256": 3}}',
        b'{"await": {"sha256": "' + b"a" * 64 + b'", "ranges": [[0, 0, 1]]}}',
        b'{"await": {"sha256": "' + b"a" * 64 + b'", "ranges": 3}}',
        b'{"take": {"sha256": "' + b"a" * 64 + b'", "form": "x"}}',
        b'{"open": {"url": "x", "sha256": "y"}, "status": {}}',
        b'{"end": {}}',
        b'{"status": []}',
        b"[" * 5000,
        b"\xff\xfe",
    ],
    ids=repr,
)
def test_nonsense_is_answered_with_an_error(courier: CourierHost, request_line: bytes) -> None:
    with courier.client() as client:
        client.send(request_line + b"\n")
        answer = client.answer()
        assert answer is not None
        assert answer["error"]["code"] == "invalid_request"
        assert client.ask("status", {}) == {"copies": []}  # the same connection goes on


def test_a_line_without_an_end_ends_its_connection_before_it_takes_memory(
    courier: CourierHost,
) -> None:
    before = memory_bytes(courier)
    with courier.client() as client:
        try:
            for _ in range(64):
                client.send(b"x" * (1 << 20))
        except OSError:
            pass  # it has been closed
        else:
            pytest.fail("64 MiB without a line's end were read")
    assert memory_bytes(courier) - before < 16 << 20
    with courier.client() as client:
        assert client.ask("status", {}) == {"copies": []}


def test_a_hundred_thousand_damaged_requests_leave_it_as_it_was(courier: CourierHost) -> None:
    source = random.Random(3)
    good = json.dumps({"open": {"url": "https://models.example/m", "sha256": "a" * 63}}).encode()
    before = memory_bytes(courier)
    with courier.client() as client:
        for _ in range(1000):
            lines = []
            for _ in range(100):
                line = bytearray(good)
                for _ in range(source.randint(1, 4)):
                    line[source.randrange(len(line))] = source.randrange(256)
                lines.append(bytes(line).replace(b"\n", b" "))
            client.send(b"\n".join(lines) + b"\n")
            answers = [client.answer() for _ in lines]
            assert all(answer is not None and "error" in answer for answer in answers)
    assert memory_bytes(courier) - before < 24 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_process_of_another_user_is_not_answered(courier: CourierHost) -> None:
    """The socket's mode keeps it out; should that be changed, its user does."""
    os.chmod(courier.place, 0o666)
    for above in (courier.runtime, courier.folder, *courier.folder.parents[:2]):
        os.chmod(above, 0o755)
    asked = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.settimeout(10)\n"
        "s.connect(sys.argv[1])\n"
        "s.sendall(b'{\"status\": {}}\\n')\n"
        "print(s.recv(10))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked, str(courier.place)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "copies" not in done.stdout
    assert done.stdout.strip() in ("b''", "") or "Error" in done.stderr


def test_bytes_that_a_manifest_does_not_have_cannot_be_awaited(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 500_000)
    registry = serve(published)
    with start().client() as client:
        client.open(published, registry.manifest_url)
        for part in (Range(9, 0, 1), Range(0, 0, 500_001), Range(0, 500_000, 1)):
            with pytest.raises(InvalidRequestError, match="has no bytes"):
                list(client.wait(published, [part]))
        assert list(client.wait(published, [])) == []
        assert list(client.wait(published)) == []


# Prepared forms.


def with_form(folder: Path, size: int, form_bytes: int) -> Published:
    return publish(folder, size, forms={FORM: form_of(form_bytes), "other": bytes(3_000_000)})


def test_a_form_that_is_taken_arrives_and_others_do_not(
    tmp_path: Path, start: Start, serve: Serve, private_cache: None
) -> None:
    published = with_form(tmp_path / "m", 4_000_000, 4_100_000)
    registry = serve(published)
    host = start()
    number = published.manifest.form_named(FORM)
    assert number is not None
    with host.client() as client:
        client.open(published, registry.manifest_url)
        assert client.take(published, "nobody's") is None
        path = client.take(published, FORM)
        assert path is not None
        assert Path(path) == host.copy_folder(published) / "forms" / FORM
        for _ in client.wait(published, [Range(number, 0, published.manifest.files[number].size)]):
            pass
        for _ in client.wait(published):
            pass
        assert client.status(published)["forms"] == [FORM]
    assert Path(path).read_bytes()[96:] == published.contents[number][96:]
    model = published.manifest.files[0]
    kept = host.cache / "artefacts" / model.sketch / model.digest / FORM
    wait_until(kept.exists, "the form among the artefacts")
    assert not any("other" in request for request in registry.requests)
    assert not (host.copy_folder(published) / "forms" / "other").exists()


def test_a_form_is_not_taken_where_the_weights_come_sooner(
    tmp_path: Path, start: Start, serve: Serve, private_cache: None
) -> None:
    """Twice the bytes, at 4 MB/s."""
    published = with_form(tmp_path / "m", 2_000_000, 4_000_000)
    registry = serve(published, bytes_per_s=4e6)
    with start().client() as client:
        client.open(published, registry.manifest_url)
        list(client.wait(published, [Range(0, 0, 1_500_000)]))  # now the rate is known
        assert client.take(published, FORM) is None
    assert not any(FORM in request for request in registry.requests)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_form_that_is_missing_or_damaged_at_the_url_is_left_for_the_weights(
    tmp_path: Path, start: Start, serve: Serve, private_cache: None, is_there: bool
) -> None:
    published = with_form(tmp_path / "m", 4_000_000, 4_100_000)
    form = published.folder / "forms" / FORM
    form.write_bytes(bytes(form.stat().st_size)) if is_there else form.unlink()
    registry = serve(published)
    host = start()
    with host.client() as client:
        client.open(published, registry.manifest_url)
        assert client.take(published, FORM) is None
        for _ in client.wait(published):
            pass
        problems = [each["problem"] for each in client.status(published)["sources"]]
    assert problems == [""]
    assert host.log.count("is left for weights") == 1
    check_equal(host, published)


def test_an_object_stores_url_is_signed_with_the_machines_credentials(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    pytest.importorskip("boto3", reason="boto3, which signs such URLs, is not installed")
    published = publish(tmp_path / "store" / "bucket" / "m", 600_000)
    store = serve(published._replace(folder=tmp_path / "store"))
    host = start(
        {
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "hidden",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    )
    with host.client() as client:
        client.fetch(published, "s3://bucket/m/manifest.json")
        assert client.bytes_from(published, "s3://bucket/m") > 600_000
    check_equal(host, published)
    assert all(request.startswith("/bucket/m/") for request in store.requests)
    signed = [query for query in store.queries if "X-Amz-Signature=" in query]
    assert signed == store.queries
    assert not any("hidden" in query for query in store.queries)


def test_a_copys_url_is_shown_as_it_is(
    tmp_path: Path, start: Start, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brackets, of an IPv6 address, too, are no markup of the terminal's."""
    published = publish(tmp_path / "net[v1]", 100_000)
    registry = serve(published._replace(folder=tmp_path))
    host = start()
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(host.runtime))
    url = f"{registry.url}/net[v1]/manifest.json"
    with host.client() as client:
        client.fetch(published, url)
        told = CliRunner().invoke(application, ["hosts"], env={"COLUMNS": "250"})
    assert url in told.stdout, told.output


# What hosts ask of each other.


def answer_to(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
        connection.sendall(request)
        found = b""
        try:
            while len(found) < 1 << 16 and (data := connection.recv(1 << 16)):
                found += data
        except (TimeoutError, ConnectionResetError):
            pass
        return found


def test_hosts_that_ask_nonsense_are_refused_and_others_are_served(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 1_000_000)
    registry = serve(published)
    (port, other) = free_ports(2)
    host = start(port=port)
    with host.client() as client:
        client.fetch(published, registry.manifest_url)
    place = f"/v1/copies/{published.sha256}".encode()
    close = b"Host: h\r\nConnection: close\r\n"
    for path, status in (
        (b"/", b"404"),
        (place + b"/files/9", b"404"),
        (place + b"/files/0/../1", b"404"),
        (b"/v1/copies/../../etc/passwd", b"404"),
        (b"/v1/copies/" + b"0" * 64, b"404"),
        (place + b"x", b"404"),
        (place + b"?" + b"a" * 4000, b"400"),
    ):
        answer = answer_to(port, b"GET " + path + b" HTTP/1.1\r\n" + close + b"\r\n")
        assert answer[9:12] == status, path
    for header, status in (
        (b"Range: bytes=5-2", b"416"),
        (b"Range: bytes=0-1000000", b"416"),
        (b"X: " + b"x" * 10_000, b"400"),
    ):
        request = b"GET " + place + b"/files/0 HTTP/1.1\r\n" + close + header + b"\r\n\r\n"
        assert answer_to(port, request)[9:12] == status, header
    asked = b"POST " + place + b" HTTP/1.1\r\nContent-Length: 0\r\n" + close + b"\r\n"
    assert answer_to(port, asked)[9:12] == b"405"
    source = random.Random(7)
    for _ in range(50):
        answer_to(port, source.randbytes(200) + b"\r\n\r\n")
    registry.is_broken = True
    taker = start({"BRISK_PEERS": f"127.0.0.1:{port}"}, other)
    with taker.client() as client:
        client.fetch(published, registry.manifest_url)
    check_equal(taker, published)


def test_more_connections_than_are_served_are_closed(start: Start) -> None:
    (port,) = free_ports(1)
    start(port=port)
    opened: list[Any] = []
    try:
        for _ in range(80):
            opened.append(socket.create_connection(("127.0.0.1", port), timeout=10.0))
        deadline_s, refused = time.monotonic() + 5.0, 0
        while refused < 16 and time.monotonic() < deadline_s:
            refused = 0
            for each in opened:
                each.settimeout(0.001)
                try:
                    refused += each.recv(1) == b""
                except TimeoutError:
                    continue
        assert refused == 16
    finally:
        for each in opened:
            each.close()


def test_a_copy_stays_while_it_is_read_though_nobody_has_opened_it(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 600_000)
    registry = serve(published)
    host = start({"BRISK_CACHE_MIB": "1"})
    with host.client() as client:
        client.fetch(published, registry.manifest_url)
    reader = LocalCopy(host.copy_folder(published))
    other = publish(tmp_path / "n", 600_000, seed=1)
    with host.client() as client:
        with pytest.raises(Exception, match="MiB"):
            client.open(other, serve(other).manifest_url)
        reader.close()
        client.fetch(other, serve(other).manifest_url)
    assert not host.copy_folder(published).exists()
    check_equal(host, other)
