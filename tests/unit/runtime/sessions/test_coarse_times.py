"""On a file system of whole seconds a model that was written to just now equals no other."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from brisk.paths import Stamp, stamp_of
from brisk.runtime.sessions import identity
from brisk.runtime.sessions.identity import identity_of

SECOND_NS = 10**9


@pytest.mark.parametrize(
    ("age_ns", "unit_ns", "is_equal"),
    [
        (SECOND_NS // 2, SECOND_NS, False),
        (2 * SECOND_NS, SECOND_NS, False),
        (2 * SECOND_NS + 1, SECOND_NS, True),
        (0, 1, True),
    ],
)
def test_a_stamp_that_may_hide_a_write_equals_none(
    age_ns: int, unit_ns: int, is_equal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    written_ns = 1_700_000_000_123_456_789 // unit_ns * unit_ns

    def coarse(status: object) -> Stamp:
        size, _, _, inode, device = stamp_of(model.stat())
        return [size, written_ns, written_ns, inode, device]

    monkeypatch.setattr(identity, "stamp_of", coarse)
    monkeypatch.setattr(time, "time_ns", lambda: written_ns + age_ns)
    assert (identity_of(str(model)) == identity_of(str(model))) is is_equal
