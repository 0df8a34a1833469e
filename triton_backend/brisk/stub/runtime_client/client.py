"""A stub's client of the runtime: connections to those of the device's workers that it needs."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from brisk.errors import UnavailableError
from brisk.protocol.records import (
    AskStatistics,
    ComputedInStub,
    ForgetStatistics,
    Infer,
    InferForm,
    LoadModel,
    Region,
    SequenceStep,
    StatisticsTold,
    TensorForm,
)
from brisk.protocol.runtime_paths import ROLE_OF_CLASS, Role, RuntimePaths
from brisk.protocol.shared_memory import Arena
from brisk.stub.runtime_client.pending import ModelLoad, Reply, StagedRequest, stage_request
from brisk.stub.runtime_client.runtime_process import reap_started
from brisk.stub.runtime_client.worker_connection import Offer, WorkerConnection


def _role_of(job_class: str) -> Role:
    """Return the role whose worker computes a class; foreground for an unknown class, which the
    worker refuses."""
    return ROLE_OF_CLASS.get(job_class, Role.FOREGROUND)


def decline(offer: Offer | None) -> None:
    """Decline a worker's offer to compute a model in this process: close its descriptor."""
    if offer is not None:
        os.close(offer.gate)


class RuntimeClient:
    """One model instance's connections to workers. ``log(level, text)``: called from any thread.

    The worker of the model's own class loads it at once, the other one at the first request of
    such a class.
    """

    def __init__(
        self,
        place: RuntimePaths,
        model: LoadModel,
        log: Callable[[str, str], None],
        tell: Callable[[StatisticsTold], None] = lambda told: None,
        take_offer: Callable[[Offer | None], None] = decline,
    ) -> None:
        """Make a client without connections.

        ``tell`` gets the answers to AskStatistics, from any thread. ``take_offer`` gets the
        worker's offers of the model, and None when one is withdrawn.
        """
        self._take_offer = take_offer
        self._place = place
        self._model = model
        self._log = log
        self._tell = tell
        self._arena = Arena()
        self._role = _role_of(model.job_class)
        self._connections: dict[Role, WorkerConnection] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._closing = False

    def open(self) -> int:
        """Call ``begin``, and wait until the load has ended: see ``wait_loaded``."""
        self.begin()
        return self.wait_loaded()

    def begin(self) -> None:
        """Connect, and begin to load the model.

        Closes the connection and raises the error if connecting fails.
        """
        with self._closed_on_failure():
            self._new_connection(self._role, is_waited_for=True).open()

    def wait_loaded(self) -> int:
        """Wait for the end of the load that ``begin`` began. Return its time in ns.

        Closes the connection and raises the error if the load fails.
        """
        with self._closed_on_failure():
            return self._connections[self._role].load.wait()

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def stage(self, tensors: tuple[TensorForm, ...], sizes: Sequence[int]) -> StagedRequest:
        """Allocate memory for a request's inputs: see ``stage_request``.

        Pass the result to ``submit`` or ``discard``.
        """
        return stage_request(self._arena, tensors, sizes)

    def memory(self, region: Region) -> memoryview:
        """Return a region's memory, to write inputs to."""
        return self._arena.memory(region)

    def discard(self, staged: StagedRequest) -> None:
        self._arena.free(staged.mark)

    def submit(
        self,
        staged: StagedRequest,
        outputs: Sequence[str],
        job_class: str,
        deadline_ns: int | None,
        reply: Reply,
        *,
        trace_context: str = "",
        agreement_ppm: int | None = None,
        arrived_ns: int = 0,
        step: SequenceStep | None = None,
        requests: int = 1,
    ) -> int:
        """Send a request, now or when a worker runs again. Return its number, for ``cancel``.

        ``reply`` is called exactly once, whatever happens. ``trace_context`` is Triton's,
        ``agreement_ppm`` as in ``InferForm``, ``arrived_ns`` and ``requests`` as in ``Infer``.
        """
        number = next(self._numbers)
        try:
            worker = self._connection(_role_of(job_class))
        except UnavailableError as error:
            self.discard(staged)
            reply.fail(error)
            return number
        form = InferForm(
            self._model.model, staged.tensors, tuple(outputs), job_class, agreement_ppm
        )
        record = Infer(
            number,
            form,
            staged.regions,
            staged.mark,
            deadline_ns,
            trace_context=trace_context,
            arrived_ns=arrived_ns,
            step=step,
            requests=requests,
        )
        worker.submit(record, reply)
        return number

    def attend(
        self, job_class: str, is_answered: Callable[[], bool], awake_ns: int, asleep_ns: int = 0
    ) -> bool:
        """Read answers in this thread until the wanted one has come: see ``Reader.attend``.

        Without this call the receiver's thread reads them, only later.
        """
        worker = self._connections.get(_role_of(job_class))
        return worker is not None and worker.reader.attend(is_answered, awake_ns, asleep_ns)

    def cancel(self, number: int) -> None:
        """Ask the workers to cancel the request; its reply is called as for any other."""
        for worker in list(self._connections.values()):
            worker.cancel(number)

    def send(self, record: AskStatistics | ForgetStatistics | ComputedInStub) -> None:
        """Send a record to all connected workers; it is dropped for one that has just ended."""
        for worker in list(self._connections.values()):
            worker.send(record)

    def close(self) -> None:
        """Close all connections; requests still unanswered fail."""
        with self._lock:
            self._closing = True
        self._take_offer(None)
        for worker in self._connections.values():
            worker.close()
        self._arena.close()
        reap_started()

    @property
    def pending(self) -> int:
        """The number of requests in flight."""
        return sum(worker.pending for worker in list(self._connections.values()))

    def statistics(self) -> dict[str, int]:
        return {"pending": self.pending, **self._arena.statistics()}

    def _connection(self, role: Role) -> WorkerConnection:
        """Return the connection to the worker of ``role``, opened on first use.

        Raises UnavailableError if the client is closing, or the system has no memory or thread for
        a connection; then the next request tries again.
        """
        worker = self._connections.get(role)
        if worker is not None and worker.is_open:
            return worker
        name = self._model.name
        with self._lock:
            if self._closing:
                raise UnavailableError(f"model '{name}' is being unloaded")
            worker = self._connections.get(role) or self._new_connection(role, is_waited_for=False)
            try:
                if not worker.is_open:
                    worker.open()
            except RuntimeError as error:
                raise UnavailableError(
                    f"model '{name}' has no connection to the {role.value} worker: {error}"
                ) from error
            return worker

    def _hand_on(self, offer: Offer | None) -> None:
        """Pass on a worker's offer, or decline it if the client is closing; any thread may
        call."""
        if self._closing:
            decline(offer)
        else:
            self._take_offer(offer)

    def _new_connection(self, role: Role, *, is_waited_for: bool) -> WorkerConnection:
        load = ModelLoad(self._model, self._arena, is_waited_for=is_waited_for)
        worker = self._connections[role] = WorkerConnection(
            self._place, role, load, self._arena, self._log, self._tell, self._hand_on
        )
        return worker


