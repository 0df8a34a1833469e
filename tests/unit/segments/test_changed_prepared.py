"""A prepared form, any one value of its manifest changed: refused, or it answers as before.

Sealed with our key, a record may name another weight of the same shape: that nothing can show.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import chain

TESTS = Path(__file__).resolve().parents[2]
TIMEOUT_S = 250.0


@pytest.mark.usefixtures("private_cache", "short_segments")
def test_a_changed_value_is_refused_or_changes_no_answer(tmp_path: Path) -> None:
    model = chain(tmp_path / "model.onnx", layers=4)
    made = prepare(model, 1).path
    ended = subprocess.run(
        [sys.executable, "-m", "support.models.changed_prepared", model, made, made.parent / "x"],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, f"{lines[-1:]}: {ended.stderr[-2000:]}"
    assert lines[-1] == "end"
    told = {}
    for line in lines[:-1]:
        way, unkeyed, keyed = (word.strip() for word in line.rsplit(":", 2))
        assert unkeyed == "refused", way
        told[way] = keyed
    others = [way for way, how in told.items() if how == "other"]
    names_another_weight = re.compile(
        r"\('content', 'sessions', \d+, ('structure', )?'weights', \d+, 3\) \d+"
    )
    assert [way for way in others if not names_another_weight.fullmatch(way)] == []
    assert Counter(told.values())["refused"] > 200
