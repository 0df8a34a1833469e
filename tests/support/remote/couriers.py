"""Couriers as processes of their own, each a host with folders of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.errors import named_error
from support.remote.published import Published
from support.waiting import PATIENCE_S, wait_until

PACKAGES = Path(__file__).resolve().parents[3] / "triton_backend"


class CourierHost:
    """A host: its folders, and the courier that runs there."""

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, port: int = 0
    ) -> None:
        """``port``: on which it serves peers; 0: it does not."""
        self.folder = folder
        self.runtime = folder / "run"
        self.cache = folder / "cache"
        self.port = port
        self.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("BRISK_")},
            "PYTHONPATH": str(PACKAGES),
            "BRISK_RUNTIME_DIR": str(self.runtime),
            "BRISK_CACHE_DIR": str(self.cache),
            **({"BRISK_PEER_LISTEN": f"127.0.0.1:{port}"} if port else {}),
            **(settings or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the courier, and wait until it answers."""
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brisk.sourcing"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self.environment,
            cwd="/",
        )
        log.close()
        process = self.process

        def answers() -> bool:
            assert process.poll() is None, f"the courier has ended: {self.log}"
            with contextlib.suppress(OSError), self.client() as client:
                return client.ask("status", {}) is not None
            return False

        wait_until(answers, "the courier's answer")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def place(self) -> Path:
        return self.runtime / "courier.sock"

    def client(self) -> CourierClient:
        return CourierClient(self.place)

    def copy_folder(self, published: Published) -> Path:
        return self.cache / "remote" / published.sha256

    def kill(self) -> None:
        """End the courier like a crash."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(PATIENCE_S)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.kill()

    @property
    def cpu_s(self) -> float:
        """The processor time that it has taken."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class CourierClient:
    """A connection that speaks the protocol that ``brisk.copies.connection`` documents."""

    def __init__(self, place: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE_S)
        try:
            self._socket.connect(str(place))
        except OSError:
            self._socket.close()
            raise
        self._lines = self._socket.makefile("rb")

    def __enter__(self) -> CourierClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def answer(self) -> Mapping[str, Any] | None:
        """Return the next answer; None: the connection has ended."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def ask(self, name: str, content: Mapping[str, Any]) -> Any:
        """Return what comes as ``ok``. Raises the BriskError that comes instead."""
        self.send(json.dumps({name: content}).encode() + b"\n")
        return self._ok(self.answer())

    def open(self, published: Published, url: str) -> Path:
        return Path(self.ask("open", {"url": url, "sha256": published.sha256})["folder"])

    def take(self, published: Published, form: str) -> str | None:
        path = self.ask("take", {"sha256": published.sha256, "form": form})["path"]
        return None if path is None else str(path)

    def wait(
        self,
        published: Published,
        parts: Sequence[Range] | None = None,
        *,
        is_compared: bool = False,
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the progress until all is here; ``parts`` None: the own files. ``is_compared``:
        until the copy is whole, too."""
        if parts is None:
            files = published.manifest.files
            parts = [Range(number, 0, files[number].size) for number in published.manifest.own]
        ranges = [list(part) for part in parts]
        content = {"sha256": published.sha256, "ranges": ranges, "compared": is_compared}
        self.send(json.dumps({"await": content}).encode() + b"\n")
        while (answer := self.answer()) is not None and "waiting" in answer:
            yield answer["waiting"]
        self._ok(answer)

    def fetch(self, published: Published, url: str) -> float:
        """Open it and wait for all of it. Return the seconds that this took."""
        began_s = time.monotonic()
        self.open(published, url)
        for _ in self.wait(published):
            pass
        return time.monotonic() - began_s

    def status(self, published: Published) -> Mapping[str, Any]:
        copies = self.ask("status", {})["copies"]
        return next(each for each in copies if each["sha256"] == published.sha256)

    def bytes_from(self, published: Published, beginning: str) -> int:
        """Return the bytes that came from sources whose names have this beginning."""
        sources = self.status(published)["sources"]
        return sum(each["bytes_total"] for each in sources if each["name"].startswith(beginning))

    def _ok(self, answer: Mapping[str, Any] | None) -> Any:
        assert answer is not None, "the courier has ended"
        if "error" in answer:
            raise named_error(answer["error"]["code"], answer["error"]["message"])
        return answer["ok"]


def check_equal(host: CourierHost, published: Published) -> None:
    """Assert that the host's copy is whole, and equal to what was published."""
    folder = host.copy_folder(published)
    copy = LocalCopy(folder)
    assert copy.has_head
    for number in published.manifest.own:
        assert copy.path(number).read_bytes() == published.contents[number]
    copy.close()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free just now."""
    with contextlib.ExitStack() as opened:
        sockets = []
        for _ in range(count):
            each = opened.enter_context(socket.socket())
            each.bind(("127.0.0.1", 0))
            sockets.append(each)
        return [each.getsockname()[1] for each in sockets]
