"""Which of the requests that come at once travel together."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from brisk.errors import InvalidRequestError
from brisk.protocol.records import TensorForm
from brisk.stub.joining import LONGEST_JOINED_NS, Group, ReadRequest, joined


class AnInput(NamedTuple):
    """What joining reads of an input: Triton's own module is not here."""

    form: TensorForm


def asked(
    rows: int = 1,
    width: int = 3,
    *,
    job_class: str = "normal",
    deadline_ns: int | None = None,
    agreement_ppm: int | None = None,
    outputs: tuple[str, ...] = ("y",),
    datatype: str = "FP32",
    trace_context: str = "",
) -> ReadRequest:
    inputs = [AnInput(TensorForm("x", datatype, (rows, width)))]
    return ReadRequest(
        job_class,
        agreement_ppm,
        deadline_ns,
        trace_context,
        inputs,  # type: ignore[arg-type]
        outputs,
        rows,
    )


def alone(given: list[ReadRequest | Exception]) -> list[Group]:
    return [
        Group([place], [place], [], each)
        if isinstance(each, Exception)
        else Group([place], [place], [each])
        for place, each in enumerate(given)
    ]


def places(given: list[ReadRequest | Exception], row_ns: float | None = None) -> list[list[int]]:
    groups = joined(alone(given), row_ns)
    for group in groups:
        assert group.requests == group.places, "each with its own"
    return [group.places for group in groups]


def test_those_that_are_alike_travel_together_whatever_their_rows() -> None:
    assert places([asked(1), asked(2), asked(4)]) == [[0, 1, 2]]


@pytest.mark.parametrize(
    "other",
    [
        asked(width=4),
        asked(job_class="besteffort"),
        asked(agreement_ppm=990_000),
        asked(outputs=("z",)),
    ],
    ids=["shape", "class", "agreement", "outputs"],
)
def test_others_make_groups_of_their_own_in_the_order_of_their_first(other: ReadRequest) -> None:
    assert places([asked(), other, asked(), other]) == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    "single",
    [
        asked(job_class="realtime"),
        asked(deadline_ns=5),
        asked(trace_context="{}"),
        asked(datatype="BYTES"),
        asked(rows=0),
    ],
    ids=["realtime", "time-out", "traced", "strings", "no rows"],
)
def test_some_go_alone(single: ReadRequest) -> None:
    assert places([single, single, asked(), asked()]) == [[0], [1], [2, 3]]


def test_one_that_cannot_be_read_keeps_its_error_and_the_others_go_on() -> None:
    error = InvalidRequestError("bad")
    groups = joined(alone([asked(), error, asked()]), None)
    assert [(group.places, group.error) for group in groups] == [([0, 2], None), ([1], error)]


def test_no_group_is_expected_to_take_long() -> None:
    many: list[ReadRequest | Exception] = [asked() for _ in range(8)]
    assert places(many, row_ns=LONGEST_JOINED_NS / 4) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert places(many, row_ns=2 * LONGEST_JOINED_NS) == [[each] for each in range(8)]
