"""What Triton calls: a model instance, from ``initialize`` to ``finalize``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from brisk.errors import BriskError
from brisk.frontend.accounting import RequestAccount
from brisk.frontend.asked import request_parameters, trace_context
from brisk.frontend.connection import Connection
from brisk.frontend.entry import Entry, find_model, read_entry
from brisk.frontend.local import LocalAnswers
from brisk.frontend.log import log
from brisk.frontend.parameters import (
    REALTIME,
    request_agreement,
    request_class,
    request_deadline_ns,
)
from brisk.frontend.promptness import EYES_OPEN_NS, WAIT_NS, Promptness
from brisk.frontend.publisher import Publisher, publishing_interval_s
from brisk.frontend.reply import TritonReply
from brisk.frontend.tensors import read_inputs
from brisk.frontend.watcher import CancellationWatcher
from brisk.telemetry import STATISTICS
from brisk.wire.orphan import end_with_parent
from brisk.wire.place import runtime_place
from brisk.wire.precedence import realtime_niceness, renice


class ModelInstance:
    """One instance of one model version; Triton calls it from one thread."""

    def __init__(self, arguments: Mapping[str, str]) -> None:
        """Load the model; raises ``pb_utils.TritonModelException`` with the reason."""
        end_with_parent()
        name, version = arguments["model_name"], arguments["model_version"]
        self._label = f"brisk: model '{name}' version {version}"
        try:
            self._entry = read_entry(arguments)
            self._publisher = Publisher(STATISTICS, self._log, publishing_interval_s())
            self._connection = Connection(
                runtime_place(self._entry.device),
                self._entry.describe(),
                self._log,
                self._publisher.take,
            )
            if self._entry.parameters.job_class == REALTIME:
                renice(realtime_niceness())  # refused: the stub stays as urgent as others
            load_ns = None if self._entry.parameters.is_lazy else self._connection.open()
        except BriskError as error:
            raise pb_utils.TritonModelException(f"{self._label}: {error}") from None
        self._account = RequestAccount(STATISTICS, self._entry.name, self._entry.version)
        self._local = LocalAnswers(self._entry, self._account)
        self._publisher.start(self._connection.ask_statistics)
        self._promptness = Promptness()
        self._watcher = CancellationWatcher(self._connection.cancel)
        self._tell(self._entry, load_ns)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Take the requests in; each is answered through its own sender, sooner or later.

        The exceptions are requests that a lent network answers (see ``local``), and one that came
        alone and whose answer is about to come (see ``promptness``): those are the result.
        """
        arrived_ns = time.monotonic_ns()
        answered = self._answer_here(requests, arrived_ns)
        if answered is not None:
            return answered
        promptness = self._promptness
        if promptness.wants(len(requests), self._connection.pending, arrived_ns):
            reply, number = self._take(requests[0], arrived_ns, is_awaited=True)
            awake_ns = EYES_OPEN_NS if promptness.is_imminent else 0
            has_read = self._connection.attend(
                reply.job_class, reply.has_answered, awake_ns, WAIT_NS
            )
            response = reply.wait(0.0 if has_read else WAIT_NS / 1e9)
            if response is None and number:
                self._watcher.watch(number, reply)
            responses = [response]
        else:
            for request in requests:
                reply, number = self._take(request, arrived_ns, is_awaited=False)
                if number:
                    self._watcher.watch(number, reply)
            responses = [None]
        promptness.returns(time.monotonic_ns())
        return None if responses == [None] else responses

    def finalize(self) -> None:
        """Give the session back; requests still in flight have been answered by Triton's rules."""
        self._publisher.close()
        self._connection.forget_statistics()
        self._watcher.close()
        self._connection.close()

    def _answer_here(self, requests: list[Any], arrived_ns: int) -> list[Any] | None:
        """The responses of a network that was lent; None where the worker is to be asked.

        What is wrong with a request, the way to the worker finds again, and answers it.
        """
        network = self._connection.lent
        if network is None:
            return None
        try:
            answered = self._local.answer(network, requests, arrived_ns)
        except BriskError:
            return None
        if answered is not None:
            self._connection.count_answers(len(answered))
        return answered

    def _take(self, request: Any, arrived_ns: int, *, is_awaited: bool) -> tuple[TritonReply, int]:
        """Send the request on, or answer why not; its reply, and its number, 0 where not sent."""
        job_class = self._entry.parameters.job_class
        reply = TritonReply(
            request,
            self._account,
            self._promptness,
            job_class,
            arrived_ns,
            is_awaited=is_awaited,
        )
        try:
            return reply, self._submit(request, reply, arrived_ns)
        except BriskError as error:
            reply.fail(error)
        except Exception as error:  # noqa: BLE001  # nothing may escape once a sender is taken
            self._log("error", f"{type(error).__name__}: {error}")
            reply.fail(BriskError(f"{type(error).__name__}: {error}"))
        return reply, 0

    def _submit(self, request: Any, reply: TritonReply, arrived_ns: int) -> int:
        """Raises what is wrong with the request."""
        entry, connection = self._entry, self._connection
        parameters = request_parameters(request)
        job_class = reply.job_class = request_class(parameters, entry.parameters.job_class)
        agreement_ppm = request_agreement(parameters)
        connection.announce(job_class)
        deadline_ns = request_deadline_ns(arrived_ns, request.timeout())
        inputs = read_inputs(request, entry.bfloat16_inputs)
        wanted = set(request.requested_output_names())
        outputs = [name for name in entry.outputs if name in wanted]
        tensors = tuple(tensor.form for tensor in inputs)
        staged = connection.stage(tensors, [tensor.size for tensor in inputs])
        places = [connection.memory(region) for region in staged.regions]

        def write() -> None:
            for tensor, memory in zip(inputs, places, strict=True):
                if tensor.size:
                    tensor.write(memory)

        context = trace_context(request)
        return connection.submit(
            staged, outputs, job_class, deadline_ns, reply, context, agreement_ppm, write
        )

    def _log(self, level: str, text: str) -> None:
        log(level, f"{self._label}: {text}")

    def _tell(self, entry: Entry, load_ns: int | None) -> None:
        how = f"ready after {load_ns / 1e6:.0f} ms" if load_ns else "shares a loaded session"
        if load_ns is None:
            how = "is loaded by its first request"
        self._log("info", f"{how} on {entry.device}")
        for names, text in (
            (entry.parameters.ignored_onnxruntime, "of the ONNX Runtime backend have no meaning"),
            (entry.parameters.foreign, "are unknown to Brisk and ignored"),
        ):
            if names:
                self._log("info", f"parameters {', '.join(names)} {text}")


