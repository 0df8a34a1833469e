"""Requests that Triton hands over at once, and which of them travel together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from brisk.protocol.records import TensorForm
from brisk.stub.config.parameters import REALTIME

LONGEST_JOINED_NS = 20_000_000
"""Expected of a run: a longer one keeps other models waiting, and gains nothing by its length."""


class InputData(NamedTuple):
    """``content``: row-major; serialised strings as uint8."""

    form: TensorForm
    content: np.ndarray

    def write(self, memory: memoryview) -> None:
        """Copy into ``memory``, of as many bytes."""
        np.copyto(np.frombuffer(memory, self.content.dtype), self.content.reshape(-1))


class ReadRequest(NamedTuple):
    """A request as it is read; its inputs are still in Triton's memory."""

    request: Any
    job_class: str
    agreement_ppm: int | None
    deadline_ns: int | None
    trace_context: str
    inputs: Sequence[InputData]
    outputs: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Of the batch dimension; 0 without one."""
        shape = self.inputs[0].form.shape if self.inputs else ()
        return shape[0] if shape else 0

    def joins_as(self) -> tuple[object, ...] | None:
        """Those of equal keys may travel together; None: it goes alone.

        A real-time request is not to wait for another one's rows, one with a deadline not to be
        late by them; strings have no rows of one size.
        """
        if self.job_class == REALTIME or self.deadline_ns is not None or self.trace_context:
            return None
        rows = self.rows
        if not rows:
            return None
        key: list[object] = [self.job_class, self.agreement_ppm, self.outputs]
        for name, datatype, shape in (each.form for each in self.inputs):
            if datatype == "BYTES" or not shape or shape[0] != rows:
                return None
            key += (name, datatype, shape[1:])
        return tuple(key)


class Group(NamedTuple):
    """Requests that travel together, and where they stand among those that came; or one that
    cannot be read, and why.
    """

    places: list[int]
    requests: list[Any]
    asked: list[ReadRequest]
    error: Exception | None = None

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.asked)


def grouped(
    requests: Sequence[Any],
    read: Callable[[Any], ReadRequest],
    row_ns: float | None,
    *,
    may_join: bool,
) -> list[Group]:
    """All of ``requests``, in the order in which the first of each group came.

    ``read``: raises what is wrong with one. ``row_ns``: what a run takes for a row; None: unknown.
    """
    groups: list[Group] = []
    joined: dict[tuple[object, ...], Group] = {}
    may_join = may_join and len(requests) > 1
    for place, request in enumerate(requests):
        try:
            asked = read(request)
        except Exception as error:  # noqa: BLE001  # it is answered with what is wrong
            groups.append(Group([place], [request], [], error))
            continue
        key = asked.joins_as() if may_join else None
        group = None if key is None else joined.get(key)
        if group is not None and (group.rows + asked.rows) * (row_ns or 0) > LONGEST_JOINED_NS:
            group = None
        if group is None:
            group = Group([], [], [])
            groups.append(group)
            if key is not None:
                joined[key] = group
        group.places.append(place)
        group.requests.append(request)
        group.asked.append(asked)
    return groups