# An answer through a response sender costs a round trip to the server's process, 180 microseconds
# in which the receiver's thread waits; one that ``execute`` returns costs nothing more. But while
# ``execute`` waits, Triton gives the instance no other request, so it waits only for quick answers
# to requests that come one by one.

QUICK_NS = 2_000_000
"""The time from arrival to answer up to which answers are quick: if the last ones were, the next
one is awaited.

A small network's answers take half of it on a busy machine, 0.4 to 0.9 ms if Triton, its client
and the worker have two processors between them.
"""

EYES_OPEN_NS = 1_000_000
"""The longest wait for an answer without sleeping, if the last answers took less than this."""

WAIT_NS = 4_000_000
"""The longest wait for an answer asleep; an answer that takes longer goes through a sender."""

CROWDED_NS = 150_000
"""The time since ``execute`` last returned below which a new request had been waiting in Triton's
queue."""

CROWDED_REQUESTS = 32
"""The number of requests that are not awaited, from one on that did not come alone."""


class Promptness:
    """The policy of whether ``execute`` waits for an answer that is about to come.

    Triton's thread calls ``wants`` and ``returns``, the receiver's thread ``learn``.
    """

    def __init__(self) -> None:
        self._took_ns = 2 * QUICK_NS
        self._returned_ns: int | None = None
        self._crowd = 0

    def wants(self, records: int, pending: int, now_ns: int, *, joins: bool = False) -> bool:
        """Whether to wait for the answers to ``records`` new requests, while ``pending`` others
        are in flight. ``joins``: requests that Triton holds back meanwhile are joined then.
        """
        is_crowd = records > 1 or pending > 0
        if self._returned_ns is not None and now_ns - self._returned_ns < CROWDED_NS:
            is_crowd = is_crowd or not joins
        if is_crowd:
            self._crowd = CROWDED_REQUESTS
        elif self._crowd:
            self._crowd -= 1
        return not self._crowd and self._took_ns < QUICK_NS

    @property
    def is_imminent(self) -> bool:
        """Whether the next answer is likely to come within ``EYES_OPEN_NS``."""
        return self._took_ns < EYES_OPEN_NS

    def returns(self, now_ns: int) -> None:
        """Note that ``execute`` returns now."""
        self._returned_ns = now_ns

    def learn(self, took_ns: int) -> None:
        """Learn from the time between a request's arrival and its answer."""
        self._took_ns = (3 * self._took_ns + min(took_ns, 4 * QUICK_NS)) // 4
