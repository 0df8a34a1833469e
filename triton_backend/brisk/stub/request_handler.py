"""The handling of requests between Triton's ``execute`` and the connection to the runtime.

This is the first module that needs numpy: an instance imports it while its model is loading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from brisk.errors import BriskError, InvalidRequestError
from brisk.protocol.records import SequenceStep, TensorForm
from brisk.protocol.runtime_paths import ROLE_OF_CLASS
from brisk.stub.config.entry import Entry
from brisk.stub.config.parameters import (
    MILLION,
    REALTIME,
    request_agreement,
    request_class,
    request_deadline_ns,
    request_parameters,
    requested_outputs,
    trace_context,
)
from brisk.stub.joining import Group, ReadRequest, joined
from brisk.stub.local.offered_model import OfferedModel
from brisk.stub.response import CancellationWatcher, Counted, TritonReply, send_nothing
from brisk.stub.runtime_client.client import (
    EYES_OPEN_NS,
    QUICK_NS,
    WAIT_NS,
    Promptness,
    RuntimeClient,
)
from brisk.stub.tensors import read_inputs
from brisk.telemetry import STATISTICS
from brisk.telemetry.statistics import RequestAccount

if TYPE_CHECKING:
    from brisk.stub.sequence_steps import Steps


MOST_PENDING, HELD_BACK_S, HELD_LOOK_S = 64, 0.05, 0.002
"""The number of an instance's requests in flight from which on others wait in Triton's queue until
there are fewer; the longest such wait; and the interval of checks meanwhile. Otherwise 512
requests to each of ten models keep the processors for some seconds, before most of them are
computed."""

IN_VAIN_NS = 100_000_000
"""The time for which short runs are not awaited after one did not come in time: others are
computed first, and an urgent request of the same instance would wait behind the awaited one."""

TOLD_AGAIN_S = 60.0
"""The least time between two log lines about requests that wait in Triton's queue."""


