"""Small programs in hosts, which get tasks and answer by lines of JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from brisk_bench.fleet.namespaces import NamespaceHost
from brisk_bench.harness.programs import Arguments, JsonProgram


class HostProgram(JsonProgram):
    """A program that runs in ``host`` while entered; then its group is killed and waited for."""

    def __init__(
        self, host: NamespaceHost, argv: Arguments, env: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{os.path.basename(argv[-1])} in {host.name}", argv, env, host.popen)
        self.host = host

    def kill(self) -> None:
        """Send SIGKILL to its group, like a power failure except that connections are reset."""
        self.host.kill(self.process.pid)


def web_server(host: NamespaceHost, kind: str, folder: Path) -> HostProgram:
    """Return a web server in the host, of a kind that ``web_server`` has, not started yet.

    Its first message is its ``port``.
    """
    command = [sys.executable, "-m", "brisk_bench.fleet.web_server", kind, str(folder)]
    return HostProgram(host, command)
