"""Other work on the machine while a model starts (NNV12, section 4.2, dynamic loads)."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from types import TracebackType

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


class Burden:
    """Keeps cores busy for the load's share of each 10 ms; a context manager.

    One process a core, pinned to it, so that the kernel cannot move the work away.
    """

    def __init__(self, load: Load) -> None:
        self._share = load.share
        self._cores = load.cores
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Burden:
        if self._share > 0:
            cores = sorted(os.sched_getaffinity(0))
            for core in cores[-self._cores :]:  # the last ones; all for 0
                command = [sys.executable, "-S", __file__, str(core), str(self._share)]
                self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            for process in self._processes:
                assert process.stdout is not None
                process.stdout.readline()  # it burns from here on
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def _burn(core: int, share: float) -> None:
    import time

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
