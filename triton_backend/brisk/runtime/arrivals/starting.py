"""What a model starts by while its bytes are on their way: a prepared form, or its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from brisk.copies.connection import is_there
from brisk.copies.local import LocalCopy
from brisk.errors import ArtefactError, BriskError
from brisk.runtime.arrivals.arrival import ModelArrival
from brisk.runtime.log import LOGGER
from brisk.segments.source import Source

_File = TypeVar("_File")
"""A model's file as it was read, or None."""


def open_form(
    copy: LocalCopy, form: str, of_form: Callable[[Path], Source]
) -> tuple[Source | None, ModelArrival | None]:
    """Return the source and arrival of a model's prepared form that is still on its way when the
    model's own files are here. A small model's form arrives last, but waiting for it takes less
    time than a start without it. Return (None, None) if no form is on its way."""
    if copy.manifest.form_named(form) is None or not is_there():
        return None, None
    try:
        arrival = ModelArrival(copy)
    except (BriskError, OSError):
        return None, None
    try:
        taken = arrival.take_form(form, is_begun=True)
        if taken is not None:
            source = of_form(taken)
            arrival.expect(source)
            return source, arrival
    except (BriskError, OSError) as error:
        LOGGER.warning(f"{error}; the model's own file is used instead")
    arrival.close()
    return None, None


def open_arriving(
    copy: LocalCopy,
    form: str | None,
    of_sibling: Callable[[], tuple[_File, Source | None]],
    of_form: Callable[[Path], Source],
    of_weights: Callable[[_File], Source],
) -> tuple[Source, ModelArrival]:
    """Return the source that starts a model soonest while its bytes are on their way, and the
    arrival that its segments wait for.

    First choice: the form of another model of the same structure, for which only this model's
    weights are fetched. Second: the model's own prepared form, if one was published for this
    machine and comes sooner than what it saves. Else the weights in the model's file.

    ``form``: name of the form for this machine; None: forms are not wanted. ``of_sibling``:
    returns the model's file, read, and a sibling's form with its weights, if there is one. A
    segment's session is made only when its bytes are here, so requests, not the load, report what
    ONNX Runtime rejects. Raises UnavailableError if nothing can be fetched, and what reading does.
    """
    arrival = ModelArrival(copy)
    try:
        read, source = of_sibling()
        taken = arrival.take_form(form) if source is None and form is not None else None
        if taken is not None:
            try:
                source = of_form(taken)
            except ArtefactError as error:
                LOGGER.warning(f"{error}; its weights are fetched instead")
        if source is None:
            source = of_weights(read)
        arrival.expect(source)
    except BaseException:
        arrival.close()
        raise
    return source, arrival
