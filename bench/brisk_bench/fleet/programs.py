"""A small program in a host, which is told and answers by lines of JSON."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from brisk.errors import UnavailableError
from brisk_bench.fleet.namespaces import NamespaceHost


class HostProgram:
    """Runs while entered; then its group is killed and waited for."""

    def __init__(
        self,
        host: NamespaceHost,
        argv: Sequence[str | os.PathLike[str]],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.host = host
        self._name = f"{os.path.basename(argv[-1])} in {host.name}"
        self._argv = argv
        self._env = env
        self._rest = b""

    def __enter__(self) -> HostProgram:
        self._errors = tempfile.TemporaryFile()  # closed by __exit__
        self.process = self.host.popen(
            self._argv,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        """SIGKILL to its group, as when its host's power fails but for the connections' resets."""
        self.host.kill(self.process.pid)

    def wait(self, time_out_s: float) -> None:
        """Until it has ended by itself. Raises subprocess.TimeoutExpired."""
        self.process.wait(time_out_s)

    def say(self, **message: object) -> None:
        """Raises UnavailableError where the program has ended."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{json.dumps(message)}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def hear(self, time_out_s: float) -> dict[str, Any]:
        """Its next line. Raises TimeoutError, and UnavailableError where it has ended."""
        assert self.process.stdout is not None
        deadline_s = time.monotonic() + time_out_s
        while b"\n" not in self._rest:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            if not select.select([self.process.stdout], [], [], left_s)[0]:
                raise TimeoutError(f"{self._name} does not answer within {time_out_s:g} s")
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise self._ended()
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    def _ended(self) -> UnavailableError:
        status = self.process.wait(10.0)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        return UnavailableError(f"{self._name} ended with {status}: {said or 'it said nothing'}")
