"""Records survive the wire; whatever else comes over it is refused as a ProtocolError."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brisk.errors import ProtocolError
from brisk.protocol.channel import (
    JSON_TYPES,
    MAX_FORM_BYTES,
    MAX_FORMS,
    MAX_RECORD_BYTES,
    decode_record,
    encode_record,
)
from brisk.protocol.records import (
    RECORD_TYPES,
    AskStatus,
    AttachSlab,
    Cancel,
    Hello,
    Infer,
    InferForm,
    Log,
    Record,
    Region,
    Release,
    Result,
    ResultForm,
    TensorForm,
)
from support.records import records_of

REGION = Region(3, 64, 100)
FORM = InferForm(0, (TensorForm("x", "FP32", (1, 25)),), ("y",), "normal")
INFER = Infer(request=7, form=FORM, regions=(REGION,), mark=REGION)
RESULT = Result(7, ResultForm(FORM.inputs), (REGION,), 1, 2, 3)


@pytest.mark.parametrize("record", RECORD_TYPES, ids=lambda record: record.__name__)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_each_kind_of_record_comes_back_as_it_was(record: type, data: st.DataObject) -> None:
    made = data.draw(records_of(record))
    returned = decode_record(encode_record(made))
    assert (type(returned), returned) == (record, made)


def test_a_usual_request_is_a_short_record() -> None:
    assert len(encode_record(INFER)) < 300


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
@example(b"\x03" + bytes(8))
def test_arbitrary_bytes_are_refused_but_for_a_release_s_own(data: bytes) -> None:
    """Which is one byte and a number, whatever that is."""
    try:
        record = decode_record(data)
    except ProtocolError:
        return
    assert type(record) is Release
    assert len(data) == 9
    assert encode_record(record) == data


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(st.integers(-2, len(RECORD_TYPES) + 2), JSON_VALUES)
def test_arbitrary_documents_are_records_or_refused(kind: int, body: object) -> None:
    data = json.dumps([kind, body]).encode()
    try:
        record = decode_record(data)
    except ProtocolError:
        return
    returned = decode_record(encode_record(record))
    assert (type(returned), returned) == (type(record), record)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a record"),
        (b"{}", r"expected \[kind, fields\]"),
        (b"[0]", r"expected \[kind, fields\]"),
        (b"[99,[]]", "unknown record kind 99"),
        (b"[-1,[]]", "unknown record kind -1"),
        (b"[true,[]]", "unknown record kind True"),
        (b"[0,[1,2]]", "5 fields of Hello"),
        (b'[0,[1,"a",true,1,null]]', "expected a 64-bit integer, got True"),
        (b'[0,[1,"a",1.0,1,null]]', "expected a 64-bit integer, got 1.0"),
        (b'[0,[1,"a",9223372036854775808,1,null]]', "expected a 64-bit integer"),
        (b"[0,[1,2,3,4,null]]", "expected str, got 2"),
        (b'[0,[1,"a",NaN,1,null]]', "expected a 64-bit integer, got nan"),
        (b"[0," + b"9" * 5000 + b"]", "not a record"),
    ],
)
def test_a_refusal_names_what_was_expected(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_record(data)


def test_deep_nesting_is_refused_at_every_depth() -> None:
    """Also where the document can just be parsed, but not shown in a message any more."""
    limit = sys.getrecursionlimit()
    for depth in [*range(limit - 120, limit + 20), 50_000]:
        nested = b"[" * depth + b"]" * depth
        with pytest.raises(ProtocolError):
            decode_record(b'[0,[1,"a",' + nested + b",1]]")


def test_a_record_longer_than_a_message_is_refused_by_its_sender() -> None:
    with pytest.raises(ProtocolError, match=f"Log record of .* exceeds {MAX_RECORD_BYTES}"):
        encode_record(Log("info", "x" * MAX_RECORD_BYTES))


@pytest.mark.parametrize(
    "record",
    [
        Hello(1, "1.0", 5, 1),
        AttachSlab(1, 2),
        Cancel(1),
        AskStatus(1),
    ],
    ids=lambda record: type(record).__name__,
)
def test_records_are_ascii_arrays_that_begin_with_their_kind(record: Record) -> None:
    data = encode_record(record)
    assert data.isascii()
    assert json.loads(data)[0] == JSON_TYPES.index(type(record))


@pytest.mark.parametrize("record", [INFER, RESULT], ids=["Infer", "Result"])
def test_what_comes_again_in_the_same_form_has_the_same_object_as_form(record: Record) -> None:
    first, second = (decode_record(encode_record(record)) for _ in range(2))
    assert isinstance(first, (Infer, Result))
    assert isinstance(second, (Infer, Result))
    assert first.form is second.form


def test_forms_that_differ_are_not_taken_for_each_other() -> None:
    for number in range(2 * MAX_FORMS):  # more than are remembered
        record = INFER._replace(form=FORM._replace(outputs=(f"y{number}",)))
        assert decode_record(encode_record(record)) == record


def test_long_forms_are_not_remembered() -> None:
    form = FORM._replace(outputs=("y" * MAX_FORM_BYTES,))
    first, second = (decode_record(encode_record(INFER._replace(form=form))) for _ in range(2))
    assert isinstance(first, Infer)
    assert isinstance(second, Infer)
    assert first == second
    assert first.form is not second.form


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01", "not a record: 1 bytes"),
        (encode_record(INFER)[:40], "1 regions in 40 bytes"),
        (encode_record(INFER)[:-1], "not a record"),
        (encode_record(INFER) + b"]", "not a record"),
        (encode_record(RESULT)[:60], "1 regions in"),
        (b"\x01\x80" + encode_record(INFER)[2:], "flags 0x80"),
        (b"\x02\x01" + encode_record(RESULT)[2:], "neither flags"),
        (
            encode_record(INFER._replace(trace_context="t")).replace(b'"t"', b"  7"),
            "expected str, got 7",
        ),
        (b"\x03", "not a record"),
        (encode_record(Release(1)) + b"]", "not a record"),
        (encode_record(INFER).replace(b'["y"]', b'["y",1]'), "expected str, got 1"),
        (encode_record(INFER).replace(b'[["x","FP32",[1,25]]]', b"[]"), "1 regions for 0 tensors"),
    ],
)
def test_a_refused_inference_names_what_was_expected(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_record(data)


def test_a_number_of_more_than_64_bits_is_refused_by_its_sender() -> None:
    with pytest.raises(ProtocolError, match="cannot be sent"):
        encode_record(INFER._replace(request=2**63))
