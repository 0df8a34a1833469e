"""Other work on the machine while a model starts (NNV12, section 4.2, dynamic loads).

Run as a program without site-packages: the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

_PERIOD_S = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """Of the machine: ``cores`` of it (0: all usable) are busy for ``share`` of the time."""

    share: float
    cores: int = 0

    @property
    def name(self) -> str:
        if not self.share:
            return "nothing"
        where = f"{self.cores} core" if self.cores else "each core"
        return f"{self.share:.0%} of {where}"


@contextlib.contextmanager
def burden(load: Load) -> Iterator[None]:
    """Keeps cores busy for the load's share of each 10 ms.

    One process a core, pinned to it, so that the kernel cannot move the work away.
    """
    cores = sorted(os.sched_getaffinity(0))[-load.cores :]  # the last ones; all for 0
    command = [sys.executable, "-S", __file__]
    with contextlib.ExitStack() as stack:
        for core in cores if load.share else ():
            process = subprocess.Popen(
                [*command, str(core), str(load.share)], stdout=subprocess.PIPE
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            if not process.stdout.readline():  # it burns from here on
                raise RuntimeError(f"nothing keeps processor {core} busy")
        yield


def _burn(core: int, share: float) -> None:
    os.sched_setaffinity(0, {core})
    print("burning", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # it ends with the benchmark, however that ends
        until_s = time.perf_counter() + share * _PERIOD_S
        while time.perf_counter() < until_s:
            pass
        time.sleep((1 - share) * _PERIOD_S)


if __name__ == "__main__":
    _burn(int(sys.argv[1]), float(sys.argv[2]))
