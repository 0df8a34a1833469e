"""Fresh processes in which an engine's libraries are imported and no model was ever started.

A zygote imports an engine's libraries, then forks a child for every sample: a server has its
libraries loaded before a model comes, but has never seen the model. The child is the whole
sample: it loads, answers, goes on answering, tells the times and ends. The zygote is this module
run as a program; its standard output carries one JSON line for each task.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brisk_client.benchmarks.cold.engines.base import ColdEngineError, Start
from brisk_client.benchmarks.cold.machine.surroundings import (
    give_memory,
    process_environment,
)
from brisk_client.benchmarks.cold.models import ModelFiles
from brisk_client.benchmarks.engines.agreement import storable
from brisk_client.benchmarks.engines.process import describe_end, one_line

SAMPLE_TIMEOUT_S = 300.0
PREPARE_TIMEOUT_S = 900.0


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


class Zygote:
    """A context manager around the zygote of one engine. Raises ColdEngineError where it
    cannot import, and from ``sample`` where the engine cannot start the model."""

    def __init__(self, engine: str, threads: int) -> None:
        self.engine = engine
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=_environment(engine, threads),
            text=True,
            bufsize=1,
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def sample(self, task: ColdTask) -> ColdSample:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(task)) + "\n")
        return ColdSample(**self._answer())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        """The next JSON line; what else a library prints is passed over."""
        stream = self._process.stdout
        assert stream is not None
        while True:
            if not select.select([stream], [], [], SAMPLE_TIMEOUT_S)[0]:
                raise ColdEngineError(f"{self.engine}: no answer in {SAMPLE_TIMEOUT_S} s")
            line = stream.readline()
            if not line:
                end = self._end(self._process.wait(SAMPLE_TIMEOUT_S))
                raise ColdEngineError(f"{self.engine}: {end}")
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise ColdEngineError(f"{self.engine}: {one_line(answer['error'])}")
                if "ended" in answer:
                    raise ColdEngineError(f"{self.engine}: {self._end(answer['ended'])}")
                return answer

    def _end(self, status: int) -> str:
        """How a process ended, with the last it said (the zygote's own children write there)."""
        self._said.seek(0)
        return one_line(describe_end(status, self._said.read().decode(errors="replace")))


def prepare_apart(engine: str, files: ModelFiles, threads: int) -> tuple[str, float | None]:
    """Have the engine prepare the model in a process of its own; the artefact, seconds taken.

    None where the artefact was there already. Raises ColdEngineError where it cannot.
    """
    command = [sys.executable, "-m", __name__, engine, "prepare"]
    command += [str(files.model), str(files.folder), str(files.inputs), str(threads)]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PREPARE_TIMEOUT_S,
            env=_environment(engine, threads),
        )
    except subprocess.TimeoutExpired as error:
        text = f"{engine} cannot prepare: not done after {PREPARE_TIMEOUT_S:g} s"
        raise ColdEngineError(text) from error
    for line in ended.stdout.splitlines():
        if line.startswith("{"):
            answer = json.loads(line)
            if "error" in answer:
                reason = one_line(answer["error"])
                raise ColdEngineError(f"{engine} cannot prepare: {reason}")
            return answer["artefact"], answer["took_s"]
    last = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
    raise ColdEngineError(f"{engine} cannot prepare: {last}")


def take_sample(task: ColdTask) -> ColdSample:
    """The sample itself, in this process, which should be a fresh one."""
    from brisk_client.benchmarks.cold.registry import engine_of

    engine = engine_of(task.engine)
    with np.load(task.inputs) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    prepared = Path(task.prepared) if task.prepared else None
    if not engine.as_it_comes:
        give_memory()
    engine.begin(task.threads)
    used_s, before_s = _processor_s(), time.perf_counter()
    start = engine.start(Path(task.model), prepared, inputs, task.threads)
    first_s = time.perf_counter() - before_s
    used_s = _processor_s() - used_s
    following_s = [_time(start.infer) for _ in range(task.following)]
    warm_s = _warm_inferences(start, task.warm_s) if task.warm_s else []
    if task.outputs:
        named = {f"{index:04}": value for index, value in enumerate(storable(start.outputs))}
        np.savez(task.outputs, **named)
    return ColdSample(first_s, used_s, following_s, warm_s)


def _warm_inferences(start: Start, duration_s: float) -> list[float]:
    start.settle()
    taken_s: list[float] = []
    until_s = time.perf_counter() + duration_s
    while time.perf_counter() < until_s or len(taken_s) < 3:
        taken_s.append(_time(start.infer))
    return taken_s


def _time(infer: Any) -> float:
    before_s = time.perf_counter()
    infer()
    return time.perf_counter() - before_s


def _processor_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _environment(engine: str, threads: int) -> dict[str, str]:
    from brisk_client.benchmarks.cold.registry import engine_of

    return process_environment(threads, as_it_comes=engine_of(engine).as_it_comes)


def _prepare(name: str, model: str, folder: str, inputs_file: str, threads: str) -> None:
    """The process of ``prepare_apart``."""
    from brisk_client.benchmarks.cold.registry import engine_of

    with np.load(inputs_file) as arrays:
        inputs = {key: arrays[key] for key in arrays.files}
    try:
        engine = engine_of(name)
        engine.import_libraries()
        before_s, clock_s = time.perf_counter(), time.time()
        artefact = engine.prepare(Path(model), Path(folder), inputs, int(threads))
        took_s = time.perf_counter() - before_s
        is_new = artefact is not None and artefact.stat().st_ctime >= clock_s - 1
    except Exception as error:  # noqa: BLE001  # any failure is an answer, too
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    answer = {"artefact": str(artefact or ""), "took_s": took_s if is_new else None}
    print(json.dumps(answer), flush=True)


def _serve(name: str) -> None:
    from brisk_client.benchmarks.cold.registry import engine_of

    try:
        engine_of(name).import_libraries()
    except ImportError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    gc.collect()
    gc.freeze()  # as Brisk's worker does: no collection visits what was imported
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            if status:
                ended = os.waitstatus_to_exitcode(status)
                print(json.dumps({"ended": ended}), flush=True)
            continue
        try:
            answer = json.dumps(asdict(take_sample(ColdTask(**json.loads(line)))))
        except Exception as error:  # noqa: BLE001  # any failure is an answer, too
            answer = json.dumps({"error": f"{type(error).__name__}: {error}"})
        print(answer, flush=True)
        os._exit(0)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _prepare(sys.argv[1], *sys.argv[3:])
    else:
        _serve(sys.argv[1])
