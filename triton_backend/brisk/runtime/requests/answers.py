"""Answers as records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brisk.errors import BriskError, InternalError
from brisk.protocol.records import Failure, LoadFailed, Region, Result, ResultForm
from brisk.runtime.requests.tensors import write_tensors
from brisk.runtime.worker.batch import Request
from brisk.segments.values import Value

MAX_MESSAGE_CHARACTERS = 4096
MAX_EXITS_CHARACTERS = 1000


def load_failed(model: int, error: BriskError) -> LoadFailed:
    """The error as a record, its message cut to a bounded length: it may quote the model."""
    return LoadFailed(model, error.code, str(error)[:MAX_MESSAGE_CHARACTERS])


def failure(request: int, error: Exception) -> Failure:
    """The error as a record, its message cut to a bounded length."""
    code = error.code if isinstance(error, BriskError) else InternalError.code
    return Failure(request, code, str(error)[:MAX_MESSAGE_CHARACTERS])


def result(
    request: Request,
    values: Mapping[str, Value],
    timing_ns: tuple[int, int, int],
    answerers: Sequence[str] = (),
) -> tuple[Region | None, Result]:
    """The values in the peer's arena, and the region to free when it has read them.

    ``timing_ns``: time queued, time executing, and when that began. ``answerers``: who answered
    each row, where exits did. Raises as ``write_tensors`` does.
    """
    region, forms, regions = write_tensors(values, request.peer.arena)
    form = ResultForm(forms, exits_in_words(answerers) if answerers else "")
    return region, Result(request.record.request, form, regions, *timing_ns)


def exits_in_words(answerers: Sequence[str]) -> str:
    """One name for all rows, else one for each; cut to a bounded length."""
    names = answerers[:1] if len(set(answerers)) == 1 else answerers
    text = ", ".join(names)
    if len(text) <= MAX_EXITS_CHARACTERS:
        return text
    return text[:MAX_EXITS_CHARACTERS].rsplit(", ", 1)[0] + ", …"
