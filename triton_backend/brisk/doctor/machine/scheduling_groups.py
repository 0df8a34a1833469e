"""Whether the server and the runtime are in one of the kernel's scheduling groups.

Niceness counts within a group only: the best-effort worker gives way at once to what is in its
own group, and competes as an equal with what is in another one. Each control group with a weight
of its own is one, and, outside of those, each session where autogroups are on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from brisk.doctor.base import Deployment, Finding, Severity
from brisk.doctor.installation.protocol import TIMEOUT_S
from brisk.protocol.channel import check_peer
from brisk.protocol.runtime_paths import runtime_place

NAME = "scheduling groups"
_CGROUPS = Path("/sys/fs/cgroup")


def look(deployment: Deployment) -> Iterator[Finding]:
    runtime = _runtime(deployment.device)
    if deployment.server is None or runtime is None:
        missing = "server" if deployment.server is None else "runtime"
        yield Finding(NAME, Severity.UNKNOWN, f"no {missing} runs here")
        return
    groups = scheduling_group(deployment.server), scheduling_group(runtime)
    if groups[0] == groups[1]:
        yield Finding(NAME, Severity.GOOD, f"server and runtime share {groups[0]}")
        return
    yield Finding(
        NAME,
        Severity.ADVICE,
        f"the server is in {groups[0]}, the runtime in {groups[1]}",
        "best-effort work competes with the server's processes as an equal: the "
        "slowest wake-up in a hundred took over 1 ms in two of five runs, in one group in none",
        "let the server start its runtime: give it a BRISK_RUNTIME_DIR of its own, or wait until "
        "the present runtime has ended (BRISK_IDLE_EXIT_S after its last server)",
    )


def _runtime(device: str) -> int | None:
    """The supervisor, which made the socket; None where none listens."""
    try:
        with runtime_place(device).connect(TIMEOUT_S) as connection:
            return check_peer(connection)
    except OSError:
        return None


def scheduling_group(process: int, processes: Path = Path("/proc")) -> str:
    """In words; equal for two processes of one group. OSError where it has ended."""
    for line in (processes / str(process) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") and path != "/":
            return f"control group {path}"
        if not controllers and (weighted := _weighted(path)) is not None:
            return f"control group {weighted}"
    setting = processes / "sys/kernel/sched_autogroup_enabled"
    if setting.exists() and setting.read_text().strip() == "1":
        return (processes / str(process) / "autogroup").read_text().split()[0].strip("/")
    return "the machine's only group"


def _weighted(path: str) -> str | None:
    """The nearest group above that has a weight, so is a scheduling group, of version 2."""
    group = Path(path)
    for above in (group, *group.parents):
        if (_CGROUPS / str(above).lstrip("/") / "cpu.weight").exists():
            return str(above)
    return None
