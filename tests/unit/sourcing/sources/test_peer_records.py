"""A peer's record of a copy, as bytes from anybody: taken, or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brisk.errors import ProtocolError
from brisk.sourcing.policies.choosing import PeerReport
from brisk.sourcing.policies.stretches import Layout, Stretch
from brisk.sourcing.sources.peers import read_report, write_report
from support.remote.published import publish


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    published = publish(tmp_path_factory.mktemp("p"), 1_000_000, chunk_bytes=1 << 16)
    return Layout(published.manifest)


REPORT = PeerReport("b", 0b1011, True, (Stretch(2, 3), Stretch(4, 9)), 61e6, 2, ("a", "c"))
REFUSALS = (ValueError, TypeError, KeyError, AttributeError, ProtocolError)
"""The errors that ``PeerCopy`` takes for a peer that tells nonsense."""

NAMES = ["here", "next", "identity", "path", "bytes_per_s", "receivers", "fetching", "count"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def record(layout: Layout) -> dict[str, Any]:
    written = json.loads(json.dumps(write_report(REPORT, layout, 7)))
    assert isinstance(written, dict)
    return written


def test_what_is_told_is_read_again(layout: Layout) -> None:
    assert read_report(record(layout), layout) == REPORT
    assert record(layout)["count"] == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("here", "AAAAAAAA"),
        ("here", "A" * 1_000_000),
        ("here", "////"),
        ("next", [[3, 3]]),
        ("next", [[5, 2]]),
        ("next", [[0, 1_000_000]]),
        ("next", [[-1, 2]]),
        ("next", [[0, 1]] * 65),
        ("next", [[0, 1, 2]]),
        ("identity", "x" * 257),
        ("identity", None),
        ("path", ["x"] * 65),
        ("path", [3]),
        ("bytes_per_s", -1.0),
        ("bytes_per_s", float("nan")),
        ("bytes_per_s", 1e300),
        pytest.param("bytes_per_s", 10**400, id="bytes_per_s-no float holds"),
        ("bytes_per_s", "12"),
        ("receivers", -1),
        ("receivers", True),
        ("receivers", 1 << 70),
    ],
)
def test_what_contradicts_the_manifest_or_itself_is_refused(
    layout: Layout, name: str, value: object
) -> None:
    with pytest.raises(REFUSALS):
        read_report(record(layout) | {name: value}, layout)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "count"])
def test_what_is_left_out_is_refused(layout: Layout, name: str) -> None:
    report = record(layout)
    del report[name]  # the count is read by who asks
    with pytest.raises(REFUSALS):
        read_report(report, layout)


@settings(max_examples=500, deadline=None)
@given(name=st.sampled_from(NAMES), value=JSON)
def test_any_value_anywhere_is_a_consistent_record_or_refused(
    layout: Layout, name: str, value: object
) -> None:
    try:
        report = read_report(record(layout) | {name: value}, layout)
    except REFUSALS:
        return
    assert report.here >> layout.count == 0
    assert all(0 <= start < end <= layout.count for start, end in report.next)
    assert 0 <= report.bytes_per_s < 1e15


def test_a_list_is_no_record(layout: Layout) -> None:
    with pytest.raises(REFUSALS):
        read_report(json.loads("[]"), layout)
