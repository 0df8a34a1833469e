"""Whatever parameters a request brings: it is understood or refused, and harms no other one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brisk.errors import InvalidRequestError
from brisk.protocol.channel import decode_record, encode_record
from brisk.protocol.records import Infer, InferForm, Region
from brisk.stub.config.parameters import (
    JOB_CLASSES,
    LONGEST_TIMEOUT_US,
    MILLION,
    parse_parameters,
    request_agreement,
    request_class,
    request_deadline_ns,
)

LONGEST_MESSAGE = 250
UINT64 = 2**64 - 1

names = st.sampled_from(["brisk_class", "brisk_early_exit", "brisk_accuracy"]) | st.text(
    max_size=2000
).map(lambda text: f"brisk_{text}")
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=2000)
    | st.sampled_from([*JOB_CLASSES, "1e400", "nan", "-0.0", "0x1", " true ", 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(st.dictionaries(names, values, max_size=4))
def test_parameters_are_understood_or_refused_in_a_short_message(
    parameters: dict[str, object],
) -> None:
    refusal = ""
    try:
        assert request_class(parameters, parse_parameters({})) in ("normal", "besteffort")
        agreement = request_agreement(parameters)
        assert agreement is None or 0 <= agreement <= MILLION
    except InvalidRequestError as error:
        refusal = str(error)
    assert len(refusal) < LONGEST_MESSAGE


@given(st.integers(0, 2**62), st.integers(-(2**63), UINT64))
@pytest.mark.parametrize("longest", [None, LONGEST_TIMEOUT_US, LONGEST_TIMEOUT_US + 1, UINT64])
def test_a_request_of_any_time_out_is_a_record_that_the_worker_takes(
    longest: int | None, arrived_ns: int, timeout_us: int
) -> None:
    """A worker drops who sends it anything else, and that would be the whole model instance."""
    deadline_ns = request_deadline_ns(arrived_ns, timeout_us if longest is None else longest)
    record = Infer(1, InferForm(0, (), ("y",), "normal"), (), Region(0, 0, 64), deadline_ns)
    assert decode_record(encode_record(record)) == record


def test_a_time_out_is_kept_to_the_microsecond() -> None:
    assert request_deadline_ns(7, 20_000) == 20_000_007
    assert request_deadline_ns(7, 0) is None
