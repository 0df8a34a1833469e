"""The composition root of a worker process, which creates its parts and connects them."""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Sequence

from brisk.errors import BriskError, InvalidConfigurationError, UnavailableError
from brisk.graph.files.mapping import hold_files
from brisk.os_priority import SHORT_SLICE_NS, ask_slices, lower_best_effort
from brisk.protocol.records import Refused
from brisk.protocol.runtime_paths import Role
from brisk.runtime.heartbeat import Heartbeat
from brisk.runtime.memory import limit_memory
from brisk.runtime.peers.connections import Arrival, Connections
from brisk.runtime.preemption.controllers import Background, Foreground, PreemptionController
from brisk.runtime.preemption.gate import Gate
from brisk.runtime.sessions.device import open_queues
from brisk.runtime.settings import Settings
from brisk.runtime.worker.worker import Worker
from brisk.scheduling.times import ProfileTable

SWITCH_INTERVAL_S = 0.0001
"""The time the loader thread may keep the interpreter's lock while a request's segment waits."""


def run_worker(
    listeners: Sequence[socket.socket],
    role: Role,
    gate: Gate,
    heartbeat: Heartbeat,
    device: str,
    settings: Settings,
) -> None:
    """Serve the connections of ``listeners`` until the worker is no longer needed.

    If the device, or what computes on it, is missing, every connection gets that error instead.
    """
    gc.freeze()  # what came with the fork lives as long as the worker; no collection visits it
    hold_files()
    profiles = ProfileTable()
    controller: PreemptionController
    policy, limits = settings.policy, settings.limits
    if role is Role.BACKGROUND:
        limit_memory(settings.background_bytes)
        if policy.lowers_best_effort:
            lower_best_effort(limits.share)
        gate.enter()
        controller = Background(gate, policy, limits)
    else:
        ask_slices(SHORT_SLICE_NS)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        controller = Foreground(gate, policy, limits, profiles)
    transport = Connections(listeners)
    try:
        queues = open_queues(
            device, settings.outstanding_launches, is_limited=settings.gpu_bytes > 0
        )
    except (InvalidConfigurationError, UnavailableError) as error:
        _refuse_all(transport, error, settings.idle_exit_s)
        return
    worker = Worker(transport, heartbeat, device, queues, controller, profiles, settings, role)
    worker.serve()


def _refuse_all(transport: Connections, error: BriskError, idle_exit_s: float) -> None:
    """Answer every peer's first record with ``error`` until none has come for the idle time."""
    last_s = time.monotonic()
    while time.monotonic() - last_s < idle_exit_s:
        for event in transport.poll(idle_exit_s):
            if isinstance(event, Arrival):
                last_s = time.monotonic()
                if event.descriptor is not None:
                    os.close(event.descriptor)
                transport.send(event.peer, Refused(error.code, str(error)))
                transport.drop(event.peer, None)
