"""Greets peers, checks the records they send, and hands each record to the table that handles it.

A peer that breaks the protocol is dropped; no other peer notices. Used by the worker's main
thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

from brisk import __version__, telemetry
from brisk.errors import (
    BriskError,
    CancelledError,
    InternalError,
    InvalidConfigurationError,
    InvalidRequestError,
    ModelNotLoadedError,
    ProtocolError,
    UnavailableError,
)
from brisk.protocol import records
from brisk.protocol.records import PROTOCOL_VERSION
from brisk.protocol.shared_memory import checked_mark
from brisk.protocol.stub_process import birth_of
from brisk.runtime.heartbeat import Heartbeat
from brisk.runtime.log import LOGGER
from brisk.runtime.memory import shortage
from brisk.runtime.models.entry import Binding, LoadArrival, LoadCompletion, Outcome
from brisk.runtime.models.table import SessionTable
from brisk.runtime.peers.connections import Arrival, Connections, Departure, Peer
from brisk.runtime.requests.offering import Offering
from brisk.runtime.requests.table import CANCELLED, RequestTable, load_failed
from brisk.runtime.sessions.session import Servable
from brisk.runtime.worker.introspection import Observation
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import DEFAULT_BOUND
from brisk.settings import runtime_settings
from brisk.telemetry import metrics
from brisk.telemetry.events import INCIDENTS

_CLASSES = frozenset(job_class.value for job_class in JobClass)


@dataclass(slots=True, eq=False)
class Dispatcher:
    """Handles the records and departures of peers."""

    transport: Connections
    sessions: SessionTable
    requests: RequestTable
    observation: Observation
    offering: Offering
    heartbeat: Heartbeat

    def take(self, event: Arrival | Departure) -> None:
        peer = event.peer
        if isinstance(event, Departure):
            self._forget(peer, event.reason)
            return
        try:
            if peer.is_welcome:
                self._handle(peer, event.record, event.descriptor)
            else:
                if event.descriptor is not None:
                    os.close(event.descriptor)
                self._greet(peer, event.record)
        except ProtocolError as error:
            self.transport.drop(peer, str(error))

    def _handle(self, peer: Peer, record: records.Record, descriptor: int | None) -> None:
        """Handle a record of a greeted peer; the most frequent kinds are matched first."""
        match record:
            case records.Infer():
                self._infer(peer, record)
            case records.Release(request):
                self.requests.release(peer, request)
            case records.Cancel(request):
                if self.requests.cancel(peer, request):
                    return
                if self.sessions.withdraw(peer, request):
                    self.requests.refuse(peer, request, CancelledError(CANCELLED))
            case records.AttachSlab(slab, size):
                assert descriptor is not None
                peer.view.attach(slab, size, descriptor)
            case records.DetachSlab(slab):
                peer.inputs.clear()
                peer.view.detach(slab)
            case records.LoadModel():
                self._load(peer, record)
            case records.AskStatistics():
                self.observation.tell_statistics(peer, record)
            case records.ComputedInStub():
                self.offering.computed(peer, record)
            case records.ForgetStatistics():
                peer.is_leaving = True
                self.observation.forget_statistics(peer)
            case records.AskStatus():
                self.observation.tell_status(peer, record)
            case records.BeginTrace():
                self.observation.begin_trace(peer)
            case records.AskTrace():
                self.observation.tell_trace(peer)
            case unexpected:
                if descriptor is not None:
                    os.close(descriptor)
                raise ProtocolError(f"a stub may not send {type(unexpected).__name__}")

    def settle(self, outcome: Outcome) -> None:
        """Report a load's outcome to its requesters; admit or refuse the waiting requests."""
        if isinstance(outcome, LoadCompletion):
            self.sessions.complete(outcome)
            return
        if isinstance(outcome, LoadArrival):
            for binding in list(outcome.entry.bindings):
                self._let_in(binding)
            return
        session, bindings = outcome.session, self.sessions.settle(outcome)
        if bindings:  # counted once for all waiting instances, under the first requester's name
            first = bindings[0].model
            labels = (first.name, str(first.version))
            if session is not None:
                telemetry.count(metrics.LOADS, (*labels, first.cause, "loaded"))
                telemetry.observe(metrics.LOAD_SECONDS, labels, session.load_ns)
            elif outcome.error is not None:
                telemetry.count(metrics.LOADS, (*labels, first.cause, outcome.error.code))
                INCIDENTS.note(f"model '{first.name}' version {first.version}: {outcome.error}")
        for binding in bindings:
            model, peer = binding.model, binding.peer
            if session is not None:
                # the log comes last: the stub, for which Triton waits, takes 5 ms to write it
                self.transport.send(peer, records.ModelLoaded(model.model, session.load_ns))
                self.transport.send(peer, records.Log("info", session.summary))
                self._let_in(binding)
                continue
            backlog, binding.backlog = binding.backlog, []
            error = outcome.error or InternalError("the load ended without a session")
            error = shortage(error, f"loading model '{model.name}'") or error
            self.transport.send(peer, load_failed(model.model, error))
            for record in backlog:
                self.requests.turn_away(binding, record, error)

    def look(self, now_ns: int) -> None:
        """Refuse requests that have waited too long for their models. Called once a second."""
        self.sessions.forget_idle_sequences(now_ns)
        for binding, record in self.sessions.take_late(now_ns):
            late = UnavailableError("the request's time-out ran out before its model was loaded")
            self.requests.turn_away(binding, record, late)

    def _let_in(self, binding: Binding) -> None:
        """Admit the requests that came before the session could run them, if it now can."""
        if binding.session is not None:
            waiting, binding.backlog = binding.backlog, []
            for record in waiting:
                if not self._has_begun(binding, binding.session, record):
                    binding.backlog.append(record)

    def _has_begun(self, binding: Binding, session: Servable, record: records.Infer) -> bool:
        """Return whether a request has been admitted or refused: False if it waits for bytes."""
        arrival, is_behind = session.arrival, _is_behind(binding, record)
        if arrival is None or not arrival.holds_requests:
            if not is_behind:
                self.requests.admit(binding, record)
            return not is_behind
        may_begin = arrival.is_ripe
        with contextlib.suppress(Exception):  # the request's run reports it
            may_begin = arrival.may_begin(binding.peer.inputs.read(record))
        if may_begin and not is_behind:
            self.requests.admit(binding, record)
        elif (problem := arrival.problem) is not None:
            self.requests.turn_away(binding, record, problem)
        else:
            return False
        return True

    def _greet(self, peer: Peer, hello: records.Record) -> None:
        if not isinstance(hello, records.Hello):
            raise ProtocolError(f"expected Hello, got {type(hello).__name__}")
        if (hello.protocol, hello.version) != (PROTOCOL_VERSION, __version__):
            message = (
                f"this runtime is Brisk {__version__} (protocol {PROTOCOL_VERSION}), the backend "
                f"is {hello.version} (protocol {hello.protocol}); end the runtime (process "
                f"{os.getppid()}) or give the backend a BRISK_RUNTIME_DIR of its own"
            )
            self.transport.send(peer, records.Refused(ProtocolError.code, message))
            raise ProtocolError(message)
        if hello.settings not in (None, own := runtime_settings()):
            self._greet_another(peer, hello.settings or (), own)
            return
        if hello.pid == peer.pid:  # else the peer lives in another process namespace
            with contextlib.suppress(OSError):  # else the server is unknown
                peer.server_birth = birth_of(hello.parent)
                peer.parent = hello.parent
        peer.is_of_server = hello.parent > 0
        peer.is_welcome = True
        self._count_users()
        self.transport.send(peer, records.Welcome(PROTOCOL_VERSION, __version__, os.getpid()))

    def _greet_another(self, peer: Peer, there: tuple[str, ...], own: tuple[str, ...]) -> None:
        """Greet a stub of a server whose settings are not this runtime's. Refuse it while other
        servers use the runtime; else end the runtime, and the server gets one of its own.
        """

        def in_words(settings: tuple[str, ...]) -> str:
            return " ".join(settings) or "none"

        if not self.heartbeat.has_users:
            LOGGER.info("the runtime ends: a server with other settings needs it")
            self.transport.drop(peer, None)
            os.kill(os.getppid(), signal.SIGTERM)
            return
        text = (
            f"the runtime (process {os.getppid()}) was started with the settings {in_words(own)}, "
            f"and this server has {in_words(there)}: give it a BRISK_RUNTIME_DIR of its own, or "
            "the same settings"
        )
        self.transport.send(peer, records.Refused(InvalidConfigurationError.code, text))
        raise ProtocolError(text)

    def _count_users(self) -> None:
        peers = self.transport.peers.values()
        self.heartbeat.count_users(sum(peer.is_of_server for peer in peers))

    def _load(self, peer: Peer, model: records.LoadModel) -> None:
        if model.job_class not in _CLASSES:
            raise ProtocolError(f"unknown job class {model.job_class!r:.40}")
        try:
            binding = self.sessions.bind(peer, model)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  # the worker must outlive any load
            failed = shortage(error, f"loading model '{model.name}'") or error
            if not isinstance(failed, BriskError):
                text = f"loading {model.path} failed: {type(error).__name__}: {error}"
                failed = InternalError(text)
            INCIDENTS.note(f"model '{model.name}' version {model.version}: {failed}")
            self.transport.send(peer, load_failed(model.model, failed))
            return
        if binding.session is not None:
            self.transport.send(peer, records.ModelLoaded(model.model, 0))

    def _infer(self, peer: Peer, record: records.Infer) -> None:
        peer.view.memory(checked_mark(record.mark))
        if record.requests < 1:
            raise ProtocolError(f"a record of {record.requests} requests")
        binding = self.sessions.bindings.get((peer.number, record.form.model))
        if binding is None:
            missing = ModelNotLoadedError(f"model number {record.form.model} is not loaded")
            self.requests.refuse(peer, record.request, missing)
        elif record.form.job_class not in _CLASSES:
            unknown = InvalidRequestError(f"unknown class '{record.form.job_class:.40}'")
            self.requests.turn_away(binding, record, unknown)
        elif (
            binding.session is None or binding.session.awaits_bytes or _is_behind(binding, record)
        ):
            self._wait(binding, record)
        else:
            self.requests.admit(binding, record)

    def _wait(self, binding: Binding, record: records.Infer) -> None:
        if len(binding.backlog) >= DEFAULT_BOUND:
            full = UnavailableError(f"{DEFAULT_BOUND} requests wait for the model to load")
            self.requests.turn_away(binding, record, full)
            return
        if binding.session is None or not self._has_begun(binding, binding.session, record):
            self.sessions.wait_for(binding, record)

    def _forget(self, peer: Peer, reason: str | None) -> None:
        """Release everything that a peer held; its jobs end without an answer."""
        self.requests.forget(peer)
        self.offering.gone(peer)
        self.sessions.release_all(peer)
        peer.inputs.clear()
        peer.view.clear()
        peer.arena.close()
        self._count_users()
        self.observation.forget(peer)
        if all(other.parent != peer.parent for other in self.transport.peers.values()):
            self.observation.forget_server(peer.parent)
        if reason is not None:
            LOGGER.warning(f"connection of process {peer.pid} closed: {reason}")


def _is_behind(binding: Binding, record: records.Infer) -> bool:
    """Whether a step of a sequence has to wait because others wait for bytes, also once these have
    come: a ``LoadArrival``, which lets all in, is on its way then."""
    return record.step is not None and bool(binding.backlog)
