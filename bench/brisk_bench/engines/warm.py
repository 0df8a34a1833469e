"""A warm engine in a process of its own, which is this module run as a program."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from brisk_bench.engines.agreement import load_answers, load_arrays, save_answers
from brisk_bench.engines.process import EngineChild, answer_tasks, processor_s
from brisk_bench.engines.registry import WARM
from brisk_bench.harness.programs import Answer
from brisk_bench.harness.sampling import Burst, time_inferences

_GRACE_S = 60.0


class WarmEngine(EngineChild):
    """An engine of ``registry`` with a model, warm.

    ``folder`` holds ``inputs.npz`` and takes the engine's outputs.
    """

    def __init__(self, engine: str, model: Path, threads: int, folder: Path) -> None:
        self._outputs = folder / f"{engine.replace(' ', '-')}-{threads}.npz"
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        environment.setdefault("GOMP_SPINCOUNT", "0")  # as the runtime sets it
        arguments = [engine, str(model), str(threads), str(folder / "inputs.npz")]
        super().__init__(__name__, [*arguments, str(self._outputs)], environment)

    def measure(self, duration_s: float) -> Burst:
        """Run inferences for about ``duration_s`` seconds, at least three."""
        return Burst(**self.ask(duration_s + _GRACE_S, duration_s=duration_s))

    def outputs(self) -> list[np.ndarray]:
        """Return the engine's answer to the inputs, in the model's order."""
        return load_answers(self._outputs)


def _begin(engine: str, model: Path, threads: int, inputs_file: str, outputs_file: str) -> Answer:
    """Load and warm up; return what answers a task."""
    opened = WARM[engine].open(model, None, threads)
    infer = partial(opened.infer, load_arrays(inputs_file))
    infer()
    opened.settle()
    save_answers(outputs_file, infer())
    warm_until_s = time.monotonic() + 1.0
    for _ in range(1000):
        infer()
        if time.monotonic() > warm_until_s:
            break

    def burst(duration_s: float) -> dict[str, Any]:
        used_s = processor_s()
        wall_s = time_inferences(infer, duration_s)
        return {"wall_s": wall_s, "processor_s": processor_s() - used_s}

    return burst


if __name__ == "__main__":
    name, model_file, thread_count, inputs_name, outputs_name = sys.argv[1:]
    answer_tasks(
        lambda: _begin(name, Path(model_file), int(thread_count), inputs_name, outputs_name)
    )
