"""The worker's reports about itself: statistics for Triton's endpoint, and its state on request.

Used by the worker's main thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from brisk.errors import ProtocolError
from brisk.protocol import records
from brisk.protocol.records import Span
from brisk.protocol.runtime_paths import Role
from brisk.protocol.status import Incident, ModelStatus, RunStatus, Status
from brisk.runtime.log import LOGGER
from brisk.runtime.models.entry import SessionEntry
from brisk.runtime.models.table import SessionTable
from brisk.runtime.peers.connections import Connections, Peer
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.requests.table import RequestTable
from brisk.runtime.worker.relay import Step
from brisk.telemetry import STATISTICS, metrics
from brisk.telemetry.events import INCIDENTS, MAX_SPANS, SPANS

SAMPLES_PER_RECORD = 200
"""The samples in a record: each has at most some 300 bytes, well below what a record holds."""

SPANS_PER_RECORD = 150
MAX_TEXT_CHARACTERS = 200

MODELS_PER_RECORD = 200
MAX_EXITS = 8
MAX_INCIDENTS = 50

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_Told = TypeVar("_Told")


@dataclass(slots=True, eq=False)
class Observation:
    """Answers questions about the worker. ``runs`` and ``aside`` belong to the worker and are only
    read here.

    ``readers``: for each server, by its process number, the stub that the news is sent to.
    """

    role: Role
    device: str
    threads: int
    transport: Connections
    sessions: SessionTable
    requests: RequestTable
    runs: RunsInProgress
    aside: Sequence[Step]
    started_ns: int = field(default_factory=time.monotonic_ns)
    readers: dict[int, Peer] = field(default_factory=dict)
    _tracer: Peer | None = None
    """The peer that a trace is recorded for."""
    _measured: set[tuple[str, str, str]] = field(default_factory=set)

    def tell_statistics(self, peer: Peer, question: records.AskStatistics) -> None:
        """Send the statistics to ``peer``; news goes to only one stub of each server."""
        is_chosen = not question.takes_news or self._reader(peer) is peer
        samples: Sequence[records.Sample] = []
        if is_chosen:
            self._measure()
            samples = (
                STATISTICS.take_news(peer.parent) if question.takes_news else STATISTICS.samples()
            )

        def told(part: tuple[records.Sample, ...], is_last: bool) -> records.StatisticsTold:
            return records.StatisticsTold(self.role.value, is_chosen, part, is_last)

        for part, is_last in _parts(samples, SAMPLES_PER_RECORD):
            self._tell(peer, part, is_last, told)

    def begin_trace(self, peer: Peer) -> None:
        """Record spans until a peer asks for them, or ``peer`` has gone."""
        self._tracer = peer
        SPANS.begin()

    def tell_trace(self, peer: Peer) -> None:
        self._tracer = None
        spans, left_out = SPANS.end()
        if left_out:
            LOGGER.warning(f"a trace holds {MAX_SPANS} spans: {left_out} later ones are left out")
        for part, is_last in _parts(spans, SPANS_PER_RECORD):
            self._tell(peer, tuple(map(_cut, part)), is_last, records.TraceTold)

    def _tell(
        self,
        peer: Peer,
        part: tuple[_Told, ...],
        is_last: bool,
        told: Callable[[tuple[_Told, ...], bool], records.Record],
    ) -> None:
        """Send a part of an answer in a record, or in several if it is too long for one: texts
        that are not ASCII take six bytes a character."""
        try:
            self.transport.send(peer, told(part, is_last))
        except ProtocolError:
            if len(part) < 2:
                raise
            middle = len(part) // 2
            self._tell(peer, part[:middle], False, told)
            self._tell(peer, part[middle:], is_last, told)

    def _reader(self, peer: Peer) -> Peer:
        reader = self.readers.get(peer.parent)
        if reader is None or not reader.is_open:
            STATISTICS.forget_gauges(peer.parent)  # they went with the stub that showed them
            reader = self.readers[peer.parent] = peer
        return reader

    def forget_statistics(self, peer: Peer) -> None:
        """Forget what was reported to ``peer``'s server, if ``peer`` is the stub that got it."""
        if self.readers.get(peer.parent) is peer:
            STATISTICS.forget_reader(peer.parent)

    def forget(self, peer: Peer) -> None:
        """Stop recording for a peer that has gone without asking for its trace."""
        if self._tracer is peer:
            self._tracer = None
            SPANS.end()

    def forget_server(self, parent: int) -> None:
        """Forget a server whose last stub has gone."""
        STATISTICS.forget_reader(parent)
        self.readers.pop(parent, None)

    def tell_status(self, peer: Peer, question: records.AskStatus) -> None:
        now_ns = time.monotonic_ns()
        entries = list(self.sessions.entries())
        users = {each.peer.number for entry in entries for each in entry.bindings}
        leading, waiting = self.runs.leading, self.requests.waiting()
        incidents = INCIDENTS.newest(min(question.incidents, MAX_INCIDENTS))
        status = Status(
            pid=os.getpid(),
            role=self.role.value,
            device=self.device,
            uptime_ns=now_ns - self.started_ns,
            threads=self.threads,
            frontends=len(users),
            model_count=len(self.sessions),
            models=tuple(self._model(each, waiting) for each in entries[:MODELS_PER_RECORD]),
            runs=tuple(
                RunStatus(
                    model=run.jobs[0].binding.model.name,
                    job_class=run.job_class.value,
                    requests=run.requests,
                    is_parked=run in leading[:-1],
                    running_ns=now_ns - run.started_ns,
                    layers_done=run.frame.position,
                )
                for run in (*(step.run for step in self.aside), *self.runs.companions, *leading)
            ),
            incidents=tuple(Incident(now_ns - at_ns, what) for at_ns, what in incidents),
        )
        while True:
            try:
                self.transport.send(peer, status)
                return
            except ProtocolError:  # it is too long: some models are left out
                if not status.models:
                    raise
                fewer = status.models[: len(status.models) * 3 // 4]
                status = status._replace(models=fewer)

    def _model(self, entry: SessionEntry, waiting: Mapping[str, int]) -> ModelStatus:
        model, session, bindings = entry.bindings[0].model, entry.session, entry.bindings
        table = session.table if session else None
        exits = session.caches if session else None
        caches = exits.served if exits else None
        return ModelStatus(
            model.name[:MAX_TEXT_CHARACTERS],
            model.version,
            session is not None,
            len(bindings),
            waiting[entry.key],
            sum(binding.answered for binding in bindings),
            model.path[-MAX_TEXT_CHARACTERS:],
            caches.exits()[:MAX_EXITS] if caches else (),
            caches.cascade.revision if caches else 0,
            caches.rows if caches else 0,
            len(table) if table else 0,
            table.loaded if table else 0,
            table.lanes_at_work if table else 0,
            entry.is_settled,
            model.job_class,
            session.weight_bytes if session else 0,
            sum(binding.failed for binding in bindings),
            session.shared_segments if session else 0,
            tuple(map(sum, zip(*(binding.durations for binding in bindings), strict=True))),
            exits.progress[:MAX_TEXT_CHARACTERS] if exits else "",
            session.arrival.words()[:MAX_TEXT_CHARACTERS] if session and session.arrival else "",
        )

    def _measure(self) -> None:
        """Measure the gauges; called only when a peer asks for statistics."""
        worker, peers = self.role.value, self.transport.peers.values()
        held = {
            "answers": sum(peer.arena.statistics()["used_bytes"] for peer in peers),
            "inputs": sum(peer.view.held_bytes for peer in peers),
        }
        with contextlib.suppress(OSError):  # no descriptor is left to read it with
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            held["resident"] = pages * _PAGE_BYTES
        for what, size in held.items():
            STATISTICS.hold(metrics.HELD_BYTES, (worker, what), size)
        now = {
            (worker, entry.bindings[0].model.name, str(entry.bindings[0].model.version)): session
            for entry in self.sessions.entries()
            if (session := entry.session) is not None
        }
        for labels in {*now, *self._measured}:  # a model that is gone holds nothing
            held_by = now.get(labels)
            size, shared = (held_by.weight_bytes, held_by.shared_segments) if held_by else (0, 0)
            STATISTICS.hold(metrics.MODEL_WEIGHT_BYTES, labels, size)
            STATISTICS.hold(metrics.SHARED_SEGMENTS, labels, shared)
        self._measured = set(now)
        STATISTICS.hold(metrics.LOADED_MODELS, (worker,), len(self.sessions))
        STATISTICS.hold(metrics.WAITING_REQUESTS, (worker,), self.requests.waiting().total())


def _parts(told: Sequence[_Told], size: int) -> Iterator[tuple[tuple[_Told, ...], bool]]:
    """Yield parts of at most ``size`` items, at least one part, and whether each is the last."""
    for start in range(0, max(1, len(told)), size):
        yield tuple(told[start : start + size]), start + size >= len(told)


def _cut(span: Span) -> Span:
    """Return the span with its texts cut to what a record holds."""
    name, request, details = (
        text[:MAX_TEXT_CHARACTERS] for text in (span.name, span.request, span.details)
    )
    return span._replace(name=name, request=request, details=details)
