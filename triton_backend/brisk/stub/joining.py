"""Joining of requests that Triton hands over in one call, into groups sent as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from brisk.stub.config.parameters import REALTIME

if TYPE_CHECKING:
    from brisk.stub.tensors import InputData

LONGEST_JOINED_NS = 20_000_000
"""The longest expected run of joined requests: a longer one keeps other models waiting, and gains
nothing by its length."""


class ReadRequest(NamedTuple):
    """A parsed request; its inputs are still in Triton's memory. ``rows``: the size of the batch
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
        """Return a key such that requests of equal keys may be joined; None if this one may not.

        A real-time request must not wait for other requests' rows, nor one with a deadline be late
        by them. One with a trace context is not joined. Strings have no rows of one size.
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
    """Requests that are sent as one, or one request that cannot be read.

    ``places``: their positions in Triton's call. ``asked``: the parsed requests; empty if not
    parsed yet. ``error``: why the request cannot be read.
    """

    places: list[int]
    requests: list[Any]
    asked: list[ReadRequest]
    error: Exception | None = None


def joined(alone: Sequence[Group], row_ns: float | None) -> list[Group]:
    """Join groups of one request where possible; return them in the order of their first requests.

    ``row_ns``: the time of a run per row; None if unknown. A group is not extended beyond
    ``LONGEST_JOINED_NS``.
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
