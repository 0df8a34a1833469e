"""One engine in a process of its own, measured on request.

Only the process that is asked computes; the others wait on their standard input, so that no
engine's threads take time from another's. The child is this module run as a program.
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from brisk_client.benchmarks.engines.agreement import storable

if TYPE_CHECKING:
    from brisk_client.benchmarks.engines.registry import Infer

_START_TIME_OUT_S = 300.0
_GRACE_S = 60.0

REASON_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Burst:
    """Consecutive inferences: wall time of each, processor time of all together."""

    wall_s: list[float]
    processor_s: float


class EngineUnavailableError(Exception):
    """The engine cannot be started with this model, or failed later: ``reason`` says why."""

    def __init__(self, engine: str, reason: str) -> None:
        self.engine = engine
        self.reason = one_line(reason)
        super().__init__(f"{engine}: {self.reason}")


class EngineProcess:
    """Starts the engine, waits until it is warm; a context manager that ends the process.

    Raises EngineUnavailableError from the constructor, and from ``measure`` where the engine
    dies or does not answer in time.
    """

    def __init__(self, engine: str, model: Path, threads: int, folder: Path) -> None:
        """``folder`` holds ``inputs.npz``; the engine's outputs are put beside it."""
        self.engine = engine
        self._outputs = folder / f"{engine.replace(' ', '-')}-{threads}.npz"
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        environment.setdefault("GOMP_SPINCOUNT", "0")  # as the runtime sets it
        arguments = [engine, str(model), str(threads), str(folder / "inputs.npz")]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments, str(self._outputs)],
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

    def measure(self, duration_s: float) -> Burst:
        """Run inferences for about ``duration_s`` seconds, at least three."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{duration_s}\n".encode())
        except BrokenPipeError as error:
            raise EngineUnavailableError(self.engine, self._end()) from error
        return Burst(**self._read(duration_s + _GRACE_S))

    def outputs(self) -> list[np.ndarray]:
        """What the engine answered to the inputs, in the model's order."""
        with np.load(self._outputs) as arrays:
            return [arrays[name] for name in sorted(arrays)]

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=_GRACE_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._said.close()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, time_out_s: float) -> dict[str, Any]:
        """The next answer; other lines that a library may print are passed over."""
        stream = self._process.stdout
        assert stream is not None
        deadline_s = time.monotonic() + time_out_s
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
                raise EngineUnavailableError(self.engine, f"no answer in {time_out_s:g} s")
            line = stream.readline()
            if not line:
                raise EngineUnavailableError(self.engine, self._end())
            if line.startswith(b"{"):
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise EngineUnavailableError(self.engine, answer["error"])
                return answer

    def _end(self) -> str:
        """How the process ended, and the last thing it said."""
        status = self._process.wait(timeout=_GRACE_S)
        self._said.seek(0)
        return describe_end(status, self._said.read().decode(errors="replace"))


def describe_end(status: int, said: str) -> str:
    """How a process of this exit status ended, with the last line it wrote to standard error."""
    how = f"its process ended with status {status}"
    if status < 0:
        how = f"its process was ended by {signal.Signals(-status).name}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return f"{how}: {lines[-1]}" if lines else how


def one_line(text: str) -> str:
    """An engine's message, which may be pages long, on one line of REASON_CHARACTERS at most."""
    line = " ".join(text.split())
    return line if len(line) <= REASON_CHARACTERS else f"{line[:REASON_CHARACTERS]} …"


def _serve(engine: str, model: Path, threads: int, inputs_file: Path, outputs_file: Path) -> None:
    """The child: load, warm up, say so, then measure for each line of standard input."""
    from brisk_client.benchmarks.engines.registry import ENGINES

    with np.load(inputs_file) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    try:
        infer = ENGINES[engine](model, threads)
        outputs = storable(infer(inputs))
        np.savez(outputs_file, **{f"{index:04}": value for index, value in enumerate(outputs)})
        _answer_bursts(infer, inputs)
    except Exception as error:  # noqa: BLE001  # any failure is an answer: engines have their own
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)


def _answer_bursts(infer: Infer, inputs: Mapping[str, np.ndarray]) -> None:
    """Warm up, say so, then a burst for each line of standard input."""
    warm_until_s = time.monotonic() + 1.0
    for _ in range(1000):
        infer(inputs)
        if time.monotonic() > warm_until_s:
            break
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        wall_s: list[float] = []
        started_s = time.perf_counter()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        while len(wall_s) < 3 or time.perf_counter() - started_s < float(line):
            before_s = time.perf_counter()
            infer(inputs)
            wall_s.append(time.perf_counter() - before_s)
        after = resource.getrusage(resource.RUSAGE_SELF)
        used_s = after.ru_utime - usage.ru_utime + after.ru_stime - usage.ru_stime
        print(json.dumps({"wall_s": wall_s, "processor_s": used_s}), flush=True)


if __name__ == "__main__":
    name, model_file, thread_count, inputs_name, outputs_name = sys.argv[1:]
    _serve(name, Path(model_file), int(thread_count), Path(inputs_name), Path(outputs_name))