class RequestHandler:
    """The handler of one model instance's requests; Triton calls it from one thread."""

    def __init__(
        self,
        entry: Entry,
        connection: RuntimeClient,
        offered: OfferedModel,
        log: Callable[[str, str], None],
    ) -> None:
        self._entry = entry
        self._connection = connection
        self._offered = offered
        self._log = log
        self._promptness = Promptness()
        account = RequestAccount(STATISTICS, entry.model.name, entry.model.version)
        self._counted = Counted(
            account, self._promptness.learn, self._learn_run, self._stop_joining
        )
        self._row_ns: float | None = None
        self._waits_from_ns = 0
        self._joins = entry.model.batching and entry.sequences is None
        self._watcher = CancellationWatcher(connection.cancel)
        self._tells_from_s = 0.0
        self._may_be_held = entry.parameters.max_class != REALTIME and entry.sequences is None
        self._steps: Steps | None = None
        if entry.sequences is not None:
            from brisk.stub.sequence_steps import Steps  # other starts shall not pay for them

            self._steps = Steps(entry.sequences)

    def close(self) -> None:
        """Stop watching requests in flight for cancellation."""
        self._watcher.close()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Accept requests; each is answered through its own sender, sooner or later.

        Exceptions are requests that are computed in this process (``LocalModel``), or whose
        answers are about to come (see ``Promptness``): their responses are returned.
        """
        local = self._offered.local
        if local is not None:
            responses_here = local.answer(requests, self._entry, self._counted.account)
            if responses_here is not None:
                return responses_here
        if self._may_be_held and self._connection.pending >= MOST_PENDING:
            self._hold_back()
        arrived_ns = time.monotonic_ns()
        count, promptness = len(requests), self._promptness
        if self._steps is not None:
            requests = _without_fillers(requests, self._steps)
        groups = self._grouped(requests, arrived_ns)
        responses: list[Any] = [None] * count
        may_wait = bool(groups) and len(requests) == count
        if may_wait and (
            self._is_short(groups, arrived_ns)
            or promptness.wants(
                len(groups), self._connection.pending, arrived_ns, joins=self._joins
            )
        ):
            self._await(groups, responses, arrived_ns)
        else:
            for group in groups:
                self._send_on(group, arrived_ns)
        promptness.returns(time.monotonic_ns())
        return None if all(each is None for each in responses) else responses

    def _is_short(self, groups: Sequence[Group], arrived_ns: int) -> bool:
        """Whether ``execute`` should wait for the runs, because they take less than senders cost.

        Meanwhile Triton joins the next requests, as it does for a backend that computes itself.
        """
        if not self._joins or self._row_ns is None or arrived_ns < self._waits_from_ns:
            return False
        return self._row_ns * sum(one.rows for each in groups for one in each.asked) < QUICK_NS

    def _send_on(self, group: Group, arrived_ns: int) -> None:
        """Send a group to the worker, to be answered through senders."""
        reply, number = self._take(group, arrived_ns, is_awaited=False)
        if number:
            self._watcher.watch(number, reply)

    def _await(self, groups: list[Group], responses: list[Any], arrived_ns: int) -> None:
        """Send all groups to the worker, and put their answers into ``responses``; a late answer
        leaves None in its place, and goes through a sender."""
        awake_ns = EYES_OPEN_NS if self._promptness.is_imminent else 0
        awaited = [self._take(group, arrived_ns, is_awaited=True) for group in groups]
        for group, (reply, number) in zip(groups, awaited, strict=True):
            has_read = self._connection.attend(
                reply.job_class, reply.has_answered, awake_ns, WAIT_NS
            )
            answers = reply.wait(0.0 if has_read else WAIT_NS / 1e9)
            if answers is None:
                self._waits_from_ns = arrived_ns + IN_VAIN_NS
                if number:
                    self._watcher.watch(number, reply)
                continue
            for place, response in zip(group.places, answers, strict=True):
                responses[place] = response

    def _stop_joining(self) -> None:
        """Join no more requests: learned caches answer some rows early, which must not wait for
        others, or outputs cannot be divided by rows."""
        self._joins = False

    def _learn_run(self, execution_ns: int, rows: int) -> None:
        """Learn the time per row from a run's time and rows; any thread may call."""
        row_ns = execution_ns / max(1, rows)
        known_ns = self._row_ns
        self._row_ns = row_ns if known_ns is None else known_ns + 0.2 * (row_ns - known_ns)

    def _grouped(self, requests: list[Any], arrived_ns: int) -> list[Group]:
        """Return the requests of one call of Triton's as groups to send, joined where possible."""
        alone = [self._alone(place, each, arrived_ns) for place, each in enumerate(requests)]
        return joined(alone, self._row_ns) if self._joins and len(alone) > 1 else alone

    def _alone(self, place: int, request: Any, arrived_ns: int) -> Group:
        if self._steps is not None:  # it is read while it is known which step it is
            return Group([place], [request], [])
        try:
            return Group([place], [request], [self._read(request, arrived_ns)])
        except Exception as error:  # noqa: BLE001  # it is answered with what is wrong
            return Group([place], [request], [], error)

    def _hold_back(self) -> None:
        """Wait up to ``HELD_BACK_S`` for fewer requests in flight before more are read.

        The worker has enough to do; a client that fills its queue must not take the processors
        from all others meanwhile.
        """
        pending, now_s = self._connection.pending, time.monotonic()
        if now_s >= self._tells_from_s:
            self._tells_from_s = now_s + TOLD_AGAIN_S
            self._log(
                "warning",
                f"{pending} requests are in flight: while they are so many, further ones wait in "
                "Triton's queue",
            )
        until_s = now_s + HELD_BACK_S
        while self._connection.pending >= MOST_PENDING and time.monotonic() < until_s:
            time.sleep(HELD_LOOK_S)

    def _read(self, request: Any, arrived_ns: int) -> ReadRequest:
        """Parse a request. Raises what is wrong with it."""
        entry = self._entry
        parameters = request_parameters(request)
        left_out = entry.sequences.left_out if entry.sequences is not None else ()
        agreement_ppm = request_agreement(parameters)
        inputs = read_inputs(request, entry.bfloat16_inputs, left_out)
        shape = inputs[0].form.shape if inputs else ()
        return ReadRequest(
            request_class(parameters, entry.parameters),
            agreement_ppm if entry.answers_early else MILLION,
            request_deadline_ns(arrived_ns, request.timeout()),
            trace_context(request),
            inputs,
            requested_outputs(request, entry.outputs),
            shape[0] if shape else 0,
        )

    def _take(self, group: Group, arrived_ns: int, *, is_awaited: bool) -> tuple[TritonReply, int]:
        """Send a group to the worker, or answer it with an error.

        Return its reply, and its request number: 0 if it was not sent.
        """
        reply = TritonReply(
            group.requests,
            [each.rows for each in group.asked],
            self._counted,
            self._entry.parameters.job_class,
            arrived_ns,
            self._entry.ones,
            self._take_apart,
            is_awaited=is_awaited,
        )
        try:
            if group.error is not None:
                raise group.error
            if self._steps is None:
                return reply, self._submit(group.asked, reply, arrived_ns, None)
            with self._steps.step(group.requests[0]) as step:
                asked = self._read(group.requests[0], arrived_ns)
                return reply, self._submit([asked], reply, arrived_ns, step)
        except BriskError as error:
            reply.fail(error)
        except Exception as error:  # noqa: BLE001  # nothing may escape once a sender is taken
            self._log("error", f"{type(error).__name__}: {error}")
            reply.fail(BriskError(f"{type(error).__name__}: {error}"))
        return reply, 0

    def _take_apart(self, requests: Sequence[Any], arrived_ns: int) -> None:
        """Send each request of a failed group by itself, so that only invalid ones fail.

        Any thread may call.
        """
        for request in requests:
            self._send_on(self._alone(0, request, arrived_ns), arrived_ns)

    def _submit(
        self,
        asked: Sequence[ReadRequest],
        reply: TritonReply,
        arrived_ns: int,
        step: SequenceStep | None,
    ) -> int:
        """Write a group's inputs to shared memory and send it; return its request number. Raises
        what is wrong with the requests."""
        entry, connection, first = self._entry, self._connection, asked[0]
        job_class = reply.job_class = first.job_class
        usual = entry.parameters.job_class
        if step is not None and ROLE_OF_CLASS[job_class] is not ROLE_OF_CLASS[usual]:
            raise InvalidRequestError(
                f"a request of a sequence cannot be of class {job_class}, where its model's are "
                f"{usual}: its state is in another worker"
            )
        tensors = tuple(each.form for each in first.inputs)
        sizes = [each.content.nbytes for each in first.inputs]
        if len(asked) > 1:
            rows = sum(each.rows for each in asked)
            sizes = [size // first.rows * rows for size in sizes]
            tensors = tuple(
                TensorForm(name, kind, (rows, *shape[1:])) for name, kind, shape in tensors
            )
        staged = connection.stage(tensors, sizes)
        try:
            for position, region in enumerate(staged.regions):
                if not region.size:
                    continue
                memory = connection.memory(region)
                for each in asked:
                    tensor = each.inputs[position]
                    size = tensor.content.nbytes
                    tensor.write(memory[:size])
                    memory = memory[size:]
        except BaseException:
            connection.discard(staged)
            raise
        return connection.submit(
            staged,
            first.outputs,
            job_class,
            first.deadline_ns,
            reply,
            trace_context=first.trace_context,
            agreement_ppm=first.agreement_ppm,
            arrived_ns=arrived_ns,
            step=step,
            requests=len(asked),
        )


def _without_fillers(requests: list[Any], steps: Steps) -> list[Any]:
    """Return the requests that clients sent; answer those that Triton added as fillers."""
    of_clients = []
    for request in requests:
        if steps.is_filler(request):
            send_nothing(request)
        else:
            of_clients.append(request)
    return of_clients
