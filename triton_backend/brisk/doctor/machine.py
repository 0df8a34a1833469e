"""The checks of the machine: settings, threads, scheduling, shared memory, open files."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from brisk.doctor.deployment import (
    Deployment,
    Findings,
    advice,
    control_group,
    good,
    lost_backends,
    problem,
    running,
    unknown,
)
from brisk.errors import InvalidConfigurationError, counted
from brisk.os_priority import run_when_idle
from brisk.protocol.channel import check_peer
from brisk.protocol.runtime_paths import runtime_place
from brisk.runtime.settings import read_settings, wrong_runtime_settings
from brisk.settings import runtime_directory, unknown_variables, wrong_settings
from brisk.triton.instance_threads import FEW_THREADS, says_threads
from brisk.triton.regions import left

CONNECT_TIMEOUT_S = 5.0

WANTED_DESCRIPTORS = 4096
MANY_THREADS = 256
NEARLY_ALL = 0.8
"""The share of what a control group allows from which on there is little room for models."""
WANTED_MEMORY_BYTES = 256 * 2**20
NEEDED_MEMORY_BYTES = 16 * 2**20
_MOST_NAMED = 3
_CGROUPS = Path("/sys/fs/cgroup")


def server(deployment: Deployment) -> Findings:
    """Report which server, or else that this shell's settings, are examined; check that its
    backends are still there, and this shell's variables that it does not have."""
    place = runtime_directory(deployment.environment)
    if deployment.server is None:
        return good(
            f"none of this user runs with runtime directory {place}: looked at is what this "
            "shell's environment would give one"
        )
    named = ", ".join(map(str, deployment.repositories)) or "no repository that can be seen"
    findings = good(f"process {deployment.server}, {named}, runtime directory {place}")
    if (lost := lost_backends(deployment)) is not None:
        state = f"the server's backend directory '{lost}' is gone"
        findings += problem(state, "no model can be loaded", "start the server again")
    theirs = set(unknown_variables(deployment.environment))
    for line in set(unknown_variables(os.environ)) - theirs:
        findings += advice(f"{line} It is this shell's", "it sets nothing", "unset it")
    theirs = set(_invalid_values(deployment.environment))
    for line in set(_invalid_values(os.environ)) - theirs:
        findings += advice(f"{line}; it is this shell's", "`brisk serve` refuses it", "unset it")
    return findings


def settings(deployment: Deployment) -> Findings:
    """Check for variables that look like settings but are none, and for invalid values."""
    findings: Findings = []
    for line in _invalid_values(deployment.environment):
        findings += problem(line, "no model can be loaded", "a value that the line names")
    for line in unknown_variables(deployment.environment):
        findings += advice(line, "it sets nothing", "docs/configuration.md has all of them")
    return findings or good("every BRISK_ variable is a setting")


