"""What happens to requests between Triton's ``execute`` and the connection to the runtime.

Numpy is first needed here: an instance imports this module while its model is loading.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from brisk.errors import BriskError, InvalidRequestError
from brisk.protocol.records import SequenceStep
from brisk.protocol.runtime_paths import ROLE_OF_CLASS
from brisk.stub.config.entry import Entry
from brisk.stub.config.parameters import CLASS, JOB_CLASSES, MAX_CLASS, Parameters, is_above
from brisk.stub.response import CancellationWatcher, TritonReply
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.stub.tensors import read_inputs
from brisk.telemetry import STATISTICS
from brisk.telemetry.statistics import RequestAccount

if TYPE_CHECKING:
    from brisk.stub.sequence_steps import Steps


# An answer through a response sender costs a round trip to the server's process, 180 microseconds
# in which the receiver's thread waits; one that ``execute`` returns costs nothing more. While
# ``execute`` waits, though, Triton gives the instance no other request, so it does for quick
# answers to requests that come one by one only.

QUICK_NS = 2_000_000
"""Answers are awaited where the last ones took less, from arrival to answer.

A small network's take half of it on a busy machine, 0.4 to 0.9 ms where Triton, its client and the
worker have two processors between them.
"""

EYES_OPEN_NS = 1_000_000
"""Answers that took less than this are awaited without sleeping, for so long at most."""

WAIT_NS = 4_000_000
"""How long others are awaited asleep; an answer that takes longer goes through a sender."""

CROWDED_NS = 150_000
"""A request that comes sooner after the last return had been waiting in Triton's queue."""

CROWDED_REQUESTS = 32
"""How many requests are not awaited after such a one."""


class Promptness:
    """Whether ``execute`` waits for an answer that is about to come.

    ``wants`` and ``returns`` are for Triton's thread, ``learn`` for the receiver's.
    """

    def __init__(self) -> None:
        self._took_ns = 2 * QUICK_NS
        self._returned_ns: int | None = None
        self._crowd = 0

    def wants(self, requests: int, pending: int, now_ns: int) -> bool:
        """Whether to wait for the answer of what came now: ``requests`` at once, while
        ``pending`` others are in flight.
        """
        is_crowd = requests > 1 or pending > 0
        if self._returned_ns is not None and now_ns - self._returned_ns < CROWDED_NS:
            is_crowd = True
        if is_crowd:
            self._crowd = CROWDED_REQUESTS
        elif self._crowd:
            self._crowd -= 1
        return not self._crowd and self._took_ns < QUICK_NS

    @property
    def is_imminent(self) -> bool:
        """Whether the answer to what was just sent is a matter of microseconds."""
        return self._took_ns < EYES_OPEN_NS

    def returns(self, now_ns: int) -> None:
        """``execute`` ends."""
        self._returned_ns = now_ns

    def learn(self, took_ns: int) -> None:
        """A request has been answered so long after it came."""
        self._took_ns = (3 * self._took_ns + min(took_ns, 4 * QUICK_NS)) // 4


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
        arrived_ns = time.monotonic_ns()
        asked = requests if self._steps is None else self._steps.without_fillers(requests)
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

    def _take(self, request: Any, arrived_ns: int, *, is_awaited: bool) -> tuple[TritonReply, int]:
        """Send the request on, or answer why not; its reply, and its number, 0 where not sent."""
        job_class = self._entry.parameters.job_class
        counted = (self._account, self._promptness.learn, job_class, arrived_ns)
        reply = TritonReply(request, *counted, is_awaited=is_awaited)
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


# What a request says apart from its inputs.

MILLION = 1_000_000
_EARLY_EXIT, _ACCURACY = "brisk_early_exit", "brisk_accuracy"
_REQUEST_PARAMETERS = (CLASS, _EARLY_EXIT, _ACCURACY)

MAX_CONTEXT_CHARACTERS = 200


def request_parameters(request: Any) -> Mapping[str, Any]:
    """Those that the client has set."""
    text = request.parameters()
    return json.loads(text) if text and text != "{}" else {}


def trace_context(request: Any) -> str:
    """Triton's trace context (OpenTelemetry's propagation headers as JSON); empty without one.

    A Triton before 24.08 has none to give.
    """
    trace = getattr(request, "trace", None)
    context = trace().get_context() if trace is not None else None
    return str(context)[:MAX_CONTEXT_CHARACTERS] if context else ""


LONGEST_TIMEOUT_US = 30 * 24 * 3600 * MILLION
"""A longer one is no deadline at all, and its end in ns might be no integer of the protocol."""


def request_deadline_ns(arrived_ns: int, timeout_us: int) -> int | None:
    """When a request is late; None where it sets no time-out or one of more than 30 days."""
    if not 0 < timeout_us <= LONGEST_TIMEOUT_US:
        return None
    return arrived_ns + timeout_us * 1000


def request_class(parameters: Mapping[str, Any], entry: Parameters) -> str:
    """A request's class: its parameter ``brisk_class``, else the entry's.

    Raises InvalidRequestError for an unknown ``brisk_*`` parameter or class, and for a class above
    the entry's ``brisk_max_class``: who may ask a model may not therefore go before all others.
    """
    job_class = entry.job_class
    for name, value in parameters.items():
        if name == CLASS:
            if value not in JOB_CLASSES:
                raise InvalidRequestError(
                    f"request parameter {CLASS} must be one of {', '.join(JOB_CLASSES)}, "
                    f"not {value!r:.60}"
                )
            if is_above(value, entry.max_class):
                raise InvalidRequestError(
                    f"request parameter {CLASS} asks for class '{value}', but the entry allows "
                    f"'{entry.max_class}' at most; its parameter {MAX_CLASS} may allow more"
                )
            job_class = value
        elif name.startswith("brisk_") and name not in _REQUEST_PARAMETERS:
            raise InvalidRequestError(
                f"unknown request parameter '{name:.60}'; "
                f"requests take {', '.join(_REQUEST_PARAMETERS)}"
            )
    return job_class


def request_agreement(parameters: Mapping[str, Any]) -> int | None:
    """How many of a million early answers must be the model's own; None where nothing is asked.

    From ``brisk_early_exit`` (false: a million, no early answers) and ``brisk_accuracy``, the
    least share. Raises InvalidRequestError for other values.
    """
    wanted: int | None = None
    if _ACCURACY in parameters:
        wanted = _share_ppm(parameters[_ACCURACY])
    if _EARLY_EXIT in parameters:
        text = str(parameters[_EARLY_EXIT]).lower()
        if text not in ("true", "false"):
            raise InvalidRequestError(
                f"request parameter {_EARLY_EXIT} must be true or false, "
                f"not {parameters[_EARLY_EXIT]!r:.60}"
            )
        if text == "false":
            return MILLION
    return wanted


def _share_ppm(value: Any) -> int:
    """``0.99`` or ``"0.99"`` in parts of a million."""
    try:
        share = float(value)
    except (TypeError, ValueError, OverflowError):
        share = 0.0
    if isinstance(value, bool) or not 0 < share <= 1:
        raise InvalidRequestError(
            f"request parameter {_ACCURACY} must be a number above 0 and at most 1, "
            f"not {value!r:.60}"
        )
    return round(share * MILLION)
