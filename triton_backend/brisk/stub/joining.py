"""Requests that Triton hands over at once, and which of them travel together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brisk.stub.config.parameters import REALTIME

if TYPE_CHECKING:
    from brisk.stub.tensors import InputData

LONGEST_JOINED_NS = 20_000_000
"""Expected of a run: a longer one keeps other models waiting, and gains nothing by its length."""


class ReadRequest(NamedTuple):
    """A request as it is read; its inputs are still in Triton's memory. ``rows``: of the batch
    dimension; 0 without one.
    """

    job_class: str
    agreement_ppm: int | None
    deadline_ns: int | None
    trace_context: str
    inputs: Sequence[InputData]
    outputs: tuple[str, ...]
    rows: int

    def joins_as(self) -> tuple[object, ...] | None:
        """Return a key: requests of equal keys may travel together; None: this one goes alone.

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
    cannot be read, and why. ``asked``: as they are read; empty where they are yet to be.
    """

    places: list[int]
    requests: list[Any]
    asked: list[ReadRequest]
    error: Exception | None = None


def joined(alone: Sequence[Group], row_ns: float | None) -> list[Group]:
    """Groups of one, put together where they may, in the order in which the first of each came.

    ``row_ns``: what a run takes for a row; None: unknown.
    """
    groups: list[Group] = []
    rows: dict[tuple[object, ...], int] = {}
    latest: dict[tuple[object, ...], Group] = {}
    for one in alone:
        key = one.asked[0].joins_as() if one.asked else None
        if key is None:
            groups.append(one)
            continue
        request = one.asked[0]
        total = rows.get(key, 0) + request.rows
        if key not in latest or total * (row_ns or 0) > LONGEST_JOINED_NS:
            latest[key], rows[key] = one, request.rows
            groups.append(one)
            continue
        rows[key] = total
        group = latest[key]
        group.places.extend(one.places)
        group.requests.extend(one.requests)
        group.asked.append(request)
    return groups
