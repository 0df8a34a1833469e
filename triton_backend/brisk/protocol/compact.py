"""Infer and Result as bytes: numbers in fixed places, then the form as text, read once.

A message begins with its kind, a byte that begins no JSON. The text of a form is the key under
which its object is remembered, so a form that came before costs one look-up, and the same bytes
always give the same object.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from brisk.errors import ProtocolError
from brisk.protocol.coders import Coders
from brisk.protocol.identity_cache import ByIdentity
from brisk.protocol.inference import Infer, InferForm, Region, Result, ResultForm, SequenceStep

INFER, RESULT = 1, 2
"""First bytes of the two messages."""

MAX_FORMS = 1024
MAX_FORM_BYTES = 4096
"""Longer forms are read anew each time, so that no peer can fill the memory with them."""

_HAS_DEADLINE, _IS_REPLAY, _STARTS, _ENDS = 1, 2, 4, 8

_HEAD = struct.Struct("<BBHI")
"""Kind, flags, regions, bytes of what is said in words: the trace context, or a list of it and a
sequence. 64-bit integers follow: the record's own, then slab, offset and size of each region."""

_INFER_NUMBERS, _RESULT_NUMBERS = 6, 4

Form = TypeVar("Form")

_CODERS = Coders()


class _Forms(Generic[Form]):
    """Remembers forms by their text and texts by their form. Any thread."""

    def __init__(self, kind: type[Form]) -> None:
        self._kind = kind
        self.text = ByIdentity(self._write, MAX_FORMS)
        """A form in ASCII."""
        self._by_text: dict[bytes, Form] = {}

    def form(self, text: bytes) -> Form:
        """The form that ``text`` describes, the same object each time.

        Raises ProtocolError for anything else than a form.
        """
        known = self._by_text.get(text)
        if known is not None:
            return known
        form: Form = _CODERS.decoder(self._kind)(parse_json(text))
        if len(text) <= MAX_FORM_BYTES:
            if len(self._by_text) >= MAX_FORMS:
                self._by_text.clear()
            self._by_text[text] = form
        return form

    def _write(self, form: Form) -> bytes:
        return _CODERS.encoder(self._kind)(form).encode("ascii")


_infer_forms = _Forms(InferForm)
_result_forms = _Forms(ResultForm)


def parse_json(data: bytes | memoryview) -> Any:
    """The document in ``data``; ProtocolError where it is none, or not in ASCII."""
    try:
        return json.loads(str(data, "ascii"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a record: {error}") from error


def encode_infer(record: Infer) -> bytes:
    """Raises ProtocolError where the record is none that can be decoded again."""
    deadline_ns, mark, words = record.deadline_ns, record.mark, b""
    flags = 0 if deadline_ns is None else _HAS_DEADLINE
    if record.is_replay:
        flags |= _IS_REPLAY
    if record.step is not None:
        flags |= _STARTS * record.step.starts | _ENDS * record.step.ends
        words = json.dumps([record.trace_context, record.step.sequence]).encode("ascii")
    elif record.trace_context:
        words = json.dumps(record.trace_context).encode("ascii")
    own = (record.request, deadline_ns or 0, record.arrived_ns)
    numbers = (*own, mark.slab, mark.offset, mark.size)
    head = _pack((INFER, flags, len(record.regions), len(words), *numbers), record.regions)
    return head + words + _infer_forms.text(record.form)


def encode_result(record: Result) -> bytes:
    """Raises ProtocolError where the record is none that can be decoded again."""
    numbers = (record.request, record.queue_ns, record.execution_ns, record.started_ns)
    head = _pack((RESULT, 0, len(record.regions), 0, *numbers), record.regions)
    return head + _result_forms.text(record.form)


def decode_infer(data: bytes | memoryview) -> Infer:
    """Raises ProtocolError for anything that is not exactly one such record."""
    (_, flags, _, _, *numbers), words, text = _unpack(data, _INFER_NUMBERS)
    form = _infer_forms.form(text)
    request, deadline_ns, arrived_ns, slab, offset, size, *places = numbers
    regions = _regions(places, len(form.inputs))
    known = _HAS_DEADLINE | _IS_REPLAY
    context, step = parse_json(words) if words else "", None
    if type(context) is list and len(context) == 2 and type(context[1]) is str:
        step = SequenceStep(context[1], bool(flags & _STARTS), bool(flags & _ENDS))
        context, known = context[0], known | _STARTS | _ENDS
    if flags & ~known:
        raise ProtocolError(f"flags {flags:#x} of a request are unknown")
    if type(context) is not str:
        raise ProtocolError(f"expected a trace context, got {context!r:.80}")
    return Infer(
        request,
        form,
        regions,
        Region(slab, offset, size),
        deadline_ns if flags & _HAS_DEADLINE else None,
        bool(flags & _IS_REPLAY),
        context,
        arrived_ns,
        step,
    )


def decode_result(data: bytes | memoryview) -> Result:
    """Raises ProtocolError for anything that is not exactly one such record."""
    (_, flags, _, _, *numbers), trace, text = _unpack(data, _RESULT_NUMBERS)
    form = _result_forms.form(text)
    request, queue_ns, execution_ns, started_ns, *places = numbers
    if flags or trace:
        raise ProtocolError("an answer has neither flags nor a trace context")
    regions = _regions(places, len(form.outputs))
    return Result(request, form, regions, queue_ns, execution_ns, started_ns)


@lru_cache(maxsize=256)
def _layout(numbers: int) -> struct.Struct:
    return struct.Struct(f"{_HEAD.format}{numbers}q")


def _pack(numbers: tuple[int, ...], regions: Sequence[Region]) -> bytes:
    for region in regions:
        numbers += (region.slab, region.offset, region.size)
    try:
        return _layout(len(numbers) - 4).pack(*numbers)
    except struct.error as error:
        raise ProtocolError(f"a record cannot be sent: {error}") from error


def _unpack(data: bytes | memoryview, numbers: int) -> tuple[tuple[int, ...], bytes, bytes]:
    """All numbers, those of the head first; the trace context; the form's text."""
    if len(data) < _HEAD.size:
        raise ProtocolError(f"not a record: {len(data)} bytes")
    _, _, count, trace_bytes = _HEAD.unpack_from(data)
    layout = _layout(numbers + 3 * count)
    end = layout.size + trace_bytes
    if len(data) <= end:
        raise ProtocolError(f"not a record: {count} regions in {len(data)} bytes")
    trace = bytes(data[layout.size : end]) if trace_bytes else b""
    return layout.unpack_from(data), trace, bytes(data[end:])


def _regions(places: Sequence[int], count: int) -> tuple[Region, ...]:
    if len(places) != 3 * count:
        raise ProtocolError(f"{len(places) // 3} regions for {count} tensors")
    if count == 1:
        return (Region(*places),)
    return tuple(Region(*places[start : start + 3]) for start in range(0, 3 * count, 3))
