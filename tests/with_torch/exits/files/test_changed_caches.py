"""The file of caches beside a model, any one field of it changed: refused, or evaluated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from brisk.exits.cascade_file import write_cascade
from support.exits.cascades import cascade

TESTS = Path(__file__).resolve().parents[3]
TIMEOUT_S = 600.0


def test_a_changed_field_is_refused_or_makes_no_evaluation_leave_its_memory(
    tmp_path: Path,
) -> None:
    source = tmp_path / "model.caches"
    write_cascade(source, cascade())
    changed = tmp_path / "changed.caches"
    ended = subprocess.run(
        [sys.executable, "-m", "support.exits.changed_caches", source, changed],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, f"{lines[-1:]}: {ended.stderr[-2000:]}"
    assert lines[0] == "() None : read"
    assert lines[-1] == "end"
    outcomes = dict(line.rsplit(" : ", 1) for line in lines[:-1])
    assert len(outcomes) > 250
    laid_out = [
        name
        for name, outcome in outcomes.items()
        if outcome != "refused" and ("'shape'" in name or "'dtype'" in name)
    ]
    assert laid_out == [], "what has another shape is no tensor of the variant"
