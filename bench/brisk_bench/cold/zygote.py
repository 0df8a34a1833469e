"""Fresh processes in which an engine's libraries are imported and no model was ever started.

A zygote imports an engine's libraries, then forks a child for every sample: a server has its
libraries loaded before a model comes, but has never seen the model. The child is the whole sample:
it loads, answers, goes on answering, reports the times and ends. The zygote is this module run as
a program; its standard output carries one JSON line for each task.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brisk.stub.runtime_client.runtime_process import allocator_settings
from brisk_bench.engines.agreement import load_arrays, save_answers
from brisk_bench.engines.networks import write_unrelated
from brisk_bench.engines.process import (
    EngineChild,
    EngineUnavailableError,
    answer_tasks,
    processor_s,
)
from brisk_bench.engines.registry import COLD, Engine
from brisk_bench.harness.programs import Answer
from brisk_bench.harness.sampling import time_inferences

SAMPLE_TIMEOUT_S = 300.0
PREPARE_TIMEOUT_S = 900.0

FOLLOWING = 3
"""Inferences timed one by one after the first."""

MEMORY_BYTES = 60 << 20
"""Heap that the kernel provides ahead; the allocator keeps it under its settings."""


@dataclass(frozen=True, slots=True)
class ColdSample:
    """Times of one cold start, in seconds.

    ``first_s``: from the load call to the first answer.
    ``processor_s``: user and system time of the first answer.
    ``following_s``: the inferences after it.
    ``warm_s``: warm inferences.
    """

    first_s: float
    processor_s: float
    following_s: list[float]
    warm_s: list[float]


class Zygote(EngineChild):
    """The zygote of one engine.

    Raises EngineUnavailableError if the engine cannot be imported; its methods raise it if the
    engine cannot do their task with the model.
    """

    def __init__(self, engine: str, threads: int) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "0"}
        if not COLD[engine].as_it_comes:
            environment |= allocator_settings(os.environ)
        super().__init__(__name__, [engine], environment)
        self._engine = engine
        self._threads = threads

    def prepare(self, model: Path, folder: Path) -> tuple[Path, float | None]:
        """Return the engine's artefact of the model, and seconds taken; None if it existed."""
        try:
            answer = self.ask(
                PREPARE_TIMEOUT_S, model=str(model), folder=str(folder), threads=self._threads
            )
        except EngineUnavailableError as error:
            raise EngineUnavailableError(f"{self._engine} cannot prepare: {error}") from error
        return Path(answer["artefact"]), answer["took_s"]

    def sample(
        self, model: Path, prepared: Path | None, inputs: Path, warm_s: float, outputs: Path
    ) -> ColdSample:
        """Take a sample in a fresh process; the first answer goes to ``outputs`` (.npz).

        ``warm_s``: time to spend on warm inferences, after the engine's background work.
        """
        answer = self.ask(
            SAMPLE_TIMEOUT_S,
            model=str(model),
            prepared=None if prepared is None else str(prepared),
            inputs=str(inputs),
            threads=self._threads,
            warm_s=warm_s,
            outputs=str(outputs),
        )
        return ColdSample(**answer)


def _start_unrelated(engine: Engine, threads: int) -> None:
    """Start a model that has nothing to do with the measured one, the same way, and run it once.

    Brisk's idle worker does this by itself. So no engine's very first start is measured.
    """
    with tempfile.TemporaryDirectory(prefix="brisk-unrelated-") as folder:
        model, inputs = write_unrelated(Path(folder))
        prepared = engine.prepare(model, Path(folder), threads) if engine.prepare else None
        engine.open(model, prepared, threads).infer(inputs)


def _sample(
    engine: Engine,
    model: str,
    prepared: str | None,
    inputs: str,
    threads: int,
    warm_s: float,
    outputs: str,
) -> dict[str, Any]:
    """Take the sample in this process, which should be a fresh one."""
    arrays = load_arrays(inputs)
    if not engine.as_it_comes:
        touched = b"\1" * MEMORY_BYTES
        del touched
    _start_unrelated(engine, threads)
    used_s, before_s = processor_s(), time.perf_counter()
    opened = engine.open(Path(model), None if prepared is None else Path(prepared), threads)
    answer = opened.infer(arrays)
    first_s = time.perf_counter() - before_s
    used_s = processor_s() - used_s
    following_s = [_time(lambda: opened.infer(arrays)) for _ in range(FOLLOWING)]
    opened.settle()
    measured_s = time_inferences(lambda: opened.infer(arrays), warm_s)
    save_answers(outputs, answer)
    return {
        "first_s": first_s,
        "processor_s": used_s,
        "following_s": following_s,
        "warm_s": measured_s,
    }


def _time(infer: Callable[[], Any]) -> float:
    before_s = time.perf_counter()
    infer()
    return time.perf_counter() - before_s


def _prepare(engine: Engine, model: str, folder: str, threads: int) -> dict[str, Any]:
    assert engine.prepare is not None
    before_s, clock_s = time.perf_counter(), time.time()
    artefact = engine.prepare(Path(model), Path(folder), threads)
    is_new = artefact.stat().st_ctime >= clock_s - 1
    return {
        "artefact": str(artefact),
        "took_s": time.perf_counter() - before_s if is_new else None,
    }


def _begin(engine: Engine) -> Answer:
    engine.imports()
    gc.collect()
    gc.freeze()  # as Brisk's worker does: no collection visits what was imported

    def answer(**task: Any) -> dict[str, Any]:
        return (_prepare if "folder" in task else _sample)(engine, **task)

    return answer


if __name__ == "__main__":
    answer_tasks(lambda: _begin(COLD[sys.argv[1]]), forks=True)
