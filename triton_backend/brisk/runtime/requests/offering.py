"""Chooses models that stubs compute themselves: small ones that are warm, safe and hot; reports
stubs that have died.

For a network of 0.1 ms the way from the stub to the worker and back takes several times as long as
the network, and for one of 3 ms a sixth of it. A stub that has mapped the prepared form runs it at
the cost of a call. A model that crashes its stub does so once: from then on the worker computes
it.

Used by the worker's main thread.
"""

from __future__ import annotations

import contextlib
import math
import os
from operator import add
from pathlib import Path
from typing import NamedTuple

from brisk.errors import InvalidModelError
from brisk.ownership import make_private
from brisk.protocol.records import ComputedInStub, ComputeInStub, ComputeNoMore, LoadModel
from brisk.protocol.runtime_paths import Role
from brisk.protocol.stub_process import birth_of
from brisk.runtime.log import LOGGER
from brisk.runtime.models.entry import Binding, SessionEntry
from brisk.runtime.models.table import SessionTable
from brisk.runtime.peers.connections import Connections, Peer
from brisk.runtime.sessions.identity import note_of
from brisk.runtime.sessions.session import Servable
from brisk.scheduling.job_class import JobClass
from brisk.telemetry.events import INCIDENTS, SPANS

LEAST_ANSWERS = 50
"""The answers that a binding gets from one worker before its stub may compute: the worker
survived."""

LEAST_RATE, RATE_A_MIB = 0.5, 0.2
"""The rate, in answers a second, from which on a model is worth a session in its stub, and its
increase for each MiB of weights, which such a session may pack for itself."""

COLD = 0.1
"""The fraction of that rate below which a session is given back."""

RENEWED = 0.5
"""The fraction of the time of a row that a stub was told, below which it is told anew: the first
runs may have been measured while others had the processors, and a stub that expects too long a run
leaves it to the worker for ever."""

RATE_OVER_S = 15.0
"""The time constant of the moving average of a model's rate of answers."""

SMALL_NS, LONGER_NS = 2_000_000, 20_000_000
"""The longest run of one request of a small model, and of a longer one that stubs compute, too:
what takes longer gains little there, where real-time requests wait for its operator."""

LONGER_BYTES = 32 << 20
"""The most weights of a longer one: a stub may have a packed copy of them for each of two numbers
of threads."""


class _Missing(NamedTuple):
    """A stub that has gone and had a loaded model."""

    peer: Peer
    model: LoadModel
    computed: bool
    """Whether it was offered the model to compute it itself."""


