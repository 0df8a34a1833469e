"""Answers of a lent network: given by ``execute`` itself, without the worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import triton_python_backend_utils as pb_utils

from brisk.frontend.accounting import RequestAccount
from brisk.frontend.asked import request_parameters, trace_context
from brisk.frontend.entry import Entry
from brisk.frontend.parameters import request_agreement, request_class
from brisk.wire.role import Role, role_of

if TYPE_CHECKING:
    from brisk.frontend.lent import LentNetwork


class _Answer(NamedTuple):
    response: Any
    job_class: str
    execution_ns: int


class LocalAnswers:
    """For one model instance; Triton's thread only."""

    def __init__(self, entry: Entry, account: RequestAccount) -> None:
        self._entry = entry
        self._account = account

    def answer(
        self, network: LentNetwork, requests: Sequence[Any], arrived_ns: int
    ) -> list[Any] | None:
        """The responses to all of ``requests``; None where one of them is for the worker: to
        refuse, to compute at best-effort priority, or to record.

        Raises what is wrong with a request's parameters.
        """
        answers = []
        for request in requests:
            answer = self._answer(network, request)
            if answer is None:
                return None
            answers.append(answer)
        took_ns = time.monotonic_ns() - arrived_ns
        for answer in answers:
            self._account.succeeded(answer.job_class, took_ns, 0, answer.execution_ns)
        return [answer.response for answer in answers]

    def _answer(self, network: LentNetwork, request: Any) -> _Answer | None:
        job_class = self._entry.parameters.job_class
        if parameters := request_parameters(request):
            job_class = request_class(parameters, self._entry.parameters)
            request_agreement(parameters)  # raises; there are no early answers to agree
        if role_of(job_class) is Role.BACKGROUND or trace_context(request):
            return None
        computed = network.compute(
            {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        )
        if computed is None:
            return None
        outputs, execution_ns = computed
        wanted = set(request.requested_output_names())
        if not wanted <= outputs.keys():
            return None
        tensors = [
            pb_utils.Tensor(name, outputs[name]) for name in self._entry.outputs if name in wanted
        ]
        return _Answer(pb_utils.InferenceResponse(tensors), job_class, execution_ns)
