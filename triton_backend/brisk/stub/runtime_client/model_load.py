"""The load of a connection's model: asked for anew of every worker, given up after a few."""

from __future__ import annotations

import threading
from typing import NamedTuple

from brisk.errors import BriskError, InternalError
from brisk.protocol.records import LoadModel, ModelLoaded, StateForm
from brisk.protocol.shared_memory import request_flags
from brisk.protocol.shared_memory.arena import Arena
from brisk.tuning import SessionTuning

MAX_LOAD_STRIKES = 3
"""Workers a model's load may take down with it before the model is given up."""

MODEL_NUMBER = 0
"""A connection serves one model; several share a runtime, not a connection."""


class ModelDescription(NamedTuple):
    """What ``LoadModel`` says, without the connection's own fields."""

    name: str
    version: int
    path: str
    max_batch_size: int
    batching: bool
    max_queue_size: int
    job_class: str
    states: tuple[StateForm, ...] = ()
    max_sequences: int = 0
    sequence_idle_ns: int = 0
    tuning: SessionTuning = SessionTuning()


class ModelLoad:
    """``settle`` and ``strike`` are the receiver's; ``wait`` and ``failure`` anybody's."""

    def __init__(self, model: ModelDescription, arena: Arena) -> None:
        self.model = model
        self._arena = arena
        self._mark = arena.allocate(request_flags.MARK_BYTES)
        self._strikes = 0
        self._is_loading = False
        self.is_deferred = False
        """No worker has the model, or is loading it, until ``begin`` is called."""
        self._outcome: ModelLoaded | BriskError | None = None
        self._settled = threading.Event()

    @property
    def failure(self) -> BriskError | None:
        """Why the model cannot be served; None while it can, or may yet."""
        return self._outcome if isinstance(self._outcome, BriskError) else None

    @property
    def is_settled(self) -> bool:
        """Whether a first load has ended, well or not."""
        return self._settled.is_set()

    def wait(self) -> int:
        """Block until the first load has ended; its time in ns. Raises what it raised.

        Ends: the receiver settles it with every answer, and with every way to get none.
        """
        self._settled.wait()
        if isinstance(self._outcome, ModelLoaded):
            return self._outcome.load_ns
        assert self._outcome is not None
        raise self._outcome

    def begin(self) -> LoadModel:
        """The record for a new worker."""
        request_flags.reset(self._arena.memory(self._mark))
        self._is_loading = True
        self.is_deferred = False
        model = self.model
        return LoadModel(
            MODEL_NUMBER,
            model.name,
            model.version,
            model.path,
            self._mark,
            model.max_batch_size,
            model.batching,
            model.max_queue_size,
            model.job_class,
            model.states,
            model.max_sequences,
            model.sequence_idle_ns,
            model.tuning,
            self._strikes,
        )

    def settle(self, outcome: ModelLoaded | BriskError) -> None:
        """A ready session still loads layers; the worker resets the mark after the last."""
        self._is_loading = isinstance(outcome, ModelLoaded)
        self._outcome = outcome
        self._settled.set()

    def defer(self) -> None:
        """Try again with the next request: what failed may not fail for ever."""
        self._is_loading = False
        self.is_deferred = True

    def strike(self) -> BriskError | None:
        """After a worker's death: the error to settle with where the load is to blame again."""
        if not self._is_loading:
            return None
        if not request_flags.has_begun(self._arena.memory(self._mark)):
            if self._outcome is not None:
                self._strikes = 0  # it was loaded to the end
            return None
        self._is_loading = False  # blamed once; the next worker begins anew, whenever it comes
        self._strikes += 1
        if self._strikes < MAX_LOAD_STRIKES:
            return None
        return InternalError(
            f"loading model '{self.model.name}' version {self.model.version} ended "
            f"{self._strikes} workers; it is given up"
        )
