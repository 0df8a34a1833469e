"""A client's stream of requests to a model whose caches learn, and looks at what it did."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tritonclient import grpc

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.protocol.status import ModelStatus
from brisk.telemetry.observer import Observer
from brisk.triton.launch import TritonServer
from support.exits.adapted import Adapted
from support.runtime.runtime_processes import hurry_helpers
from support.server.running import runtime_directory
from support.waiting import wait_until as wait_until_true

PATIENCE_S = 240.0
"""The longest wait for learning, which may run on what other processes leave."""

PAUSE_S = 0.005
"""A client's pause between two requests: without it little is left, and learning takes minutes."""


@dataclass(slots=True)
class Stream:
    """A client's requests so far, and their answers."""

    rows: int = 0
    differing: int = 0
    """Rows whose class is not the whole model's."""
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A server whose caches learn every few seconds, and its entries."""

    server: TritonServer
    adapted: Adapted
    repository: Path
    log: Path

    def file(self, model: str) -> Path:
        return self.repository / model / "1" / "model.onnx"

    def status(self, model: str) -> ModelStatus:
        place = RuntimePaths(runtime_directory(self.server), "cpu")
        with Observer(place, Role.FOREGROUND) as observer:
            (status,) = (each for each in observer.status().models if each.name == model)
            return status

    def classes(self, images: np.ndarray) -> np.ndarray:
        """Return the classes that the whole model answers, computed in this process."""
        logits: np.ndarray = self.adapted.base.run({"image": images})["logits"]
        return logits.argmax(1)

    @contextlib.contextmanager
    def streaming(self, model: str, images: np.ndarray) -> Iterator[Stream]:
        """Send requests of one to eight rows, one after the other, for as long as the block
        runs."""
        stream, over = Stream(), threading.Event()
        classes = self.classes(images)

        def run() -> None:
            random = np.random.default_rng(0)
            with grpc.InferenceServerClient(self.server.endpoints.grpc) as client:
                while not over.wait(PAUSE_S):
                    chosen = random.choice(len(images), random.integers(1, 9), replace=False)
                    try:
                        logits = ask(client, model, images[chosen])
                    except Exception as error:  # noqa: BLE001  # told by the test
                        stream.errors.append(str(error))
                        return
                    stream.rows += len(chosen)
                    stream.differing += int((logits.argmax(1) != classes[chosen]).sum())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield stream
        finally:
            over.set()
            thread.join()
        assert not stream.errors


def ask(client: grpc.InferenceServerClient, model: str, images: np.ndarray) -> np.ndarray:
    tensor = grpc.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    answer = client.infer(model, [tensor])
    logits: np.ndarray = answer.as_numpy("logits")
    assert answer.as_numpy("digit")[:, 0].tolist() == logits.argmax(1).tolist()
    return logits


def wait_until(loop: Loop, condition: Callable[[], bool], what: str) -> None:
    """Wait until ``condition`` holds; processes that learn get their share of the processors
    meanwhile."""
    runtime = runtime_directory(loop.server)

    def is_so() -> bool:
        hurry_helpers(runtime)
        return condition()

    wait_until_true(is_so, what, PATIENCE_S, every_s=0.1)
