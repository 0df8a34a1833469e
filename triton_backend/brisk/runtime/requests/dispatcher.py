"""What peers send: greeted, checked, and handed to the tables that know what to do with it.

A peer that breaks the protocol is dropped; no other one notices. Used by the worker's main
thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from brisk import __version__, telemetry
from brisk.errors import (
    BriskError,
    CancelledError,
    InternalError,
    InvalidRequestError,
    ModelNotLoadedError,
    ProtocolError,
)
from brisk.protocol import records, request_flags
from brisk.protocol.records import (
    PROTOCOL_VERSION,
)
from brisk.protocol.stub_process import birth_of
from brisk.runtime.log import say
from brisk.runtime.models.entry import Binding
from brisk.runtime.models.loader import LoadCompletion, LoadOutcome
from brisk.runtime.models.table import SessionTable
from brisk.runtime.preemption.memory_limit import shortage
from brisk.runtime.requests.connections import Arrival, Connections, Departure, Peer
from brisk.runtime.requests.table import CANCELLED, RequestTable, load_failed
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

    def take(self, event: Arrival | Departure) -> None:
        if isinstance(event, Departure):
            self._forget(event)
            return
        try:
            if event.peer.is_welcome:
                self._handle(event.peer, event)
            else:
                self._greet(event.peer, event)
        except ProtocolError as error:
            self._transport.drop(event.peer, str(error))

    def _handle(self, peer: Peer, event: Arrival) -> None:
        """What comes most often is looked for first."""
        match event.record:
            case records.Infer() as record:
                self._infer(peer, record)
            case records.Release(request):
                self._requests.release(peer, request)
            case records.Cancel(request):
                if self._requests.cancel(peer, request):
                    return
                if self._sessions.withdraw(peer, request):
                    self._requests.refuse(peer, request, CancelledError(CANCELLED))
            case records.AttachSlab(slab, size):
                assert event.descriptor is not None
                peer.view.attach(slab, size, event.descriptor)
            case records.DetachSlab(slab):
                peer.inputs.clear()
                peer.view.detach(slab)
            case records.LoadModel() as model:
                self._load(peer, model)
            case records.AskStatistics() as question:
                self._observation.tell_statistics(peer, question)
            case records.ForgetStatistics():
                self._observation.forget_statistics(peer)
            case records.AskStatus() as question:
                self._observation.tell_status(peer, question)
            case records.BeginTrace():
                SPANS.begin()
            case records.AskTrace():
                for told in told_trace():
                    self._transport.send(peer, told)
            case unexpected:
                raise ProtocolError(f"a frontend may not send {type(unexpected).__name__}")

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
                self._transport.send(
                    peer, records.ModelLoaded(model.model, outcome.session.load_ns)
                )
                self._transport.send(peer, records.Log("info", outcome.session.summary))
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
        if not isinstance(hello, records.Hello):
            raise ProtocolError(f"expected Hello, got {type(hello).__name__}")
        if (hello.protocol, hello.version) != (PROTOCOL_VERSION, __version__):
            message = (
                f"this runtime is Brisk {__version__} (protocol {PROTOCOL_VERSION}), the backend "
                f"is {hello.version} (protocol {hello.protocol}); end the runtime (process "
                f"{os.getppid()}) or give the backend a BRISK_RUNTIME_DIR of its own"
            )
            self._transport.send(peer, records.Refused(ProtocolError.code, message))
            raise ProtocolError(message)
        if hello.pid == peer.pid:  # else it lives in another process namespace than ours
            peer.parent = hello.parent
            peer.server_birth = birth_of(hello.parent)
        peer.is_welcome = True
        self._transport.send(peer, records.Welcome(PROTOCOL_VERSION, __version__, os.getpid()))

    def _load(self, peer: Peer, model: records.LoadModel) -> None:
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
            self._transport.send(peer, records.ModelLoaded(model.model, 0))

    def _infer(self, peer: Peer, record: records.Infer) -> None:
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
