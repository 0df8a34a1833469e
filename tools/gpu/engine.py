"""The engine itself on a device: right answers, times compared with its peers, and real-time
requests concurrent with others through a runtime of its own."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from place import Place, difference, import_onnxruntime, inputs_of

from brisk.errors import BriskError
from brisk.protocol.records import LoadModel, Result, TensorForm
from brisk.protocol.runtime_paths import runtime_place
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.stub.runtime_client.pending import OutputReader, Reply

ROWS = (1, 2, 4, 16, 3)

SERVED_S = 5.0

WRONG = 0.02
"""The deviation above which an answer is wrong, relative to its largest value."""

GAP_S = 0.004
"""The time from one real-time request to the next."""

_DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "float16": "FP16"}


def engine(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Load each model, and measure the engine with it.

    A row has the difference of its answers from the processor's for some numbers of rows, the time
    of a run from array to array, that of ONNX Runtime on the device, and the memory left
    afterwards.
    """
    from brisk.runtime.sessions.device import gpu, open_queues

    import_onnxruntime()
    queues = open_queues("cuda:0", 4)
    for path in sorted(models.glob("*.onnx")):
        before = place.context.memory()[0]
        try:
            row = _engine(place, path, queues)
        except Exception as error:  # noqa: BLE001  # it is the answer
            row = {"error": f"{type(error).__name__}: {error}"[:600]}
        gpu().perform(lambda: None).result()
        row["left_mib"] = (before - place.context.memory()[0]) / 2**20
        yield {"model": path.stem, **row}


def _engine(place: Place, path: Path, queues: Mapping[Any, Any]) -> dict[str, Any]:
    from brisk.runtime.sessions.gpu_session import load_gpu_session
    from brisk.scheduling.job_class import JobClass

    begun = time.perf_counter()
    session = load_gpu_session(path)
    found: dict[str, Any] = {"load_ms": (time.perf_counter() - begun) * 1e3}
    found["summary"] = session.summary
    ort = import_onnxruntime()
    oracle = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in oracle.get_outputs()]

    def run(inputs: Mapping[str, np.ndarray], job_class: JobClass) -> dict[str, np.ndarray]:
        queue = queues[job_class]
        with queue.issuing():
            frame = session.start(inputs, names)
            while not frame.is_finished:
                if queue.has_room():
                    queue.issue(frame)
            while not queue.is_done():
                pass
            return frame.results()

    found["rows"] = {}
    for rows in ROWS:
        inputs = inputs_of(oracle, rows, seed=rows)
        try:
            expected = dict(zip(names, oracle.run(names, inputs), strict=True))
        except Exception:  # noqa: BLE001  # the model takes no such batch
            continue
        begun = time.perf_counter()
        first = run(inputs, JobClass.NORMAL)
        taken = (time.perf_counter() - begun) * 1e3
        again = run(inputs, JobClass.REALTIME)
        found["rows"][rows] = {
            "first_ms": taken,
            "differs": difference(first, expected),
            "same_whole": all(first[name].tobytes() == again[name].tobytes() for name in names),
        }
    inputs = inputs_of(oracle, 1)
    for name, job_class in (("whole", JobClass.REALTIME), ("chunks", JobClass.NORMAL)):
        found[f"{name}_ms"] = _median_ms(lambda: run(inputs, job_class))  # noqa: B023
    found |= _peers(ort, path, inputs, names)
    session.close()
    return found


def _peers(
    ort: Any, path: Path, inputs: Mapping[str, np.ndarray], names: list[str]
) -> dict[str, Any]:
    """Time ONNX Runtime on the device from array to array: as it comes, and by its own graph with
    inputs and outputs in place."""
    found: dict[str, Any] = {}
    options = ort.SessionOptions()
    options.log_severity_level = 3
    for name, told in (
        ("plain", {"cudnn_conv_algo_search": "HEURISTIC"}),
        ("own_graph", {"cudnn_conv_algo_search": "EXHAUSTIVE", "enable_cuda_graph": "1"}),
    ):
        try:
            session = ort.InferenceSession(
                str(path), options, providers=[("CUDAExecutionProvider", told)]
            )
            if name == "plain":
                found["ort_plain_ms"] = _median_ms(lambda: session.run(names, inputs))  # noqa: B023
                continue
            given = {
                each: ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0)
                for each, value in inputs.items()
            }
            binding = session.io_binding()
            for each, value in given.items():
                binding.bind_ortvalue_input(each, value)
            for each, value in zip(names, session.run(names, inputs), strict=True):
                binding.bind_ortvalue_output(
                    each, ort.OrtValue.ortvalue_from_numpy(value, "cuda", 0)
                )

            def run() -> None:
                for each, value in given.items():  # noqa: B023
                    value.update_inplace(inputs[each])
                session.run_with_iobinding(binding)  # noqa: B023
                binding.copy_outputs_to_cpu()  # noqa: B023

            found["ort_own_graph_ms"] = _median_ms(run)
        except Exception as error:  # noqa: BLE001  # it is the answer
            found[f"ort_{name}_error"] = str(error)[:200]
    return found


def _median_ms(run: Any, most_s: float = 0.3) -> float:
    for _ in range(5):
        run()
    taken = []
    until_s = time.perf_counter() + most_s
    while len(taken) < 5 or (time.perf_counter() < until_s and len(taken) < 500):
        begun = time.perf_counter()
        run()
        taken.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(taken)


