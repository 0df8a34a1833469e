"""numpy, of which some modules run at their first use."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading
from brisk.lean_numpy import ON_DEMAND, on_demand

with on_demand():
    import numpy
assert "numpy.random.mtrand" not in sys.modules
assert "numpy.ma.core" not in sys.modules
start, found = threading.Barrier(8), []

def use():
    start.wait()
    found.append(int(numpy.random.default_rng(5).integers(1000)))

threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 8 and len(set(found)) == 1, found
assert numpy.fft.fft([1.0, 2.0]).tolist() == [3.0, -1.0]
assert numpy.ma.array([1, 2], mask=[False, True]).sum() == 1
assert numpy.polynomial.Polynomial([1, 2])(3) == 7
assert callable(numpy.ctypeslib.ndpointer)
for name in ON_DEMAND:
    assert type(sys.modules[name]).__name__ == "module", name
import numpy.random.mtrand
from numpy.random import Generator
print("fine")
"""


def test_what_is_left_out_runs_at_its_first_use_once_for_all_threads() -> None:
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60
        )
        assert ended.stdout == "fine\n", ended.stderr