def auto_complete(model_config: Any) -> Any:
    """Fill in what the entry leaves out; raises ``pb_utils.TritonModelException``."""
    # Here, since every load of an entry would pay for what only an incomplete one needs.
    from brisk.frontend.completion import complete
    from brisk.frontend.pipeline_signature import model_signature

    end_with_parent()
    config = model_config.as_dict()
    try:
        path = _model_file(config)
        if path is None:
            return model_config
        completion = complete(model_signature(path), config)
    except BriskError as error:
        name = config.get("name", "")
        raise pb_utils.TritonModelException(f"brisk: model '{name}': {error}") from None
    for entry in completion.inputs:
        model_config.add_input(entry)
    for entry in completion.outputs:
        model_config.add_output(entry)
    if completion.max_batch_size:
        model_config.set_max_batch_size(completion.max_batch_size)
    if completion.has_dynamic_batching:
        model_config.set_dynamic_batching()
    return model_config


def _model_file(config: Mapping[str, Any]) -> Path | None:
    """The model's ONNX file while Triton completes its configuration; None where it is not told.

    Triton passes no path to ``auto_complete_config``, but the stub's command line starts with
    the ``model.py`` that a plain Python model would have in its version directory.
    """
    arguments = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    if len(arguments) < 2:
        return None
    version_directory = Path(os.fsdecode(arguments[1])).parent
    if not version_directory.name.isdigit():
        return None
    return find_model(version_directory.parent, int(version_directory.name), config)
