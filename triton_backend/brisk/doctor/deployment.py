"""The deployment that is looked at: the server of this user, else this shell's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from brisk.errors import BriskError
from brisk.protocol.entry_files import users_path
from brisk.protocol.runtime_paths import Role, runtime_place
from brisk.protocol.status import Status
from brisk.telemetry.observer import Observer
from brisk.triton.options import option


class Severity(str, Enum):
    """``ADVICE`` costs something, ``PROBLEM`` stops something from working; ``UNKNOWN`` cannot
    be seen from here."""

    GOOD = "good"
    ADVICE = "advice"
    PROBLEM = "problem"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """``found``: what is. ``cost``: measured or documented. ``change``: what to do about it.

    A good or unknown finding has neither cost nor change.
    """

    verdict: Severity
    found: str
    cost: str = ""
    change: str = ""


Findings = list[Finding]
"""Of one check."""


def good(found: str) -> Findings:
    return [Finding(Severity.GOOD, found)]


def unknown(found: str) -> Findings:
    return [Finding(Severity.UNKNOWN, found)]


def advice(found: str, cost: str, change: str) -> Findings:
    return [Finding(Severity.ADVICE, found, cost, change)]


def problem(found: str, cost: str, change: str) -> Findings:
    return [Finding(Severity.PROBLEM, found, cost, change)]


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is looked at.

    ``environment`` and ``command`` are those of the running server; where none was found
    (``server`` None), the environment of this process and no command. ``shared_memory`` and
    ``cgroup`` are paths as that server sees them.
    """

    server: int | None
    environment: Mapping[str, str]
    command: tuple[str, ...]
    repositories: tuple[Path, ...]
    device: str
    shared_memory: Path
    cgroup: Path


def running(deployment: Deployment) -> Status | None:
    """What the runtime tells of itself; None where none runs, or is of another version."""
    place = runtime_place(deployment.device, deployment.environment)
    try:
        with Observer(place, Role.FOREGROUND) as observer:
            return observer.status()
    except (BriskError, OSError):
        return None


def find_deployment(repositories: Sequence[Path], device: str) -> Deployment:
    """``repositories`` beside those that the server was started with.

    Where this process has a ``BRISK_RUNTIME_DIR``, a server with another one is somebody else's.
    Else any is taken, first one that has none either.
    """
    own = os.environ.get("BRISK_RUNTIME_DIR")
    servers = sorted(_servers(), key=lambda found: found[1].get("BRISK_RUNTIME_DIR") != own)
    if own:
        servers = [found for found in servers if found[1].get("BRISK_RUNTIME_DIR") == own]
    if not servers:
        return Deployment(
            None, os.environ, (), tuple(repositories), device, Path("/dev/shm"), _cgroup("self")
        )
    server, environment, command = servers[0]
    named = option(command, "model-repository") or option(command, "model-store")
    found = [_of_process(server, users_path(Path(named), environment))] if named else []
    return Deployment(
        server,
        environment,
        command,
        (*repositories, *(path for path in found if path.is_dir())),
        device,
        _of_process(server, Path("/dev/shm")),
        _cgroup(str(server)),
    )


def _servers() -> Iterator[tuple[int, Mapping[str, str], tuple[str, ...]]]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = [os.fsdecode(word) for word in _words(entry / "cmdline")]
            if not command or Path(command[0]).name != "tritonserver":
                continue
            pairs = (os.fsdecode(word).partition("=") for word in _words(entry / "environ"))
            yield int(entry.name), {name: value for name, _, value in pairs}, tuple(command)
        except OSError:  # it has ended, or is another user's
            continue


def _words(file: Path) -> list[bytes]:
    return [word for word in file.read_bytes().split(b"\0") if word]


def _of_process(process: int, path: Path) -> Path:
    """``path`` as the process sees it: it may live in a container."""
    root = Path(f"/proc/{process}/root")
    try:
        absolute = path if path.is_absolute() else Path(os.readlink(f"/proc/{process}/cwd")) / path
        if os.path.samefile(root, "/"):
            return absolute
    except OSError:
        return path
    return root / absolute.relative_to("/")


def _cgroup(process: str) -> Path:
    """The directory that limits the process's processor time; it need not exist.

    Where version 1 of control groups has the controller, that one counts, else version 2.
    """
    try:
        lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    root, relative = Path("/sys/fs/cgroup"), "/"
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return root / "cpu" / group.lstrip("/")
        if not controllers:
            relative = group
    return root / relative.lstrip("/")
