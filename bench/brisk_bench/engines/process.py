"""Processes of their own for engines, which answer by lines of JSON; an engine that is warm.

Only the process that is asked computes; the others wait on their standard input, so that no
engine's threads take time from another's. A warm engine's process is this module run as a program.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from brisk_bench.engines.agreement import load_answers, load_arrays, save_answers
from brisk_bench.harness.sampling import Burst, one_line, time_inferences

Answer: TypeAlias = Callable[..., dict[str, Any]]
"""Takes a task's fields, gives the answer's."""

_START_TIME_OUT_S = 300.0
_APART_TIME_OUT_S = 900.0
_GRACE_S = 60.0


class EngineUnavailableError(Exception):
    """An engine cannot be started with a model, or failed later; the message says why."""


class EngineChild:
    """A module run as a program: a line of JSON first, then one for each line that it is told.

    ``close`` ends the process. What else a library prints is passed over.
    """

    def __init__(
        self,
        module: str,
        arguments: list[str],
        environment: Mapping[str, str],
    ) -> None:
        """Waits until it says that it is ready. Raises EngineUnavailableError."""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment,
            bufsize=0,
        )
        try:
            self._read(_START_TIME_OUT_S)
        except BaseException:
            self.close()
            raise

    def ask(self, time_out_s: float, **task: object) -> dict[str, Any]:
        """The answer to a task. Raises EngineUnavailableError where it is an error or does not
        come, or the process dies."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(task)}\n".encode())
        except BrokenPipeError as error:
            raise EngineUnavailableError(self._end()) from error
        return self._read(time_out_s)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_GRACE_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._said.close()

    def _read(self, time_out_s: float) -> dict[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        deadline_s = time.monotonic() + time_out_s
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
                raise EngineUnavailableError(f"no answer in {time_out_s:g} s")
            line = stream.readline()
            if not line:
                raise EngineUnavailableError(self._end())
            if line.startswith(b"{"):
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise EngineUnavailableError(one_line(answer["error"]))
                if "ended" in answer:
                    raise EngineUnavailableError(self._end(answer["ended"]))
                return answer

    def _end(self, status: int | None = None) -> str:
        """How this process, or a child of its own, ended, with the last that was said."""
        if status is None:
            status = self._process.wait(_GRACE_S)
        self._said.seek(0)
        return one_line(describe_end(status, self._said.read().decode(errors="replace")))


class WarmEngine(EngineChild):
    """An engine of ``registry`` with a model, warm. ``folder`` holds ``inputs.npz`` and takes the
    engine's outputs."""

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
        """What the engine answered to the inputs, in the model's order."""
        return load_answers(self._outputs)


def answer_tasks(begin: Callable[[], Answer], *, forks: bool = False) -> None:
    """The child: begin, say so, then answer one task after the other.

    ``forks``: each in a process of its own. All failures are told, as engines have errors of
    their own.
    """
    try:
        answer = begin()
    except Exception as error:  # noqa: BLE001
        _tell_failure(error)
        return
    _tell()
    for line in sys.stdin:
        if forks and (child := os.fork()):
            _, status = os.waitpid(child, 0)
            if status:
                _tell(ended=os.waitstatus_to_exitcode(status))
            continue
        try:
            _tell(**answer(**json.loads(line)))
        except Exception as error:  # noqa: BLE001
            _tell_failure(error)
        if forks:
            os._exit(0)


def _tell(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


def _tell_failure(error: Exception) -> None:
    _tell(error=f"{type(error).__name__}: {error}")


def run_apart(
    module: str, *arguments: object, environment: Mapping[str, str] | None = None
) -> str:
    """What ``python -m module`` prints. Raises EngineUnavailableError with the last it said.

    ``environment`` adds to this process's.
    """
    ended = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=_APART_TIME_OUT_S,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    if ended.returncode:
        said = ended.stderr.strip() or ended.stdout.strip()
        lines = said.splitlines() or [f"status {ended.returncode}"]
        raise EngineUnavailableError(lines[-1])
    return ended.stdout


def describe_end(status: int, said: str) -> str:
    """How a process of this exit status ended, with the last line it wrote to standard error."""
    how = f"its process ended with status {status}"
    if status < 0:
        how = f"its process was ended by {signal.Signals(-status).name}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{how}: {lines[-1]}" if lines else how


def processor_s() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _begin(engine: str, model: Path, threads: int, inputs_file: str, outputs_file: str) -> Answer:
    """Load and warm up."""
    from brisk_bench.engines.registry import WARM

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
