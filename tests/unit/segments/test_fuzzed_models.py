"""Damaged models are served rightly, or refused by name: `tools/fuzz-models` tries more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COUNT = 200
ROOT = Path(__file__).resolve().parents[3]


def test_damaged_models_are_served_rightly_or_refused_by_name() -> None:
    """In a process of its own, which forks and so must have one thread."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "fuzz-models"), "--count", str(COUNT)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {
        text: int(count)
        for count, _, text in (line.strip().partition("  ") for line in done.stdout.splitlines())
        if count.isdecimal()
    }
    assert sum(counts.values()) == COUNT
    assert counts["served"] > COUNT // 20, "the harness damages too much to try anything"
    assert counts["refused, naming the file"] > COUNT // 4
