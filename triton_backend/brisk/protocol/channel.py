"""Encoding and transfer of records: one per message over a SEQPACKET Unix socket, some with a
descriptor.

Received values are checked field by field, by the annotations. Most records are JSON arrays in
ASCII, ``[kind, [field, field, …]]``: the standard library parses them in C, they can hold no code,
and a capture of the socket is readable.

The three records of every inference have a faster encoding: a byte that begins no JSON, then
numbers in fixed places, then, for ``Infer`` and ``Result``, the form as text. A known form costs
one lookup by its text, and the same text gives the same object.
"""

import array
import json
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from functools import lru_cache
from types import UnionType
from typing import Any, NamedTuple, NoReturn, get_args

from brisk import __version__
from brisk.errors import ProtocolError, named_error
from brisk.protocol.records import (
    PROTOCOL_VERSION,
    RECORD_TYPES,
    AttachSlab,
    ComputeInStub,
    Hello,
    Infer,
    InferForm,
    Record,
    Refused,
    Region,
    Release,
    Result,
    ResultForm,
    SequenceStep,
    Welcome,
)
from brisk.protocol.shared_memory import SlabChange, close_descriptors

MAX_RECORD_BYTES = 192 * 1024
"""The most bytes of a record, which fit the default send buffer of a Unix socket."""

MAX_INTEGER = 2**63 - 1

MAX_FORMS = 1024
MAX_FORM_BYTES = 4096
"""The longest form that is cached: longer ones are read anew each time, so that no peer can fill
the memory."""

JSON_TYPES = [record for record in RECORD_TYPES if record not in (Infer, Result, Release)]
"""The types of the records that are sent as JSON; a type's index is the number that begins such a
record."""

_KINDS = {record: kind for kind, record in enumerate(JSON_TYPES)}

_INFER, _RESULT, _RELEASE = 1, 2, 3
"""The first bytes of the three record types that are not sent as JSON."""

_HAS_DEADLINE, _IS_REPLAY = 1, 2

_HEAD = struct.Struct("<BBHI")
"""The beginning of an Infer or Result: first byte, flags, number of regions, bytes of the words
(``_Words``). 64-bit integers follow: the record's own, then slab, offset and size of each region;
then the words and the form."""

_INFER_NUMBERS, _RESULT_NUMBERS = 7, 4

_RELEASE_BYTES = struct.Struct("<Bq")

_write_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class _Words(NamedTuple):
    """The fields of an ``Infer`` that few requests have, sent as JSON."""

    trace_context: str
    step: SequenceStep | None


_NO_WORDS = _Words("", None)


def encode_record(record: Record) -> bytes:
    """Return a record's bytes. Raises ProtocolError if they exceed MAX_RECORD_BYTES, or a number
    in a record of an inference exceeds 64 bits.
    """
    try:
        if type(record) is Infer:
            data = _encode_infer(record)
        elif type(record) is Result:
            data = _encode_result(record)
        elif type(record) is Release:
            data = _RELEASE_BYTES.pack(_RELEASE, record.request)
        else:
            data = _write_json((_KINDS[type(record)], record)).encode("ascii")
    except struct.error as error:
        raise ProtocolError(f"a record cannot be sent: {error}") from error
    if len(data) > MAX_RECORD_BYTES:
        raise ProtocolError(
            f"a {type(record).__name__} record of {len(data)} bytes exceeds {MAX_RECORD_BYTES}"
        )
    return data


def decode_record(data: bytes | memoryview) -> Record:
    """Return the record in ``data``. Raises ProtocolError unless it is exactly one record."""
    first = data[0] if data else None
    try:
        if first == _INFER:
            return _decode_infer(data)
        if first == _RESULT:
            return _decode_result(data)
        if first == _RELEASE:
            return Release(_RELEASE_BYTES.unpack(data)[1])
        return _decode_json(data)
    # A value that can be parsed may still be nested too deeply to be checked or quoted.
    except (ValueError, RecursionError, struct.error) as error:
        raise ProtocolError(f"not a record: {error}") from error


def _decode_json(data: bytes | memoryview) -> Record:
    document = _read_json(data)
    if type(document) is not list or len(document) != 2:
        raise ProtocolError("not a record: expected [kind, fields]")
    kind, fields = document
    if type(kind) is not int or not 0 <= kind < len(JSON_TYPES):
        raise ProtocolError(f"unknown record kind {kind!r:.80}")
    record: Record = checked(fields, JSON_TYPES[kind])
    return record


def _read_json(data: bytes | memoryview) -> Any:
    return json.loads(str(data, "ascii"))


