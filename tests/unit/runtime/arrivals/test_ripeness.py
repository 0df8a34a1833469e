"""When a run may begin that is to find each segment's bytes here when it comes to it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brisk.runtime.arrivals.arrival import is_ripe


@pytest.mark.parametrize(
    ("missing", "run_s", "bytes_per_s", "expected"),
    [
        ([0, 0, 0], [0.1, 0.1, 0.1], 0.0, True),  # all is here, at whatever rate it came
        ([0, 0, 10], [0.1, 0.1, 0.1], 0.0, False),  # nobody knows when it comes
        ([0, 0, 10], [0.1, 0.1, 0.1], 50.0, True),  # 0.2 s, which two segments take
        ([0, 0, 11], [0.1, 0.1, 0.1], 50.0, False),
        ([0, 5, 5], [0.1, 0.1, 0.1], 50.0, True),  # one after the other
        ([0, 6, 4], [0.1, 0.1, 0.1], 50.0, False),  # the second is late by itself
        ([1, 0, 0], [0.1, 0.1, 0.1], 1e9, False),  # the first is reached at once
        ([0, 0, 1], [0.0, 0.0, 0.0], 1e9, False),  # nobody has measured
    ],
)
def test_a_run_begins_when_bytes_come_no_later_than_it_reaches_them(
    missing: list[int], run_s: list[float], bytes_per_s: float, expected: bool
) -> None:
    assert is_ripe(missing, run_s, bytes_per_s) is expected


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 1)), min_size=1, max_size=8),
    st.floats(1, 1e4),
)
def test_a_ripe_run_waits_for_nothing(segments: list[tuple[int, float]], rate: float) -> None:
    """The schedule itself as the oracle: bytes in order at the rate, the run behind them."""
    missing, run_s = [list(each) for each in zip(*segments, strict=True)]
    arrived = waited = clock = 0.0
    for size, run in segments:
        arrived += size / rate
        if size and arrived > clock:
            waited += arrived - clock
            clock = arrived
        clock += run
    assert is_ripe(missing, run_s, rate) is (waited == 0)


def test_who_has_no_remote_entries_imports_nothing_of_them() -> None:
    """What a runtime, its workers and a stub import before a load; and what a load imports of a
    model that lies here is told by where it is looked for: behind a file's mode."""
    code = (
        "import sys\n"
        "import brisk.runtime.__main__, brisk.runtime.worker_main, brisk.runtime.supervisor\n"
        "import brisk.runtime.sessions.segment_session, brisk.runtime.models.loader\n"
        "import brisk.segments.model.sources, brisk.segments.prepared.preparation\n"
        "import brisk.stub.config.entry, brisk.stub.runtime_client.client\n"
        "names = ('brisk.copies', 'brisk.sourcing', 'brisk.runtime.arrivals', 'aiohttp')\n"
        "print([name for name in sys.modules if name.startswith(names)])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
