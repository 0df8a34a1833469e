"""What happens to requests between Triton's ``execute`` and the connection to the runtime.

Numpy is first needed here: an instance imports this module while its model is loading.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brisk.errors import BriskError, InvalidRequestError
from brisk.protocol.records import SequenceStep
from brisk.protocol.runtime_paths import ROLE_OF_CLASS
from brisk.stub.config.entry import Entry
from brisk.stub.config.parameters import (
    REALTIME,
    request_agreement,
    request_class,
    request_deadline_ns,
    request_parameters,
    trace_context,
)
from brisk.stub.response import CancellationWatcher, TritonReply, send_nothing
from brisk.stub.runtime_client.client import EYES_OPEN_NS, WAIT_NS, Promptness, RuntimeClient
from brisk.stub.tensors import read_inputs
from brisk.telemetry import STATISTICS
from brisk.telemetry.statistics import RequestAccount

if TYPE_CHECKING:
    from brisk.stub.sequence_steps import Steps


MOST_PENDING, HELD_BACK_S, HELD_LOOK_S = 64, 0.05, 0.002
"""From so many requests of an instance in flight on, each waits so long in Triton's queue, unless
they get fewer. 512 requests to each of ten models kept the processors for some seconds, before the
most of them were computed."""

TOLD_AGAIN_S = 60.0
"""Between two lines of the log about that."""


class RequestHandler:
    """Of one model instance; Triton calls it from one thread."""

    def __init__(
        self, entry: Entry, connection: RuntimeClient, log: Callable[[str, str], None]
    ) -> None:
        self._entry = entry
        self._connection = connection
        self._log = log
        self._account = RequestAccount(STATISTICS, entry.model.name, entry.model.version)
        self._promptness = Promptness()
        self._watcher = CancellationWatcher(connection.cancel)
        self._tells_from_s = 0.0
        self._may_be_held = entry.parameters.max_class != REALTIME and entry.sequences is None
        self._steps: Steps | None = None
        if entry.sequences is not None:
            from brisk.stub.sequence_steps import Steps  # other starts shall not pay for them

            self._steps = Steps(entry.sequences)

    def close(self) -> None:
        """Requests in flight are no longer watched."""
        self._watcher.close()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Take the requests in; each is answered through its own sender, sooner or later.

        The exception is one that came alone and whose answer is about to come (see
        ``Promptness``): that is the result.
        """
        if self._may_be_held and self._connection.pending >= MOST_PENDING:
            self._hold_back()
        arrived_ns = time.monotonic_ns()
        asked = requests if self._steps is None else _without_fillers(requests, self._steps)
        promptness, response = self._promptness, None
        if len(asked) == len(requests) and promptness.wants(
            len(requests), self._connection.pending, arrived_ns
        ):
            reply, number = self._take(requests[0], arrived_ns, is_awaited=True)
            awake_ns = EYES_OPEN_NS if promptness.is_imminent else 0
            has_read = self._connection.attend(
                reply.job_class, reply.has_answered, awake_ns, WAIT_NS
            )
            response = reply.wait(0.0 if has_read else WAIT_NS / 1e9)
            if response is None and number:
                self._watcher.watch(number, reply)
        else:
            for request in asked:
                reply, number = self._take(request, arrived_ns, is_awaited=False)
                if number:
                    self._watcher.watch(number, reply)
        promptness.returns(time.monotonic_ns())
        return None if response is None else [response]

    def _hold_back(self) -> None:
        """Where many are in flight, wait a moment before more are read: the worker has enough to
        do, and who fills its queue shall not take the processors from everybody else meanwhile.
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

    def _take(self, request: Any, arrived_ns: int, *, is_awaited: bool) -> tuple[TritonReply, int]:
        """Send the request on, or answer why not; its reply, and its number, 0 where not sent."""
        job_class = self._entry.parameters.job_class
        counted = (self._account, self._promptness.learn, job_class, arrived_ns)
        ones = self._entry.ones
        reply = TritonReply(request, *counted, ones, is_awaited=is_awaited)
        try:
            if self._steps is None:
                return reply, self._submit(request, reply, arrived_ns, None)
            with self._steps.step(request) as step:
                return reply, self._submit(request, reply, arrived_ns, step)
        except BriskError as error:
            reply.fail(error)
        except Exception as error:  # noqa: BLE001  # nothing may escape once a sender is taken
            self._log("error", f"{type(error).__name__}: {error}")
            reply.fail(BriskError(f"{type(error).__name__}: {error}"))
        return reply, 0

    def _submit(
        self, request: Any, reply: TritonReply, arrived_ns: int, step: SequenceStep | None
    ) -> int:
        """Raises what is wrong with the request."""
        entry, connection = self._entry, self._connection
        parameters = request_parameters(request)
        job_class = reply.job_class = request_class(parameters, entry.parameters)
        agreement_ppm = request_agreement(parameters)
        usual = entry.parameters.job_class
        if step is not None and ROLE_OF_CLASS[job_class] is not ROLE_OF_CLASS[usual]:
            raise InvalidRequestError(
                f"a request of a sequence cannot be of class {job_class}, where its model's are "
                f"{usual}: its state is in another worker"
            )
        deadline_ns = request_deadline_ns(arrived_ns, request.timeout())
        left_out = entry.sequences.left_out if entry.sequences is not None else ()
        inputs = read_inputs(request, entry.bfloat16_inputs, left_out)
        wanted = set(request.requested_output_names())
        outputs = [name for name in entry.outputs if name in wanted]
        tensors = tuple(tensor.form for tensor in inputs)
        staged = connection.stage(tensors, [tensor.content.nbytes for tensor in inputs])
        try:
            for tensor, region in zip(inputs, staged.regions, strict=True):
                if region.size:
                    tensor.write(connection.memory(region))
        except BaseException:
            connection.discard(staged)
            raise
        context = trace_context(request)
        asked = (staged, outputs, job_class, deadline_ns, reply, context, agreement_ppm)
        return connection.submit(*asked, arrived_ns, step)


def _without_fillers(requests: list[Any], steps: Steps) -> list[Any]:
    """Those that somebody has asked; the others are answered."""
    asked = []
    for request in requests:
        if steps.is_filler(request):
            send_nothing(request)
        else:
            asked.append(request)
    return asked
