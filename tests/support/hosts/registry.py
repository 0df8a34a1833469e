"""A web server of published models that gives out bytes only as far as a test lets it."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PIECE = 1 << 16


class Registry:
    """Serves ``folder`` over HTTP with ranges; ``sent`` counts the bytes of each file by its
    path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sent: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._held: dict[str, range] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry._answer(self)

            def log_message(self, *arguments: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def hold(self, path: str, after: int = 0, until: int = 1 << 62) -> None:
        """Send no byte of a file at or behind ``after``, up to ``until``, before ``let_go``."""
        with self._changed:
            self._held[path] = range(after, until)

    def let_go(self) -> None:
        with self._changed:
            self._held.clear()
            self._changed.notify_all()

    def close(self) -> None:
        self.let_go()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        file = self.folder / path.lstrip("/")
        if not file.is_file():
            request.send_error(404)
            return
        size = file.stat().st_size
        begin, end = 0, size
        ranged = _RANGE.fullmatch(request.headers.get("Range", ""))
        if ranged:
            begin = int(ranged[1])
            end = min(size, int(ranged[2]) + 1) if ranged[2] else size
        request.send_response(206 if ranged else 200)
        if ranged:
            request.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        request.send_header("Content-Length", str(end - begin))
        request.end_headers()
        with contextlib.suppress(OSError), open(file, "rb") as content:
            content.seek(begin)
            while begin < end:
                most = self._may_send(path, begin, min(_PIECE, end - begin))
                request.wfile.write(content.read(most))
                self.sent[path] += most
                begin += most

    def _may_send(self, path: str, offset: int, most: int) -> int:
        with self._changed:
            while offset in self._held.get(path, ()):
                self._changed.wait()
            held = self._held.get(path, range(0))
        return min(most, held.start - offset) if offset < held.start else most


@contextlib.contextmanager
def registry_of(folder: Path) -> Iterator[Registry]:
    registry = Registry(folder)
    try:
        yield registry
    finally:
        registry.close()
