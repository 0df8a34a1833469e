"""What the worker tells of itself: statistics for Triton's endpoint, its state for who asks.

Used by the worker's main thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from brisk.protocol import records
from brisk.protocol.records import (
    Sample,
)
from brisk.protocol.runtime_paths import Role
from brisk.runtime.models.table import SessionTable
from brisk.runtime.requests.connections import Connections, Peer
from brisk.runtime.requests.table import RequestTable
from brisk.runtime.worker.batch import Run
from brisk.telemetry import STATISTICS, metrics
from brisk.telemetry.events import INCIDENTS

SAMPLES_PER_RECORD = 200
"""Of some 300 bytes each at most: well below what a record holds."""

MODELS_PER_RECORD = 200
MAX_EXITS = 8
MAX_PATH_CHARACTERS = 200
MAX_INCIDENTS = 50

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Observation:
    """Answers AskStatistics and AskStatus. ``runs``: the worker's own list, only read here."""

    def __init__(
        self,
        role: Role,
        device: str,
        threads: int,
        transport: Connections,
        sessions: SessionTable,
        requests: RequestTable,
        runs: Sequence[Run],
    ) -> None:
        self._role = role
        self._device = device
        self._threads = threads
        self._transport = transport
        self._sessions = sessions
        self._requests = requests
        self._runs = runs
        self._started_ns = time.monotonic_ns()
        self._readers: dict[int, Peer] = {}  # by the process number of their server

    def tell_statistics(self, peer: Peer, question: records.AskStatistics) -> None:
        """Send what was counted; news to one frontend of each server only."""
        is_chosen = not question.takes_news or self._reader(peer) is peer
        samples: list[Sample] = []
        if is_chosen:
            self._measure()
            samples = (
                STATISTICS.take_news(peer.parent) if question.takes_news else STATISTICS.samples()
            )
        parts = list(_parts(samples)) or [[]]
        for number, part in enumerate(parts, start=1):
            is_last = number == len(parts)
            told = records.StatisticsTold(self._role.value, is_chosen, tuple(part), is_last)
            self._transport.send(peer, told)

    def _reader(self, peer: Peer) -> Peer:
        """Who is told the news among the frontends of ``peer``'s server."""
        reader = self._readers.get(peer.parent)
        if reader is None or not reader.is_open:
            reader = self._readers[peer.parent] = peer
        return reader

    def forget_statistics(self, peer: Peer) -> None:
        """Nothing counts as told to ``peer``'s server, if ``peer`` was the one that was told."""
        if self._readers.get(peer.parent) is peer:
            STATISTICS.forget_reader(peer.parent)

    def forget_server(self, parent: int) -> None:
        """The last frontend of a server has gone."""
        STATISTICS.forget_reader(parent)
        self._readers.pop(parent, None)

    def tell_status(self, peer: Peer, question: records.AskStatus) -> None:
        now_ns = time.monotonic_ns()
        users = {each.peer.number for entry in self._sessions.entries() for each in entry.bindings}
        incidents = INCIDENTS.newest(min(question.incidents, MAX_INCIDENTS))
        status = records.Status(
            pid=os.getpid(),
            role=self._role.value,
            device=self._device,
            uptime_ns=now_ns - self._started_ns,
            threads=self._threads,
            frontends=len(users),
            model_count=len(self._sessions),
            models=tuple(islice(self._models(), MODELS_PER_RECORD)),
            runs=tuple(
                _run(run, now_ns, is_parked=place < len(self._runs) - 1)
                for place, run in enumerate(self._runs)
            ),
            incidents=tuple(records.Incident(now_ns - at_ns, what) for at_ns, what in incidents),
        )
        self._transport.send(peer, status)

    def _models(self) -> Iterator[records.ModelStatus]:
        for entry in self._sessions.entries():
            model, session, bindings = entry.bindings[0].model, entry.session, entry.bindings
            table = None if session is None else session.table
            exits = None if session is None else session.caches
            caches = None if exits is None else exits.served
            yield records.ModelStatus(
                model.name[:MAX_PATH_CHARACTERS],
                model.version,
                session is not None,
                len(bindings),
                self._requests.queue.waiting(entry.key),
                sum(binding.answered for binding in bindings),
                model.path[-MAX_PATH_CHARACTERS:],
                () if caches is None else caches.exits()[:MAX_EXITS],
                0 if caches is None else caches.cascade.revision,
                0 if caches is None else caches.rows,
                0 if table is None else len(table),
                0 if table is None else table.loaded,
                0 if table is None else table.lanes_at_work,
                entry.is_settled,
                model.job_class,
                0 if session is None else session.weight_bytes,
                sum(binding.failed for binding in bindings),
            )

    def _measure(self) -> None:
        """Gauges are measured when somebody asks."""
        worker, peers = self._role.value, self._transport.peers()
        held = {
            "resident": _resident_bytes(),
            "answers": sum(peer.arena.statistics()["used_bytes"] for peer in peers),
            "inputs": sum(peer.view.held_bytes for peer in peers),
        }
        for what, size in held.items():
            STATISTICS.hold(metrics.HELD_BYTES, (worker, what), size)
        STATISTICS.hold(metrics.LOADED_MODELS, (worker,), len(self._sessions))
        STATISTICS.hold(metrics.WAITING_REQUESTS, (worker,), len(self._requests.queue))


def _run(run: Run, now_ns: int, *, is_parked: bool) -> records.RunStatus:
    request = run.jobs[0].payload
    return records.RunStatus(
        model=request.binding.model.name,
        job_class=request.record.form.job_class,
        requests=len(run.jobs),
        is_parked=is_parked,
        running_ns=now_ns - run.started_ns,
        layers_done=run.frame.position,
    )


def _parts(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    waiting = iter(samples)
    while part := list(islice(waiting, SAMPLES_PER_RECORD)):
        yield part


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
