"""``python -m brisk.runtime --device cpu``: become the runtime of a device, or find one there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from brisk.errors import BriskError
from brisk.os_priority import set_process
from brisk.posix import raise_file_limit
from brisk.protocol.runtime_paths import Role, runtime_place
from brisk.runtime.heartbeat import (
    BACKGROUND_PATIENCE_S,
    GPU_START_PATIENCE_S,
    PATIENCE_S,
    Heartbeat,
    StallWatch,
)
from brisk.runtime.log import LOGGER, start_logging
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.ready import import_everything
from brisk.runtime.sessions.attempts import ATTEMPTS, end_attempts, new_page
from brisk.runtime.settings import Settings, read_settings
from brisk.runtime.supervisor import WORKER_ENDED_IDLE, WorkerSlot, listen, supervise
from brisk.settings import PEER_LISTEN, PEERS, unknown_variables


def main() -> int:
    """Return the exit status. 0: it ended idle or another runtime has the place; 1: cannot run."""
    device, niceness = _arguments(sys.argv[1:])
    start_logging()
    for line in unknown_variables():
        LOGGER.warning(line)
    leave_process_group()
    if niceness is not None:
        with contextlib.suppress(PermissionError):  # only a lower niceness needs permission
            set_process(niceness)
    try:
        settings = read_settings()
        place = runtime_place(device)
        place.prepare()
        lock = place.try_lock()
        if lock is None:
            return 0
        try:
            listeners = {role: listen(place, role) for role in Role}
            _prepare_environment(settings)
            raise_file_limit()  # a peer takes a socket and a descriptor for each of its slabs
            if any(os.environ.get(name) for name in (PEERS, PEER_LISTEN)):
                from brisk.copies.connection import start_early  # imported only for other hosts

                start_early()
            import_everything(device)
            supervise(_slots(listeners, device, settings))
        finally:
            place.remove(lock)
    except (BriskError, ImportError) as error:
        LOGGER.error(f"the runtime of {device} cannot start: {error}")
        with contextlib.suppress(BriskError, OSError):
            runtime_place(device).leave_words(str(error))
        return 1
    return 0


def _arguments(given: Sequence[str]) -> tuple[str, int | None]:
    """Return the device and the niceness; None: the starter's. Ends the process if invalid."""
    if [*given[::2]] == ["--device", "--niceness"] and given[-1].isdecimal():
        return given[1], int(given[-1])  # as stubs start it, without argparse's 10 ms to import
    import argparse

    parser = argparse.ArgumentParser(prog="python -m brisk.runtime", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda:<number> (default: cpu)")
    parser.add_argument("--niceness", type=int, help="its own; default: as its starter's")
    chosen = parser.parse_args(given)
    return chosen.device, chosen.niceness


def leave_process_group() -> None:
    """Outlive the stub, and the signals that are meant for its group or its terminal.

    The process stays in the stub's session, because the kernel makes a scheduling group for each
    new session (autogroups), and niceness counts only within a group: outside the group of the
    server and its stubs the best-effort worker would compete with them as an equal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(PermissionError):  # the process leads a session that its starter made
        os.setpgid(0, 0)


def _prepare_environment(settings: Settings) -> None:
    """Set the environment variables that libraries read when they are loaded.

    OpenBLAS must start no thread in the supervisor. OpenMP threads sleep as soon as they have
    nothing to do. Spinning some 10,000 rounds first saved a tenth to a sixth of a small network's
    time on an idle machine; next to another busy process it cost a large network half as much
    time again."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    os.environ.setdefault("GOMP_SPINCOUNT", "0")


def _slots(
    listeners: Mapping[Role, socket.socket], device: str, settings: Settings
) -> list[WorkerSlot]:
    """Return a worker slot for each role on a CPU, where the kernel gives one worker precedence.

    On a GPU one worker serves both roles: streams have priorities only inside one context. One
    worker also does so if the policy runs one job at a time.
    """
    gate = Gate()
    beats = {role: Heartbeat() for role in Role}
    beats[Role.FOREGROUND].neighbour = beats[Role.BACKGROUND]
    beats[Role.BACKGROUND].neighbour = beats[Role.FOREGROUND]

    def slot(role: Role, *served: socket.socket) -> WorkerSlot:
        heartbeat, attempts = beats[role], new_page()
        patience_s = PATIENCE_S if role is Role.FOREGROUND else BACKGROUND_PATIENCE_S

        def work(inherited: Sequence[socket.socket]) -> int:
            from brisk.runtime.worker_main import run_worker

            ATTEMPTS.page = attempts
            run_worker(inherited, role, gate, heartbeat, device, settings)
            return WORKER_ENDED_IDLE

        def clear(has_died: bool) -> None:
            heartbeat.clear()
            end_attempts(attempts, has_died=has_died)
            if role is Role.FOREGROUND:
                gate.open()
                gate.resume_worker()
            else:
                gate.leave()

        start_patience_s = None if device == "cpu" else GPU_START_PATIENCE_S
        stall = StallWatch(heartbeat, patience_s, start_patience_s=start_patience_s)
        return WorkerSlot(role, served, work, clear, stall)

    if device != "cpu" or not settings.policy.separates:
        return [slot(Role.FOREGROUND, *listeners.values())]
    return [slot(role, listener) for role, listener in listeners.items()]


if __name__ == "__main__":
    sys.exit(main())
