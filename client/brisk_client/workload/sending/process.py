"""A generator process as the runner sees it: orders in, lines out."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, TypeAlias

from brisk_client.workload.sending import generator
from brisk_client.workload.spec.description import Workload, to_document

_END_TIMEOUT_S = 2.0

Lines: TypeAlias = "queue.Queue[tuple[GeneratorProcess, str]]"
"""What all processes of a run say, as it comes; an empty line is the end of one."""


class GeneratorProcess:
    """A context manager that ends the process. Its lines go to ``lines``."""

    def __init__(self, names: list[str], lines: Lines) -> None:
        self.names = names
        self._process = subprocess.Popen(
            [sys.executable, "-m", generator.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def prepare(
        self, workload: Workload, url: str, is_best_effort: bool, rows: Path | None
    ) -> None:
        """Answered by a line ``ready`` or ``failed``."""
        self._send(
            {
                "workload": to_document(workload),
                "tasks": self.names,
                "url": url,
                "is_best_effort": is_best_effort,
                "rows": str(rows) if rows is not None else "",
            }
        )

    def begin(self, begin_s: float) -> None:
        """``begin_s``: a time of ``time.monotonic``, which all processes share."""
        self._send({"begin_s": begin_s})

    def describe_end(self) -> str:
        status = self._process.poll()
        how = "does not answer" if status is None else f"ended with status {status}"
        return f"the generator of {', '.join(self.names)} {how}"

    def _read(self, lines: Lines) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                lines.put((self, line))
        lines.put((self, ""))

    def _send(self, document: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the end of its lines tells
            self._process.stdin.write(json.dumps(document) + "\n")
            self._process.stdin.flush()

    def __enter__(self) -> GeneratorProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
