"""Fresh processes in which an engine's libraries are imported and no model was ever started.

A zygote imports an engine's libraries, then forks a child for every sample: a server has its
libraries loaded before a model comes, but has never seen the model. The child is the whole
sample: it loads, answers, goes on answering, tells the times and ends. The zygote is this module
run as a program; its standard output carries one JSON line for each task.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from brisk.stub.runtime_client.runtime_process import allocator_settings
from brisk_client.benchmarks.cold.engines import ENGINES
from brisk_client.benchmarks.engines.agreement import load_arrays, save_answers
from brisk_client.benchmarks.engines.process import (
    EngineChild,
    EngineUnavailableError,
    processor_s,
    tell,
    tell_failure,
)
from brisk_client.benchmarks.harness.sampling import time_inferences

SAMPLE_TIMEOUT_S = 300.0
PREPARE_TIMEOUT_S = 900.0

MEMORY_BYTES = 60 << 20
"""Of the heap, given by the kernel ahead."""

_PAGE_BYTES = 4096
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` (Linux 5.14)."""


@dataclass(frozen=True, slots=True)
class ColdTask:
    """One sample: which engine starts which model.

    ``following``: inferences timed one by one after the first. ``warm_s``: time to spend on warm
    ones, once the engine has finished its background work; 0: none. ``outputs``: where to put the
    first answer (.npz), "" for nowhere.
    """

    engine: str
    model: str
    prepared: str
    inputs: str
    threads: int
    following: int
    warm_s: float
    outputs: str = ""


@dataclass(frozen=True, slots=True)
class ColdSample:
    """Seconds: from the load call to the first answer; the inferences after it; warm ones.

    ``processor_s``: user and system time of the first answer.
    """

    first_s: float
    processor_s: float
    following_s: list[float]
    warm_s: list[float]


class Zygote(EngineChild):
    """The zygote of one engine. Raises EngineUnavailableError where it cannot import, and from
    ``sample`` where the engine cannot start the model."""

    def __init__(self, engine: str, threads: int) -> None:
        super().__init__(__name__, [engine], _environment(engine, threads))

    def sample(self, task: ColdTask) -> ColdSample:
        return ColdSample(**self.ask(json.dumps(asdict(task)), SAMPLE_TIMEOUT_S))


def prepare_apart(
    engine: str, model: Path, folder: Path, inputs: Path, threads: int
) -> tuple[str, float | None]:
    """Have the engine prepare the model in a process of its own; the artefact, seconds taken.

    None where the artefact was there already. Raises EngineUnavailableError where it cannot.
    """
    arguments = [engine, str(model), str(folder), str(inputs), str(threads)]
    environment = _environment(engine, threads)
    try:
        with EngineChild(__name__, arguments, environment, PREPARE_TIMEOUT_S) as child:
            child.wait()
            return child.first["artefact"], child.first["took_s"]
    except EngineUnavailableError as error:
        raise EngineUnavailableError(f"{engine} cannot prepare: {error}") from error


def _environment(engine: str, threads: int) -> dict[str, str]:
    """Threads, and the allocator's settings of Brisk's runtime for all engines but one that is
    measured as it comes."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "0"}
    if ENGINES[engine].as_it_comes:
        return environment
    return environment | allocator_settings(os.environ)


def _give_memory() -> None:
    """Let the allocator take MEMORY_BYTES, and have the kernel give their pages now.

    The allocator keeps them under the settings above. Where the kernel does not know how,
    nothing happens, for every engine alike.
    """
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = library.malloc(MEMORY_BYTES)
    if not address:
        return
    start = -(-address // _PAGE_BYTES) * _PAGE_BYTES
    end = (address + MEMORY_BYTES) // _PAGE_BYTES * _PAGE_BYTES
    library.madvise(start, end - start, _POPULATE_WRITE)
    library.free(address)


def _take_sample(task: ColdTask) -> ColdSample:
    """The sample itself, in this process, which should be a fresh one."""
    engine = ENGINES[task.engine]
    inputs = load_arrays(task.inputs)
    prepared = Path(task.prepared) if task.prepared else None
    if not engine.as_it_comes:
        _give_memory()
    engine.begin(task.threads)
    used_s, before_s = processor_s(), time.perf_counter()
    start = engine.start(Path(task.model), prepared, inputs, task.threads)
    first_s = time.perf_counter() - before_s
    used_s = processor_s() - used_s
    following_s = [_time(start.infer) for _ in range(task.following)]
    warm_s: list[float] = []
    if task.warm_s:
        start.settle()
        warm_s = time_inferences(start.infer, task.warm_s)
    if task.outputs:
        save_answers(task.outputs, start.outputs)
    return ColdSample(first_s, used_s, following_s, warm_s)


def _time(infer: Callable[[], Any]) -> float:
    before_s = time.perf_counter()
    infer()
    return time.perf_counter() - before_s


def _prepare(name: str, model: str, folder: str, inputs_file: str, threads: str) -> None:
    """The process of ``prepare_apart``."""
    inputs = load_arrays(inputs_file)
    try:
        engine = ENGINES[name]
        engine.import_libraries()
        before_s, clock_s = time.perf_counter(), time.time()
        artefact = engine.prepare(Path(model), Path(folder), inputs, int(threads))
        took_s = time.perf_counter() - before_s
        is_new = artefact is not None and artefact.stat().st_ctime >= clock_s - 1
    except Exception as error:  # noqa: BLE001
        tell_failure(error)
        return
    tell(artefact=str(artefact or ""), took_s=took_s if is_new else None)


def _serve(name: str) -> None:
    try:
        ENGINES[name].import_libraries()
    except ImportError as error:
        tell(error=str(error))
        return
    gc.collect()
    gc.freeze()  # as Brisk's worker does: no collection visits what was imported
    tell()
    for line in sys.stdin:
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            if status:
                tell(ended=os.waitstatus_to_exitcode(status))
            continue
        try:
            tell(**asdict(_take_sample(ColdTask(**json.loads(line)))))
        except Exception as error:  # noqa: BLE001
            tell_failure(error)
        os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _prepare(*sys.argv[1:])
    else:
        _serve(sys.argv[1])