def _invalid_values(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each setting whose value is invalid, whoever reads it."""
    return list(
        dict.fromkeys([*wrong_settings(environment), *wrong_runtime_settings(environment)])
    )


def threads(deployment: Deployment) -> Findings:
    """Check that there are no more threads than cores and the quota allow: more would alternate in
    the middle of a segment."""
    cores = len(os.sched_getaffinity(deployment.server or 0))
    count = cores
    if text := deployment.environment.get("BRISK_THREADS"):
        with contextlib.suppress(InvalidConfigurationError):  # the check of settings reports it
            count = read_settings({"BRISK_THREADS": text}).threads
    if (status := running(deployment)) is not None:
        count = status.threads  # the actual number, whatever is set by now
    state = f"{counted(count, 'thread')} on {counted(cores, 'usable core')}"
    findings = good(state)
    if count > cores:
        cost = "every segment waits for the thread that is not running"
        findings = problem(state, cost, f"BRISK_THREADS={cores} or less")
    quota = _quota_cores(deployment)
    if quota is not None and quota < count:
        findings += advice(
            f"{counted(count, 'thread')}, but the control group may use {quota:g} cores",
            "the kernel stops all threads once the quota of a period (100 ms) is used up, also in "
            "the middle of a real-time request",
            f"BRISK_THREADS={max(1, int(quota))}, or a limit of {counted(count, 'core')}",
        )
    return findings


def _quota_cores(deployment: Deployment) -> float | None:
    """Return how many cores' time the control group, with those above it, may use; None if there
    is no limit."""
    limits = []
    for group in (deployment.cgroup, *deployment.cgroup.parents):
        for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
            try:
                quota, period = " ".join((group / file).read_text() for file in files).split()
            except (OSError, ValueError):
                continue
            if quota not in ("max", "-1"):
                limits.append(int(quota) / int(period))
    return min(limits, default=None)


def instance_threads(deployment: Deployment) -> Findings:
    """Check how many threads the server has, and how many its control group allows.

    Triton makes 32 for each instance of a Python backend's model (``triton.instance_threads``).
    """
    if deployment.server is None:
        return unknown("no server runs here")
    few = f"{FEW_THREADS}, as `brisk serve` has it"
    is_said = says_threads(deployment.command)
    count = len(os.listdir(f"/proc/{deployment.server}/task"))
    state = counted(count, "thread")
    if (limit := _task_limit(deployment.server)) is not None:
        used, most = limit
        state += f"; {used} of {most} processes and threads that the control group allows"
        if used > NEARLY_ALL * most:
            return problem(
                state,
                "where they are used up, Triton aborts the server",
                "a higher limit (pids)" if is_said else few,
            )
    if count >= MANY_THREADS and not is_said:
        return advice(state, "each takes some 33 KiB, half of it the kernel's", few)
    return good(state)


def _task_limit(process: int) -> tuple[int, int] | None:
    """Return how many processes and threads the tightest control group of the process has, and how
    many it may have; None if there is no limit."""
    own = control_group(process, "pids")
    limits = []
    for group in (own, *own.parents):
        with contextlib.suppress(OSError, ValueError):  # no such group, or `max`
            most = int((group / "pids.max").read_text())
            limits.append((int((group / "pids.current").read_text()), most))
    return max(limits, key=lambda limit: limit[0] / limit[1], default=None)


def spinning(deployment: Deployment) -> Findings:
    """Check for OpenMP threads that spin while they wait, and so keep a core from other work."""
    count = deployment.environment.get("GOMP_SPINCOUNT", "0")
    policy = deployment.environment.get("OMP_WAIT_POLICY", "")
    if policy.lower() != "active" and count == "0":
        return good("OpenMP threads sleep when they have nothing to do")
    return advice(
        f"GOMP_SPINCOUNT is '{count}', OMP_WAIT_POLICY '{policy}'",
        "beside another busy process a large network took half as much time again; on a quiet "
        "machine a small one gained a tenth",
        "unset both, unless Brisk has the machine for itself",
    )


def scheduling_classes(deployment: Deployment) -> Findings:
    """Check that SCHED_IDLE, under which artefacts are built, is allowed; a seccomp filter or an
    old sandbox may refuse it.

    A thread of its own tries it, since leaving SCHED_IDLE needs a privilege.
    """
    with ThreadPoolExecutor(1) as pool:
        is_refused = pool.submit(run_when_idle).exception() is not None
    if not is_refused:
        return good("SCHED_IDLE may be used here")
    return advice(
        "SCHED_IDLE is refused here",
        "what is made in the background runs at nice 19, as best-effort requests do, which it "
        "slows down",
        "allow sched_setscheduler in the container's seccomp profile",
    )


def freezing(deployment: Deployment) -> Findings:
    """Check that a process can be stopped through its descriptor, as best-effort work is in the
    middle of a segment.

    Kernels before 5.3, and seccomp filters of their time, lack such descriptors. The check sends
    this process SIGCONT, which changes nothing.
    """
    try:
        handle = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(handle, signal.SIGCONT)
        finally:
            os.close(handle)
    except (OSError, AttributeError) as error:
        return advice(
            f"processes cannot be stopped by their descriptors here ({error})",
            "a best-effort segment that a real-time request comes upon goes on beside it at "
            "nice 19: such requests took up to a tenth longer",
            "use Linux 5.3 or newer; allow pidfd_open and pidfd_send_signal in the "
            "container's seccomp profile",
        )
    return good("best-effort segments can be stopped half-way")


def scheduling_groups(deployment: Deployment) -> Findings:
    """Check whether the server and the runtime are in the same scheduling group of the kernel.

    Niceness counts only within a group: the best-effort worker yields at once to processes of its
    own group, and competes as an equal with those of others. Each control group with its own
    weight is a scheduling group, and outside of these each session if autogroups are on.
    """
    runtime = _runtime(deployment)
    if deployment.server is None or runtime is None:
        missing = "server" if deployment.server is None else "runtime"
        return unknown(f"no {missing} runs here")
    groups = scheduling_group(deployment.server), scheduling_group(runtime)
    if groups[0] == groups[1]:
        return good(f"server and runtime share {groups[0]}")
    return advice(
        f"the server is in {groups[0]}, the runtime in {groups[1]}",
        "best-effort work competes with the server's processes as an equal: the slowest "
        "wake-up in a hundred took over 1 ms in two of five runs, in one group in none",
        "let the server start its runtime: give it a BRISK_RUNTIME_DIR of its own, or wait "
        "until the present runtime has ended (BRISK_IDLE_EXIT_S after its last server)",
    )


def _runtime(deployment: Deployment) -> int | None:
    """Return the process number of the runtime's supervisor, which made the socket; None if none
    listens."""
    place = runtime_place(deployment.device, deployment.environment)
    try:
        with place.connect(CONNECT_TIMEOUT_S) as connection:
            return check_peer(connection)
    except OSError:
        return None


def scheduling_group(process: int, processes: Path = Path("/proc")) -> str:
    """Return the name of a process's scheduling group, equal for two processes of one group.

    Raises OSError if the process has ended.
    """
    for line in (processes / str(process) / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") and path != "/":
            return f"control group {path}"
        if not controllers:  # version 2: the nearest group above that has a weight
            for above in (Path(path), *Path(path).parents):
                if (_CGROUPS / str(above).lstrip("/") / "cpu.weight").exists():
                    return f"control group {above}"
    setting = processes / "sys/kernel/sched_autogroup_enabled"
    if setting.exists() and setting.read_text().strip() == "1":
        autogroup = (processes / str(process) / "autogroup").read_text().split()
        if autogroup:  # nothing is in it for a process of the session that the kernel started
            return autogroup[0].strip("/")
        return "the kernel's root group"
    return "the machine's only group"


def shared_memory(deployment: Deployment) -> Findings:
    """Check the free space in /dev/shm, where Triton's stubs keep their queues and the tensors in
    flight, at least 1 MiB each.

    Brisk's own tensors are in memfds, which /dev/shm does not limit. Docker's default is 64 MB.
    """
    try:
        status = os.statvfs(deployment.shared_memory)
    except OSError as error:
        return unknown(f"{deployment.shared_memory}: {error}")
    size, free = status.f_frsize * status.f_blocks, status.f_frsize * status.f_bavail
    state = f"{size / 2**20:.0f} MiB, {free / 2**20:.0f} MiB of them free"
    if free >= WANTED_MEMORY_BYTES:
        return good(state)
    report = problem if free < NEEDED_MEMORY_BYTES else advice
    return report(
        state,
        "loads fail or stubs die of SIGBUS when it is full: each model instance takes 1 MiB, "
        "each request in flight as much as its tensors",
        "start the container with --shm-size=1g (Kubernetes: an emptyDir of medium Memory at "
        "/dev/shm)",
    )


def left_regions(deployment: Deployment) -> Findings:
    """Check for regions of Triton's stubs in /dev/shm that no process uses any more.

    They remain when a server and its stubs are killed together. `brisk serve` removes those of its
    own servers at its next start, if it can prove that these have ended. In a container restarted
    with the same /dev/shm it cannot, and other ways to start a server remove none.
    """
    try:
        regions = left(deployment.shared_memory)
    except OSError as error:
        return unknown(f"{deployment.shared_memory}: {error}")
    if not regions:
        return good(f"none in {deployment.shared_memory} that nobody uses")
    size_mib = sum(region.size_bytes for region in regions) / 2**20
    names = ", ".join(region.path.name for region in regions[:_MOST_NAMED])
    more = f" and {len(regions) - _MOST_NAMED} more" if len(regions) > _MOST_NAMED else ""
    return advice(
        f"{len(regions)} in {deployment.shared_memory} that no process seen from here has "
        f"mapped, {size_mib:.1f} MiB: {names}{more}",
        "servers and stubs that were killed have left them; they take memory until the "
        "machine starts anew",
        "start the server with `brisk serve`, which removes those of its own killed ones; "
        "remove others by rm, unless a container that is not seen from here shares the folder",
    )


def open_files(deployment: Deployment) -> Findings:
    """Check the limit of open files: every model instance takes a connection and some of the
    runtime's shared memory descriptors."""
    limits = Path(f"/proc/{deployment.server or 'self'}/limits").read_text().splitlines()
    hard = next(line for line in limits if line.startswith("Max open files")).split()[4]
    if hard == "unlimited" or int(hard) >= WANTED_DESCRIPTORS:
        return good(f"up to {hard}")
    return advice(
        f"up to {hard}",
        f"with more than about {int(hard) // 8} model instances further ones cannot connect",
        f"raise the hard limit: docker run --ulimit nofile={WANTED_DESCRIPTORS}:65536",
    )
