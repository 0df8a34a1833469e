"""What peers send: greeted, checked, and handed to the tables that know what to do with it.

A peer that breaks the protocol is dropped; no other one notices. Used by the worker's main
thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from brisk import __version__, telemetry
from brisk.errors import (
    BriskError,
    CancelledError,
    InternalError,
    InvalidRequestError,
    ModelNotLoadedError,
    ProtocolError,
)
from brisk.protocol import request_flags
from brisk.protocol.records import (
    PROTOCOL_VERSION,
    AskStatistics,
    AskStatus,
    AskTrace,
    AttachSlab,
    BeginTrace,
    Cancel,
    DetachSlab,
    ForgetStatistics,
    Hello,
    Infer,
    LoadModel,
    Log,
    ModelLoaded,
    Refused,
    Release,
    Welcome,
)
from brisk.protocol.stub_process import birth_of
from brisk.runtime.log import say
from brisk.runtime.models.loader import LoadCompletion, LoadOutcome
from brisk.runtime.models.session_entry import Binding
from brisk.runtime.models.table import SessionTable
from brisk.runtime.preemption.memory_limit import shortage
from brisk.runtime.requests.answers import load_failed
from brisk.runtime.requests.connections import Arrival, Connections, Departure, Peer
from brisk.runtime.requests.table import CANCELLED, RequestTable
from brisk.runtime.worker.introspection import Observation
from brisk.runtime.worker.tracing import told_trace
from brisk.scheduling.job import JobClass
from brisk.telemetry import metrics
from brisk.telemetry.events import INCIDENTS, SPANS

_CLASSES = frozenset(job_class.value for job_class in JobClass)


class Dispatcher:
    """Takes the transport's events in."""

    def __init__(
        self,
        transport: Connections,
        sessions: SessionTable,
        requests: RequestTable,
        observation: Observation,
    ) -> None:
        self._transport = transport
        self._observation = observation
        self._sessions = sessions
        self._requests = requests
        self._handlers: dict[type, Callable[[Peer, Arrival], None]] = {
            AttachSlab: self._attach,
            DetachSlab: self._detach,
            LoadModel: self._load,
            Infer: self._infer,
            Cancel: self._cancel,
            Release: self._release,
            AskStatistics: self._ask_statistics,
            ForgetStatistics: self._forget_statistics,
            AskStatus: self._ask_status,
            BeginTrace: self._begin_trace,
            AskTrace: self._ask_trace,
        }

    def take(self, event: Arrival | Departure) -> None:
        if isinstance(event, Departure):
            self._forget(event)
            return
        peer, record = event.peer, event.record
        try:
            if not peer.is_welcome:
                self._greet(peer, event)
            elif (handler := self._handlers.get(type(record))) is not None:
                handler(peer, event)
            else:
                raise ProtocolError(f"a frontend may not send {type(record).__name__}")
        except ProtocolError as error:
            self._transport.drop(peer, str(error))

    def settle(self, outcome: LoadOutcome | LoadCompletion) -> None:
        """Tell everybody who waits for a load how it ended; let its requests in, or refuse."""
        if isinstance(outcome, LoadCompletion):
            self._sessions.complete(outcome)
            return
        bindings = self._sessions.settle(outcome)
        _count_load(bindings, outcome)
        for binding in bindings:
            model, peer = binding.model, binding.peer
            backlog, binding.backlog = binding.backlog, []
            if outcome.session is not None:
                # the log last: the stub, for which Triton waits, takes 5 ms to write it
                self._transport.send(peer, ModelLoaded(model.model, outcome.session.load_ns))
                self._transport.send(peer, Log("info", outcome.session.summary))
                for record in backlog:
                    self._requests.admit(binding, record)
                continue
            error = outcome.error or InternalError("the load ended without a session")
            error = shortage(error, f"loading model '{model.name}'") or error
            self._transport.send(peer, load_failed(model.model, error))
            for record in backlog:
                self._requests.refuse(peer, record.request, error)

    def _greet(self, peer: Peer, event: Arrival) -> None:
        hello = event.record
        if event.descriptor is not None:
            os.close(event.descriptor)
        if not isinstance(hello, Hello):
            raise ProtocolError(f"expected Hello, got {type(hello).__name__}")
        if (hello.protocol, hello.version) != (PROTOCOL_VERSION, __version__):
            message = (
                f"this runtime is Brisk {__version__} (protocol {PROTOCOL_VERSION}), the backend "
                f"is {hello.version} (protocol {hello.protocol}); end the runtime (process "
                f"{os.getppid()}) or give the backend a BRISK_RUNTIME_DIR of its own"
            )
            self._transport.send(peer, Refused(ProtocolError.code, message))
            raise ProtocolError(message)
        if hello.pid == peer.pid:  # else it lives in another process namespace than ours
            peer.parent = hello.parent
            peer.server_birth = birth_of(hello.parent)
        peer.is_welcome = True
        self._transport.send(peer, Welcome(PROTOCOL_VERSION, __version__, os.getpid()))

    def _attach(self, peer: Peer, event: Arrival) -> None:
        record = event.record
        assert isinstance(record, AttachSlab)
        assert event.descriptor is not None
        peer.view.attach(record.slab, record.size, event.descriptor)

    def _detach(self, peer: Peer, event: Arrival) -> None:
        record = event.record
        assert isinstance(record, DetachSlab)
        peer.inputs.clear()
        peer.view.detach(record.slab)

    def _load(self, peer: Peer, event: Arrival) -> None:
        model = event.record
        assert isinstance(model, LoadModel)
        if model.job_class not in _CLASSES:
            raise ProtocolError(f"unknown job class {model.job_class!r:.40}")
        try:
            binding = self._sessions.bind(peer, model)
        except ProtocolError:
            raise
        except BriskError as error:
            self._transport.send(peer, load_failed(model.model, error))
            return
        if binding.session is not None:
            self._transport.send(peer, ModelLoaded(model.model, 0))

    def _infer(self, peer: Peer, event: Arrival) -> None:
        record = event.record
        assert isinstance(record, Infer)
        peer.view.memory(request_flags.checked(record.mark))
        binding = self._sessions.find(peer, record.form.model)
        if binding is None:
            missing = ModelNotLoadedError(f"model number {record.form.model} is not loaded")
            self._requests.refuse(peer, record.request, missing)
        elif record.form.job_class not in _CLASSES:
            unknown = InvalidRequestError(f"unknown class '{record.form.job_class:.40}'")
            self._requests.refuse(peer, record.request, unknown)
        elif binding.session is None:
            self._sessions.wait_for(binding, record)
        else:
            self._requests.admit(binding, record)

    def _cancel(self, peer: Peer, event: Arrival) -> None:
        assert isinstance(event.record, Cancel)
        request = event.record.request
        if self._requests.cancel(peer, request):
            return
        if self._sessions.withdraw(peer, request):
            self._requests.refuse(peer, request, CancelledError(CANCELLED))

    def _release(self, peer: Peer, event: Arrival) -> None:
        assert isinstance(event.record, Release)
        self._requests.release(peer, event.record.request)

    def _forget(self, departure: Departure) -> None:
        """Give back all that a peer held; its jobs end unanswered."""
        peer = departure.peer
        if departure.reason is not None:
            say(f"connection of process {peer.pid} closed: {departure.reason}")
            INCIDENTS.note(f"connection of process {peer.pid} closed: {departure.reason}")
        self._requests.forget(peer)
        self._sessions.release_all(peer)
        peer.inputs.clear()
        peer.view.clear()
        peer.arena.close()
        if all(other.parent != peer.parent for other in self._transport.peers()):
            self._observation.forget_server(peer.parent)

    def _ask_statistics(self, peer: Peer, event: Arrival) -> None:
        assert isinstance(event.record, AskStatistics)
        self._observation.tell_statistics(peer, event.record)

    def _forget_statistics(self, peer: Peer, event: Arrival) -> None:
        self._observation.forget_statistics(peer)

    def _ask_status(self, peer: Peer, event: Arrival) -> None:
        assert isinstance(event.record, AskStatus)
        self._observation.tell_status(peer, event.record)

    def _begin_trace(self, peer: Peer, event: Arrival) -> None:
        SPANS.begin()

    def _ask_trace(self, peer: Peer, event: Arrival) -> None:
        for told in told_trace():
            self._transport.send(peer, told)


def _count_load(bindings: Sequence[Binding], outcome: LoadOutcome) -> None:
    """Once, however many instances wait for it, under the name that asked first."""
    if not bindings:
        return
    model = bindings[0].model
    labels = (model.name, str(model.version))
    if outcome.session is not None:
        telemetry.count(metrics.LOADS, (*labels, "loaded"))
        telemetry.observe_ns(metrics.LOAD_SECONDS, labels, outcome.session.load_ns)
    elif outcome.error is not None:
        telemetry.count(metrics.LOADS, (*labels, outcome.error.code))
        INCIDENTS.note(f"model '{model.name}' version {model.version}: {outcome.error}")
