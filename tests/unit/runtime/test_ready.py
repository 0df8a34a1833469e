"""What a runtime has ready before any model comes, and what it leaves to those who need it."""

from __future__ import annotations

import subprocess
import sys

UNNEEDED = (
    *("argparse", "statistics", "tempfile", "zipfile", "shutil"),
    *("brisk.pipelines", "brisk.runtime.pipelines.session"),
)
"""Their import took a tenth of a runtime's start, which every first model waits for."""

REPORT = """
import sys
from brisk.runtime.__main__ import import_everything
import_everything("cpu")
print(*sys.modules)
"""


def test_a_start_imports_nothing_that_few_models_need() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPORT], capture_output=True, text=True, check=True, timeout=60
    )
    imported = done.stdout.split()
    assert "onnxruntime" in imported
    assert "brisk.runtime.worker.worker" in imported
    assert not set(UNNEEDED) & set(imported)


def test_wrong_arguments_are_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "brisk.runtime", "--device", "cpu", "--niceness", "much"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "argument --niceness: invalid int value: 'much'" in done.stderr