def checked(value: Any, annotation: Any) -> Any:
    """Convert ``value``, which ``json`` has read, to an object of the annotated type.

    Types are int, str, bool, a named tuple of such, a tuple of any number of one of these, or an
    optional one. Raises ProtocolError for any other value.
    """
    if annotation is int:
        if type(value) is not int or not -MAX_INTEGER <= value <= MAX_INTEGER:
            _refuse("a 64-bit integer", value)
        return value
    if annotation is str or annotation is bool:
        if type(value) is not annotation:
            _refuse(annotation.__name__, value)
        return value
    if isinstance(annotation, UnionType):
        return None if value is None else checked(value, get_args(annotation)[0])
    if hasattr(annotation, "_fields"):
        fields = annotation.__annotations__
        if type(value) is not list or len(value) != len(fields):
            raise ProtocolError(f"expected the {len(fields)} fields of {annotation.__name__}")
        return annotation(*map(checked, value, fields.values()))
    if type(value) is not list:
        _refuse("a list", value)
    element = get_args(annotation)[0]
    return tuple([checked(each, element) for each in value])


def _refuse(expected: str, value: Any) -> NoReturn:
    raise ProtocolError(f"expected {expected}, got {value!r:.80}")


# The records of every inference.


@lru_cache(MAX_FORMS)
def _form_text(form: InferForm | ResultForm) -> bytes:
    return _write_json(form).encode("ascii")


@lru_cache(MAX_FORMS)
def _form(text: bytes, kind: type) -> Any:
    return checked(_read_json(text), kind)


def _read_form(text: bytes, kind: Any) -> Any:
    return _form(text, kind) if len(text) <= MAX_FORM_BYTES else _form.__wrapped__(text, kind)


def _encode_infer(record: Infer) -> bytes:
    words = b""
    if record.step is not None or record.trace_context:
        words = _write_json((record.trace_context, record.step)).encode("ascii")
    flags = 0 if record.deadline_ns is None else _HAS_DEADLINE
    if record.is_replay:
        flags |= _IS_REPLAY
    own = (record.request, record.deadline_ns or 0, record.arrived_ns, record.requests)
    numbers = (*own, *record.mark)
    head = (_INFER, flags, len(record.regions), len(words))
    return _pack(head, numbers, record.regions) + words + _form_text(record.form)


def _encode_result(record: Result) -> bytes:
    numbers = (record.request, record.queue_ns, record.execution_ns, record.started_ns)
    head = (_RESULT, 0, len(record.regions), 0)
    return _pack(head, numbers, record.regions) + _form_text(record.form)


def _decode_infer(data: bytes | memoryview) -> Infer:
    flags, numbers, said, text = _unpack(data, _INFER_NUMBERS)
    form: InferForm = _read_form(text, InferForm)
    request, deadline_ns, arrived_ns, requests, slab, offset, size, *places = numbers
    regions = _regions(places, len(form.inputs))
    words = checked(_read_json(said), _Words) if said else _NO_WORDS
    if flags & ~(_HAS_DEADLINE | _IS_REPLAY):
        raise ProtocolError(f"flags {flags:#x} of a request are unknown")
    return Infer(
        request,
        form,
        regions,
        Region(slab, offset, size),
        deadline_ns if flags & _HAS_DEADLINE else None,
        bool(flags & _IS_REPLAY),
        words.trace_context,
        arrived_ns,
        words.step,
        requests,
    )


def _decode_result(data: bytes | memoryview) -> Result:
    flags, numbers, said, text = _unpack(data, _RESULT_NUMBERS)
    form: ResultForm = _read_form(text, ResultForm)
    request, queue_ns, execution_ns, started_ns, *places = numbers
    if flags or said:
        raise ProtocolError("an answer has neither flags nor words")
    regions = _regions(places, len(form.outputs))
    return Result(request, form, regions, queue_ns, execution_ns, started_ns)


@lru_cache(256)
def _layout(numbers: int) -> struct.Struct:
    return struct.Struct(f"{_HEAD.format}{numbers}q")


def _pack(
    head: tuple[int, int, int, int], numbers: tuple[int, ...], regions: Sequence[Region]
) -> bytes:
    for region in regions:
        numbers += region
    return _layout(len(numbers)).pack(*head, *numbers)


def _unpack(data: bytes | memoryview, numbers: int) -> tuple[int, tuple[int, ...], bytes, bytes]:
    """Return the flags, all numbers, the words and the form's text of a record of an inference.
    Raises ProtocolError."""
    if len(data) < _HEAD.size:
        raise ProtocolError(f"not a record: {len(data)} bytes")
    _, flags, regions, words_bytes = _HEAD.unpack_from(data)
    layout = _layout(numbers + 3 * regions)
    end = layout.size + words_bytes
    if len(data) <= end:
        raise ProtocolError(f"not a record: {regions} regions in {len(data)} bytes")
    return flags, layout.unpack_from(data)[4:], bytes(data[layout.size : end]), bytes(data[end:])


