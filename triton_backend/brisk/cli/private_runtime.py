"""A runtime of this command's own, asked through the same code as in Triton's stub."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from brisk.errors import BriskError, UnavailableError
from brisk.protocol.channel import check_peer
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.protocol.records import LoadModel, Result, TensorForm
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.stub.runtime_client.pending import OutputReader, Reply
from brisk.stub.runtime_client.runtime_process import open_connection

ANSWER_TIMEOUT_S = 120.0


class PrivateRuntime:
    """Started in a directory of its own, ended and removed with the context."""

    def __init__(self, device: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="brisk-own-"))
        self.place = RuntimePaths(self._folder / "runtime", device)
        self._connection: RuntimeClient | None = None
        self._supervisor = 0

    def load(self, file: Path, job_class: str) -> None:
        """Raises what the load raises."""
        description = LoadModel(
            name=file.parent.parent.name or file.stem,
            version=1,
            path=str(file),
            max_batch_size=0,
            batching=False,
            max_queue_size=16,
            job_class=job_class,
        )
        connection = RuntimeClient(self.place, description, lambda level, text: None)
        connection.open()
        self._connection = connection

    def ask(self, inputs: Mapping[str, np.ndarray], job_class: str) -> None:
        """Wait for the answer; raises its error. Precondition: the model is loaded."""
        connection = self._connection
        assert connection is not None
        tensors = tuple(
            TensorForm(name, BY_ELEMENT_NAME[array.dtype.name].name, array.shape)
            for name, array in inputs.items()
        )
        staged = connection.stage(tensors, [array.nbytes for array in inputs.values()])
        for array, region in zip(inputs.values(), staged.regions, strict=True):
            connection.memory(region)[:] = np.ascontiguousarray(array).tobytes()
        reply = _WaitingReply()
        connection.submit(staged, (), job_class, None, reply)
        reply.wait()

    def __enter__(self) -> PrivateRuntime:
        connection = open_connection(self.place, Role.FOREGROUND)
        with connection:
            self._supervisor = check_peer(connection)  # whose socket it is
        return self

    def __exit__(self, *error: object) -> None:
        if self._connection is not None:
            self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._supervisor, signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)


class _WaitingReply(Reply):
    def __init__(self) -> None:
        self._answered = threading.Event()
        self._error: BriskError | None = None

    def succeed(self, result: Result, read: OutputReader) -> None:
        self._answered.set()

    def fail(self, error: BriskError) -> None:
        self._error = error
        self._answered.set()

    def wait(self) -> None:
        if not self._answered.wait(ANSWER_TIMEOUT_S):
            raise UnavailableError(f"no answer in {ANSWER_TIMEOUT_S:g} s")
        if self._error is not None:
            raise self._error
