"""Requests of sequences: their sequence and step, and which of them are Triton's fillers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from brisk.errors import InvalidRequestError, UnavailableError
from brisk.protocol.records import SequenceStep
from brisk.stub.config.sequences import SequenceSettings

_START, _END = 1, 2
"""TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END of Triton's C interface."""

_MOST_FAILED = 4096


class Steps:
    """The sequence steps of one model instance's requests. Only Triton's thread uses it."""

    def __init__(self, settings: SequenceSettings) -> None:
        self._settings = settings
        self._failed: dict[str, None] = {}
        """The sequences whose first request did not reach the worker, which may still have the
        state of an earlier sequence with the same correlation id."""

    @staticmethod
    def is_filler(request: Any) -> bool:
        """Whether Triton's scheduler made this request, for a slot of a batch without a request.

        Only such a filler has no correlation id; its inputs are arbitrary memory.
        """
        return request.correlation_id() in (0, "")

    @contextlib.contextmanager
    def step(self, request: Any) -> Iterator[SequenceStep | None]:
        """Yield which step ``request`` is, to send it in the ``with`` block; None for a model
        without states, whose requests are independent.

        An exception in the block counts as a failed start if the request starts a sequence. Raises
        InvalidRequestError if the correlation id does not fit the control, and UnavailableError if
        the sequence's first request failed.
        """
        correlation_id, flags = request.correlation_id(), request.flags()
        step = SequenceStep(json.dumps(correlation_id), bool(flags & _START), bool(flags & _END))
        try:
            self._check_begun(step)
            self._check_control(request, correlation_id)
            yield step if self._settings.states else None
        except BaseException:
            if step.starts and not step.ends:
                self._fail(step.sequence)
            raise

    def _check_begun(self, step: SequenceStep) -> None:
        if step.starts:
            self._failed.pop(step.sequence, None)
        if self._settings.states and step.sequence in self._failed:
            if step.ends:
                del self._failed[step.sequence]
            raise UnavailableError(
                f"sequence {step.sequence} has not begun, since its first request was refused; "
                "begin it again, by a request with sequence_start"
            )

    def _fail(self, sequence: str) -> None:
        self._failed[sequence] = None
        if len(self._failed) > _MOST_FAILED:
            del self._failed[next(iter(self._failed))]

    def _check_control(self, request: Any, correlation_id: int | str) -> None:
        """Raise InvalidRequestError if the control tensor does not hold the correlation id: Triton
        puts other numbers there if its type cannot hold the id."""
        name = self._settings.correlation_input
        if name is None or name in self._settings.left_out:
            return
        for tensor in request.inputs():
            if tensor.name() == name:
                values = tensor.as_numpy().reshape(-1)
                if (
                    len(values) != 1
                    or isinstance(correlation_id, str)
                    or values[0] != correlation_id
                ):
                    raise InvalidRequestError(
                        f"the correlation id {json.dumps(correlation_id):.140} is no value of "
                        f"control '{name}', which is of type {values.dtype}"
                    )
