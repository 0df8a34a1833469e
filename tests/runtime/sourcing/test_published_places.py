"""What is published is found by hosts: names and places with characters that URLs quote, and a
server that asks for a password."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from brisk.copies.remote import read_remote
from brisk.errors import InvalidConfigurationError, UnavailableError
from brisk.publishing.describing import Published as Described
from brisk.publishing.writing import publish as write
from brisk.publishing.writing import remote_text
from support.remote.couriers import CourierHost, check_equal
from support.remote.published import Published, publish
from support.remote.registries import RegistryServer

Start = Callable[..., CourierHost]
Serve = Callable[..., RegistryServer]

NAME = "data/weights #1 50% ü?.bin"
PASSWORD = "p/ss:w@rd ü"
QUOTED = "p%2Fss%3Aw%40rd%20%C3%BC"


@pytest.fixture
def described(tmp_path: Path) -> Described:
    """A model one of whose files has a name that URLs quote."""
    made = publish(tmp_path / "made", 400_000)
    files = list(made.manifest.files)
    files[1] = files[1]._replace(name=NAME)
    manifest = made.manifest._replace(files=tuple(files))
    names = (file.name for file in files)
    return Described(manifest, dict(zip(names, made.contents, strict=True)))


class _Receiver(BaseHTTPRequestHandler):
    """Writes what is PUT into a folder, for whoever has the password, or breaks off."""

    folder: Path
    paths: list[str]
    is_broken = False

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.is_broken:
            self.wfile.write(b"nonsense\r\n\r\n")
            return
        token = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {token}":
            self.send_error(401)
            return
        target = self.folder / unquote(urlsplit(self.path).path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        self.paths.append(self.path)
        self.send_response(201)
        self.end_headers()

    def log_message(self, *words: Any) -> None:
        pass


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[tuple[str, type[_Receiver]]]:
    """``host:port`` of a server that takes PUT, and its handler."""

    class Handler(_Receiver):
        folder = tmp_path / "received"
        paths: list[str] = []  # noqa: RUF012  # of the test's own class

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", Handler
    server.shutdown()
    server.server_close()


def fetched(host: CourierHost, described: Described, text: str, url: str = "") -> None:
    """Fetch what a ``model.remote`` names, and compare it with what was published."""
    remote = read_remote(text.encode(), "model.remote")
    files = described.manifest.files
    contents = tuple(described.contents[file.name] for file in files)
    published = Published(Path(), described.manifest, remote.sha256, contents)  # type: ignore[arg-type]
    with host.client() as client:
        client.fetch(published, url or remote.url)
    check_equal(host, published)


def test_a_file_url_names_the_folder_that_it_quotes(
    tmp_path: Path, described: Described, start: Start
) -> None:
    folder = tmp_path / "my models #1"
    text = write(described, folder.as_uri())
    assert (folder / NAME).is_file()
    assert [path.name for path in tmp_path.iterdir() if "my" in path.name] == [folder.name]
    fetched(start({"BRISK_REMOTE_URLS": tmp_path.as_uri()}), described, text)


def test_a_folder_of_any_name_is_found_by_its_url(
    tmp_path: Path, described: Described, start: Start
) -> None:
    text = write(described, str(tmp_path / "my models #1?"))
    fetched(start({"BRISK_REMOTE_URLS": tmp_path.as_uri()}), described, text)


@pytest.mark.parametrize("place", ["my models", "my%20models/"])
def test_names_are_quoted_and_passwords_sent_as_a_header(
    described: Described,
    receiver: tuple[str, type[_Receiver]],
    start: Start,
    serve: Serve,
    place: str,
) -> None:
    address, handler = receiver
    lines: list[str] = []
    text = write(described, f"http://me:{QUOTED}@{address}/{place}?sig=secret", lines.append)
    assert (handler.folder / "my models" / NAME).is_file()
    assert len(handler.paths) == len(described.contents) + 1
    assert handler.paths[-1] == "/my%20models/manifest.json?sig=secret"
    for secret in ("me:", "p%2Fss", PASSWORD, "secret"):
        assert secret not in text + "".join(lines)
    url = read_remote(text.encode(), "model.remote").url
    assert url == f"http://{address}/my%20models/manifest.json"
    registry = serve(Published(handler.folder, described.manifest, "", ()))
    fetched(start(), described, text, url.replace(f"http://{address}", registry.url))


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_place_that_takes_no_file_is_named_without_its_password(
    described: Described, receiver: tuple[str, type[_Receiver]], is_broken: bool
) -> None:
    address, handler = receiver
    handler.is_broken = is_broken
    with pytest.raises(UnavailableError, match=f"PUT http://{address}/m/") as caught:
        write(described, f"http://me:wrong@{address}/m?sig=secret")
    assert not any(secret in str(caught.value) for secret in ("me:", "wrong", "secret"))


def test_a_url_of_another_kind_is_refused_without_its_password(described: Described) -> None:
    with pytest.raises(
        InvalidConfigurationError, match=r"ftp://host/m.*expected a folder"
    ) as caught:
        write(described, "ftp://me:secret@host/m")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://me:secret@[h/m?secret", "//me:secret@h\u2100/m"])
def test_what_is_no_url_is_refused_without_its_password(described: Described, url: str) -> None:
    for refuse in (lambda: write(described, url), lambda: remote_text(url, b"")):
        with pytest.raises(InvalidConfigurationError, match="is no URL; expected a f") as caught:
            refuse()
        assert "secret" not in str(caught.value)
