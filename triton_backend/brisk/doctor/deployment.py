"""The deployment that ``brisk doctor`` examines: this user's server, or this shell's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from brisk.errors import BriskError, UnavailableError
from brisk.protocol.entry_files import users_path
from brisk.protocol.runtime_paths import Role, runtime_place
from brisk.protocol.status import Status
from brisk.settings import absolute_paths
from brisk.telemetry.observer import Observer
from brisk.triton.options import option, options_named
from brisk.view.plan import REPOSITORY_OPTIONS

PYTHON_TIMEOUT_S = 120.0


class Severity(str, Enum):
    """The severity of a finding.

    ``ADVICE``: the state costs something. ``PROBLEM``: something cannot work. ``UNKNOWN``: the
    check cannot tell.
    """

    GOOD = "good"
    ADVICE = "advice"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of a check. A good or unknown one has neither cost nor change."""

    verdict: Severity
    found: str
    """The present state."""
    cost: str = ""
    """The cost of the state, measured or documented."""
    change: str = ""
    """What to do about the state."""


Findings = list[Finding]
"""The findings of one check."""


def good(state: str) -> Findings:
    return [Finding(Severity.GOOD, state)]


def unknown(state: str) -> Findings:
    return [Finding(Severity.UNKNOWN, state)]


def advice(state: str, cost: str, change: str) -> Findings:
    return [Finding(Severity.ADVICE, state, cost, change)]


def problem(state: str, cost: str, change: str) -> Findings:
    return [Finding(Severity.PROBLEM, state, cost, change)]


@dataclass(frozen=True, slots=True)
class Deployment:
    """The deployment to examine: its server, or the settings that a server would get."""

    server: int | None
    """The process number of the running server; None if there is none."""
    environment: Mapping[str, str]
    """The server's environment, or this process's if there is no server."""
    command: tuple[str, ...]
    """The server's command line; empty if there is no server."""
    repositories: tuple[Path, ...]
    device: str
    shared_memory: Path
    """The path by which this process reaches the server's ``/dev/shm``."""
    cgroup: Path
    """The directory of the control group that limits the server's processor time; it need not
    exist."""

    @property
    def python(self) -> str:
        """The Python that the runtime has, or would have; this process's where none is set."""
        return self.environment.get("BRISK_PYTHON") or sys.executable

    @property
    def is_contained(self) -> bool:
        """Whether the server has another root directory than this process."""
        if self.server is None:
            return False
        try:
            return not os.path.samefile(f"/proc/{self.server}/root", "/")
        except OSError:  # it has ended, or is another user's
            return False


def ask_python(deployment: Deployment, program: str) -> str:
    """Return the last line that the runtime's Python prints for a program.

    Raises UnavailableError with its last words if it cannot be run, fails or prints nothing.
    """
    try:
        ended = subprocess.run(
            [deployment.python, "-c", program],
            capture_output=True,
            text=True,
            timeout=PYTHON_TIMEOUT_S,
            env={**deployment.environment, "OMP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    printed = ended.stdout.strip()
    if ended.returncode or not printed:
        words = ended.stderr.strip() or f"it ended without a word (status {ended.returncode})"
        raise UnavailableError(words.splitlines()[-1])
    return printed.splitlines()[-1]


def running(deployment: Deployment) -> Status | None:
    """Return the status of the deployment's runtime; None if none runs, none can run there, or it
    is of another version."""
    try:
        place = runtime_place(deployment.device, deployment.environment)
        with Observer(place, Role.FOREGROUND) as observer:
            return observer.status()
    except (BriskError, OSError):
        return None


def find_deployment(repositories: Sequence[Path], device: str) -> Deployment:
    """Return the deployment, with ``repositories`` in addition to those of its server.

    If this process has a ``BRISK_RUNTIME_DIR``, only a server with the same one counts. Else any
    server of this user counts, preferably one without the variable.
    """
    own = absolute_paths().get("BRISK_RUNTIME_DIR")
    servers = sorted(_servers(), key=lambda one: one.runtime_directory != own)
    if own:
        servers = [one for one in servers if one.runtime_directory == own]
    process, environment, command = servers[0] if servers else (None, os.environ, ())
    looked_at = process or "self"
    named = [value for name in REPOSITORY_OPTIONS for value in options_named(command, name)]
    served = [of_process(looked_at, users_path(Path(value), environment)) for value in named]
    return Deployment(
        server=process,
        environment=environment,
        command=command,
        repositories=(*repositories, *(path for path in served if path.is_dir())),
        device=device,
        shared_memory=of_process(looked_at, Path("/dev/shm")),
        cgroup=control_group(looked_at, "cpu"),
    )


class _Server(NamedTuple):
    """A running tritonserver of this user."""

    process: int
    environment: Mapping[str, str]
    command: tuple[str, ...]

    @property
    def runtime_directory(self) -> str | None:
        return self.environment.get("BRISK_RUNTIME_DIR")


def _servers() -> Iterator[_Server]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = [os.fsdecode(word) for word in _words(entry / "cmdline")]
            if not command or Path(command[0]).name != "tritonserver":
                continue
            pairs = (os.fsdecode(word).partition("=") for word in _words(entry / "environ"))
            environment = {name: value for name, _, value in pairs}
            environment.update(absolute_paths(environment, (entry / "cwd").readlink()))
            yield _Server(int(entry.name), environment, tuple(command))
        except OSError:  # it has ended, or is another user's
            continue


def _words(file: Path) -> list[bytes]:
    return [word for word in file.read_bytes().split(b"\0") if word]


def of_process(process: int | str, path: Path) -> Path:
    """Return ``path`` as the process, which may run in a container, sees it."""
    root = Path(f"/proc/{process}/root")
    try:
        absolute = path if path.is_absolute() else Path(os.readlink(f"/proc/{process}/cwd")) / path
        if os.path.samefile(root, "/"):
            return absolute
    except OSError:
        return path
    return root / absolute.relative_to("/")


def lost_backends(deployment: Deployment) -> str | None:
    """Return the backend directory that the server was given if it is there no more, else None."""
    named = option(deployment.command, "backend-directory")
    if deployment.server is None or not named:
        return None
    return None if os.path.lexists(of_process(deployment.server, Path(named))) else named


def control_group(process: int | str, controller: str) -> Path:
    """Return the directory of the process's control group for ``controller`` (``cpu``, ``pids``);
    it need not exist.

    If version 1 of control groups has the controller, its directory is returned, else version 2's.
    """
    try:
        lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    root, relative = Path("/sys/fs/cgroup"), "/"
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            return root / controller / group.lstrip("/")
        if not controllers:
            relative = group
    return root / relative.lstrip("/")