def _regions(places: Sequence[int], count: int) -> tuple[Region, ...]:
    if len(places) != 3 * count:
        raise ProtocolError(f"{len(places) // 3} regions for {count} tensors")
    if count == 1:
        return (Region(*places),)
    return tuple(Region(*places[start : start + 3]) for start in range(0, 3 * count, 3))


# Messages over the socket.

_CREDENTIALS = struct.Struct("3i")
_ANCILLARY_BYTES = socket.CMSG_SPACE(2 * array.array("i").itemsize)
"""The room for two descriptors: one more than any record carries, so that a surplus is noticed."""

_WITH_DESCRIPTOR = (AttachSlab, ComputeInStub)

# Plain numbers: two operations of enum.Flag a record take 3 us.
_WAITING = int(socket.MSG_CMSG_CLOEXEC)
_NOT_WAITING = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_CUT_SHORT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def check_peer(connection: socket.socket) -> int:
    """Return the process number of the connection's other end, as the kernel attests it.

    Raises ProtocolError unless that process runs as this process's user.
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    if user != os.geteuid():
        raise ProtocolError(f"process {pid} of user {user} is not user {os.geteuid()}")
    return int(pid)


def send_bytes(connection: socket.socket, data: bytes, descriptor: int | None) -> None:
    """Send one message. Raises OSError as the socket does (BlockingIOError if it is full)."""
    if descriptor is None:
        connection.send(data)
    else:
        socket.send_fds(connection, [data], [descriptor])


def send_record(connection: socket.socket, record: Record, descriptor: int | None = None) -> None:
    """Send ``record`` as one message. Raises as ``encode_record`` and ``send_bytes`` do."""
    send_bytes(connection, encode_record(record), descriptor)


class Receiver:
    """A receiver of records from one connection, with its own buffer, of which only as much is in
    memory as the longest record has taken. Used by one thread at a time."""

    __slots__ = ("_buffer", "_buffers", "_connection")

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = memoryview(mmap.mmap(-1, MAX_RECORD_BYTES, _PRIVATE))
        self._buffers = (self._buffer,)

    def receive(self, *, wait: bool = True) -> tuple[Record, int | None]:
        """Return the next record, and the descriptor that came with it, if any; the caller owns
        it.

        Raises EOFError if the other end has closed, ProtocolError for a malformed record, OSError
        as the socket does: without ``wait``, BlockingIOError if there is no record.
        """
        size, ancillary, flags, _ = self._connection.recvmsg_into(
            self._buffers, _ANCILLARY_BYTES, _WAITING if wait else _NOT_WAITING
        )
        descriptors = _descriptors(ancillary) if ancillary else []
        try:
            if not size:
                raise EOFError("the connection is closed")
            if flags & _CUT_SHORT:
                raise ProtocolError(f"a message of more than {MAX_RECORD_BYTES} bytes")
            record = decode_record(self._buffer[:size])
            if len(descriptors) != isinstance(record, _WITH_DESCRIPTOR):
                raise ProtocolError(f"{type(record).__name__} with {len(descriptors)} descriptors")
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return record, descriptors[0] if descriptors else None


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    received = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(data[: len(data) - len(data) % received.itemsize])
    return list(received)


def send_changes(connection: socket.socket, changes: Sequence[SlabChange]) -> None:
    """Send records that announce ``changes``, and close their descriptors. Raises as
    ``send_bytes`` does."""
    try:
        for record, descriptor in changes:
            send_record(connection, record, descriptor)
    finally:
        close_descriptors(changes)


def greet(
    connection: socket.socket, server: int = 0, settings: tuple[str, ...] | None = None
) -> Welcome:
    """Exchange greetings with a worker over a new connection; return its Welcome.

    ``server``: the process number of a stub's tritonserver; ``settings`` as in ``Hello``. Raises
    the error with which the worker refuses, ProtocolError if it runs as another user or sends
    another record, OSError and EOFError as the socket does.
    """
    check_peer(connection)
    send_record(connection, Hello(PROTOCOL_VERSION, __version__, os.getpid(), server, settings))
    answer, _ = Receiver(connection).receive()
    if isinstance(answer, Refused):
        raise named_error(answer.code, answer.message)
    if not isinstance(answer, Welcome):
        kind = type(answer).__name__
        raise ProtocolError(f"expected Welcome, but the worker answers {kind} to a greeting")
    return answer