class Offering:
    """Offers models to their stubs. ``look`` is called about once a second, other methods on
    events."""

    def __init__(
        self,
        connections: Connections,
        sessions: SessionTable,
        gate: int | None,
        threads: int,
        role: Role,
    ) -> None:
        """Begin without offers. ``gate``: the descriptor of the gate's page; None: nothing is ever
        offered. ``threads``: those that compute a segment in the worker, whose ``role`` is
        given."""
        self._connections = connections
        self._sessions = sessions
        self._gate = gate
        self._threads = threads
        self._role = role
        self._missing: list[_Missing] = []
        """Stubs of loaded models that have gone since the last look."""
        self._looked_ns: int | None = None

    def look(self, now_ns: int) -> None:
        """Offer models that have become small, warm and hot. Take back those that change or have
        become cold.
        """
        self._judge_missing()
        if self._gate is None:
            return
        passed_s = 0.0 if self._looked_ns is None else (now_ns - self._looked_ns) / 1e9
        self._looked_ns = now_ns
        for entry in self._sessions.entries():
            for binding in entry.bindings:
                came, binding.seen = binding.answered - binding.seen, binding.answered
                binding.rate = averaged(binding.rate, came, passed_s)
                is_fit = not SPANS.is_on and self._is_fit(entry, binding)
                least = least_rate(binding)
                offered_ns = binding.offered_ns
                if offered_ns is None:
                    if is_fit and binding.rate >= least:
                        self._offer(entry, binding)
                elif not is_fit or binding.rate < COLD * least:
                    self._take_back(binding)
                elif _row_ns(binding) < RENEWED * offered_ns:
                    self._offer(entry, binding)

    def _is_fit(self, entry: SessionEntry, binding: Binding) -> bool:
        """Return whether the stub may compute the model, whatever its rate of requests."""
        session = binding.session
        return (
            entry.is_settled
            and binding.model.job_class == JobClass.NORMAL.value
            and binding.model.takes_offers
            and not binding.model.states
            and session is not None
            and session.prepared is not None
            and session.caches is not None
            and not session.caches.were_brought
            and not session.caches.collects
            and entry.requester.strikes == 0
            and binding.answered >= LEAST_ANSWERS
            and not binding.model.tuning.operator_libraries
            and _row_ns(binding) < _longest_ns(session)
            and not binding.is_refused
        )

    def _offer(self, entry: SessionEntry, binding: Binding) -> None:
        session = binding.session
        prepared = None if session is None else session.prepared
        with contextlib.suppress(OSError, InvalidModelError):
            if prepared is None or note_of(entry.path, "stub-deaths").exists():
                binding.is_refused = True
                return
            model = binding.model.model
            row_ns = max(1, int(_row_ns(binding)))
            assert self._gate is not None
            own_threads = binding.model.tuning.intra_op_threads
            threads = min(own_threads, self._threads) or self._threads
            offer = ComputeInStub(model, str(prepared), row_ns, threads)
            self._connections.send(binding.peer, offer, os.dup(self._gate))
            binding.offered_ns = row_ns

    def _take_back(self, binding: Binding) -> None:
        binding.offered_ns = None
        self._connections.send(binding.peer, ComputeNoMore(binding.model.model))

    def computed(self, peer: Peer, record: ComputedInStub) -> None:
        """Count what a stub has answered by itself. Take a model back for good that it gives
        up."""
        binding = self._sessions.bindings.get((peer.number, record.model))
        if binding is None:
            return
        binding.answered += record.answered
        if len(record.durations) == len(binding.durations):
            binding.durations = [*map(add, binding.durations, record.durations)]
        if record.gives_up and binding.offered_ns is not None:
            binding.is_refused = True
            self._take_back(binding)
            text = f"a run of model '{binding.model.name}' took too long in its stub"
            LOGGER.info(f"{text}: from now on a worker computes it")
            INCIDENTS.note(text)

    def gone(self, peer: Peer) -> None:
        """Note the end of a connection. A stub that gave no notice may have died of its model."""
        if peer.parent and not peer.is_leaving:
            self._missing += [
                _Missing(peer, binding.model, computed=binding.offered_ns is not None)
                for binding in self._sessions.bindings_of(peer)
                if binding.session is not None and self._tells_of(binding.model)
            ]

    def _tells_of(self, model: LoadModel) -> bool:
        """Whether this worker reports the death of a model's stub. The background worker leaves
        models of other classes to the foreground one, to which their stubs are connected, too."""
        return self._role is Role.FOREGROUND or model.job_class == JobClass.BESTEFFORT.value

    def _judge_missing(self) -> None:
        """Report stubs that have died while their servers have not, and note never to offer such a
        model again that its stub was computing.

        This check comes later than the end of a connection: a process closes its sockets before it
        is gone, and a server's stubs end before the server has.
        """
        missing, self._missing = self._missing, []
        for each in missing:
            peer, model = each.peer, each.model
            try:
                if birth_of(peer.pid) is not None or birth_of(peer.parent) != peer.server_birth:
                    continue
            except OSError:  # no descriptor is left to read it with
                self._missing.append(each)
                continue
            how = " while it computed the model itself, which no stub does again"
            text = (
                f"the stub of model '{model.name}' has died{how if each.computed else ''}: its "
                "instance is gone until the entry is unloaded and loaded again"
            )
            LOGGER.info(text)  # a warning would be an incident of its own
            INCIDENTS.note(text)
            if not each.computed:
                continue
            with contextlib.suppress(OSError, InvalidModelError):
                note = note_of(Path(model.path), "stub-deaths")
                make_private(note.parent)
                note.touch()


def _longest_ns(session: Servable) -> int:
    """Return the longest run of a model that stubs compute."""
    return LONGER_NS if session.weight_bytes <= LONGER_BYTES else SMALL_NS


def least_rate(binding: Binding) -> float:
    """Return the rate, in answers a second, from which on the binding's stub is to compute."""
    session = binding.session
    weight_mib = 0.0 if session is None else session.weight_bytes / 2**20
    return LEAST_RATE + RATE_A_MIB * weight_mib


def averaged(rate: float, came: int, passed_s: float) -> float:
    """Return the moving average of answers a second. ``rate``: the average ``passed_s`` ago;
    ``came``: the answers since then.
    """
    if passed_s <= 0:
        return rate
    weight = math.exp(-passed_s / RATE_OVER_S)
    return weight * rate + (1 - weight) * came / passed_s


def _row_ns(binding: Binding) -> float:
    """Return how long a run of one of its requests takes for a row, not counting other work that
    had the processors meanwhile; infinite if that is unknown.
    """
    if binding.lone_run is None:
        return math.inf
    profile, rows = binding.lone_run
    return profile.least_ns / max(1, rows)
