"""Chooses the kind of session that a model gets; the only module that knows all kinds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from brisk.errors import ArtefactError, BriskError, InvalidModelError
from brisk.graph.program import ContainerKind, Variable
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.runtime.sessions.session import Session
from brisk.segments.table import BeforeEach
from brisk.settings import COURIER_SOCKET, runtime_directory
from brisk.tuning import SessionTuning


def load_session(
    path: Path,
    device: str,
    threads: int,
    reject: Callable[[ArtefactError], None] | None,
    before_each: BeforeEach | None = None,
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
    *,
    takes_learned: bool = True,
) -> Session:
    """Make the model at ``path`` runnable, and let loader threads load its segments.

    ``threads``: the number that run it. ``reject`` is called with the reason why an artefact
    cannot be used, maybe later and in another thread; None: artefacts are not looked for. Loader
    threads call ``before_each`` before a segment. ``tuning``: of ONNX Runtime's sessions.
    ``takes_learned``: the model may be served with caches that were learned from its traffic.
    Raises InvalidModelError and similar errors if the model cannot be served."""
    started_ns = time.monotonic_ns()
    session: Session
    if device != "cpu":
        from brisk.runtime.sessions.gpu_session import load_gpu_session

        session = load_gpu_session(path, tuning)
    else:
        from brisk.runtime.sessions.segment_session import load_segment_session

        session = load_segment_session(
            path, threads, reject, before_each, tuning, takes_learned=takes_learned
        )
    try:
        for variable in (*session.inputs, *session.outputs):
            _check_tensor(variable)
    except BriskError:
        session.close()
        raise
    session.load_ns = time.monotonic_ns() - started_ns
    session.summary += f", runnable after {session.load_ns / 1e6:.0f} ms"
    return session


def _check_tensor(variable: Variable) -> None:
    kind = variable.type
    if kind.container is not ContainerKind.TENSOR:
        raise InvalidModelError(
            f"'{variable.name}' is a {kind.container.value}; Triton serves tensors only"
        )
    if kind.dtype is not None and kind.dtype not in BY_ELEMENT_NAME:
        raise InvalidModelError(
            f"'{variable.name}' is of type {kind.dtype}, for which Triton has no datatype"
        )


def import_what_files_need() -> None:
    """Import what reading a model's own file also needs, mainly ``onnx``: 60 ms.

    A start from a prepared form does not need it; a worker imports it when it is idle.
    """
    import onnx

    import brisk.segments.model.sources

    onnx.defs.has("Identity")  # registers all operators, which takes the first model 10 ms
    if (runtime_directory() / COURIER_SOCKET).exists():
        import brisk.runtime.arrivals.arrival  # noqa: F401  # for models that lie elsewhere