# Through a runtime.


class Answer(Reply):
    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: BriskError | None = None
        self.bits: list[bytes] = []

    def succeed(self, result: Result, read: OutputReader) -> None:
        self.bits = [bytes(read(region)) for region in result.regions]
        self.ended.set()

    def fail(self, error: BriskError) -> None:
        self.error = error
        self.ended.set()


class Client:
    """A client of a model of the runtime, which asks the same again and again."""

    def __init__(self, path: Path, device: str, job_class: str) -> None:
        session = import_onnxruntime().InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )
        self.inputs = inputs_of(session, 1)
        self.names = [output.name for output in session.get_outputs()]
        self.expected = dict(zip(self.names, session.run(self.names, self.inputs), strict=True))
        self.job_class = job_class
        self.forms = tuple(
            TensorForm(name, _DATATYPES[value.dtype.name], value.shape)
            for name, value in self.inputs.items()
        )
        self.connection = RuntimeClient(
            runtime_place(device),
            LoadModel(path.stem, 1, str(path), 8, False, 64, job_class),
            lambda level, text: print(level, text, file=sys.stderr),
        )
        begun = time.perf_counter()
        self.connection.open()
        self.load_ms = (time.perf_counter() - begun) * 1e3

    def ask(self) -> list[bytes]:
        """Send a request and return its answer. Raises the request's error."""
        sizes = [value.nbytes for value in self.inputs.values()]
        staged = self.connection.stage(self.forms, sizes)
        for region, value in zip(staged.regions, self.inputs.values(), strict=True):
            self.connection.memory(region)[:] = value.tobytes()
        answer = Answer()
        self.connection.submit(staged, self.names, self.job_class, None, answer)
        if not answer.ended.wait(60):
            raise TimeoutError(f"no answer of {self.forms}")
        if answer.error is not None:
            raise answer.error
        return answer.bits

    def differs(self, bits: list[bytes]) -> float:
        found = {
            name: np.frombuffer(each, value.dtype).reshape(value.shape)
            for each, (name, value) in zip(bits, self.expected.items(), strict=True)
        }
        return difference(found, self.expected)


def serving(place: Place, models: Path) -> Iterator[Mapping[str, Any]]:
    """Time a real-time model's requests alone, then next to three endless best-effort ones."""
    device = "cpu" if place.is_dry else "cuda:0"
    with tempfile.TemporaryDirectory(prefix="brisk-") as folder:
        os.environ |= {"BRISK_RUNTIME_DIR": folder, "BRISK_IDLE_EXIT_S": "1"}
        client = Client(models / "resnet18.onnx", device, "realtime")
        first = client.ask()
        yield {"load_ms": client.load_ms, "differs": client.differs(first)}
        seconds = 1.0 if place.is_dry else SERVED_S
        yield {"beside": "nothing", **_asked(client, first, seconds)}
        command = [sys.executable, __file__, device, str(models), str(seconds + 20)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        others = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        assert others.stdout is not None
        told = others.stdout.readline().strip()
        yield {"beside": told, **_asked(client, first, seconds)}
        answers, _ = others.communicate("\n", timeout=60)
        yield {"others": answers.strip()}
        client.connection.close()


def _asked(client: Client, first: list[bytes], seconds: float) -> Mapping[str, Any]:
    taken: list[float] = []
    wrong = others = 0
    due = time.perf_counter()
    until_s = due + seconds
    while due < until_s:
        time.sleep(max(0.0, due - time.perf_counter()))
        begun = time.perf_counter()
        bits = client.ask()
        taken.append((time.perf_counter() - begun) * 1e3)
        if bits != first:
            others += 1
            wrong += client.differs(bits) > WRONG
        due = max(due + GAP_S, time.perf_counter())
    taken.sort()
    return {
        "asked": len(taken),
        "wrong": wrong,
        "of_other_bits": others,
        "mean_ms": statistics.fmean(taken),
        "p50_ms": statistics.median(taken),
        "p99_ms": taken[int(len(taken) * 0.99)],
        "max_ms": taken[-1],
    }


def _others(device: str, models: Path, longest_s: float) -> None:
    """Ask three models without end until a line comes or ``longest_s`` is over.

    Prints when it begins, then rates and differences.
    """
    names = ("resnet50", "encoder", "vit" if (models / "vit.onnx").exists() else "mlp")
    clients = [Client(models / f"{name}.onnx", device, "besteffort") for name in names]
    firsts = [client.ask() for client in clients]
    ended = threading.Event()
    counts, wrong = [0] * len(clients), [0] * len(clients)

    def ask(index: int) -> None:
        while not ended.is_set():
            wrong[index] += clients[index].ask() != firsts[index]
            counts[index] += 1

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(clients))]
    for thread in threads:
        thread.start()
    print(f"{', '.join(names)}, best effort", flush=True)
    begun = time.perf_counter()
    timer = threading.Timer(longest_s, ended.set)
    timer.start()
    sys.stdin.readline()
    took_s = time.perf_counter() - begun
    ended.set()
    timer.cancel()
    for thread in threads:
        thread.join()
    differences = [c.differs(first) for c, first in zip(clients, firsts, strict=True)]
    rates = {name: count / took_s for name, count in zip(names, counts, strict=True)}
    print(f"a second: {rates}; wrong: {wrong}; differ from the processor by {differences}")
    for client in clients:
        client.connection.close()


if __name__ == "__main__":
    _others(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
