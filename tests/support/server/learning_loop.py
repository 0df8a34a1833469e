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
"""What learns may run on what other processes leave."""

PAUSE_S = 0.005
"""Of a client between two requests: without it little is left, and learning takes minutes."""


@dataclass(slots=True)
class Stream:
    """What a client has sent so far, and what came back: rows, and those not as the model's."""

    rows: int = 0
    differing: int = 0
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
        with Observer(
            RuntimePaths(runtime_directory(self.server), "cpu"), Role.FOREGROUND
        ) as told:
            (found,) = (each for each in told.status().models if each.name == model)
            return found

    def classes(self, images: np.ndarray) -> np.ndarray:
        """By the whole model, in this process."""
        found: np.ndarray = self.adapted.base.run({"image": images})["logits"].argmax(1)
        return found

    @contextlib.contextmanager
    def streaming(self, model: str, images: np.ndarray) -> Iterator[Stream]:
        """Requests of one to eight rows, one after the other, for as long as the block runs."""
        stream, over = Stream(), threading.Event()
        classes = self.classes(images)

        def run() -> None:
            random = np.random.default_rng(0)
            with grpc.InferenceServerClient(self.server.endpoints.grpc) as client:
                while not over.wait(PAUSE_S):
                    chosen = random.choice(len(images), random.integers(1, 9), replace=False)
                    try:
                        found = ask(client, model, images[chosen])
                    except Exception as error:  # noqa: BLE001  # told by the test
                        stream.errors.append(str(error))
                        return
                    stream.rows += len(chosen)
                    stream.differing += int((found.argmax(1) != classes[chosen]).sum())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield stream
        finally:
            over.set()
            thread.join()
        assert not stream.errors


def ask(client: grpc.InferenceServerClient, model: str, images: np.ndarray) -> np.ndarray:
    given = grpc.InferInput("image", list(images.shape), "FP32")
    given.set_data_from_numpy(images)
    answer = client.infer(model, [given])
    logits: np.ndarray = answer.as_numpy("logits")
    assert answer.as_numpy("digit")[:, 0].tolist() == logits.argmax(1).tolist()
    return logits


def wait_until(loop: Loop, condition: Callable[[], bool], what: str) -> None:
    """What learns gets its share of the processors meanwhile."""
    runtime = runtime_directory(loop.server)

    def is_so() -> bool:
        hurry_helpers(runtime)
        return condition()

    wait_until_true(is_so, what, PATIENCE_S, every_s=0.1)
