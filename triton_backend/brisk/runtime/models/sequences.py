"""State that the requests of a sequence hand on, kept by correlation id: Triton's implicit state.

It lives as long as the binding that it belongs to: it is lost with the worker, or with the
connection, and then requests that need it are refused until one starts the sequence anew.

Used by the worker's main thread.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from brisk.errors import BriskError, InvalidModelError, UnavailableError
from brisk.paths import open_inside
from brisk.protocol.datatypes import DATATYPES
from brisk.protocol.records import LoadModel, SequenceStep, StateForm, TensorForm
from brisk.runtime.peers.tensors import read_tensor
from brisk.scheduling.job import Job
from brisk.segments.values import Value

IDLE_MARGIN_NS = 5_000_000_000
"""Triton ends an idle sequence without a word to its backend; the state goes so much later."""

MAX_STATE_BYTES = 1 << 30
"""The most bytes of a first state."""

State: TypeAlias = Mapping[str, Value]
"""The values of states by the model's inputs; on the CPU, never changed."""


@dataclass(slots=True, eq=False)
class OpenSequence:
    """One life of a sequence, from the request that starts it to the one that ends it."""

    state: State
    """What the next run starts from: the state behind the last request that was answered well."""
    outputs: Mapping[str, str]
    """The output that is handed on to the input of each state."""
    used_ns: int
    line: deque[Job] = field(default_factory=deque)
    """The requests in order; the first one waits for its turn or runs, all others wait for it."""


class Sequences:
    """The sequences of one binding. A request belongs to the life that is there when it enters.

    So a request that starts a sequence anew has nothing to do with what is still under way of
    the one before, and whoever ends it needs no further notice: nobody else will find that life.
    """

    def __init__(self, model: LoadModel) -> None:
        """Raises InvalidModelError where the first state cannot be made."""
        self._model = model
        self._first = {state.input: _first_value(state) for state in model.states}
        self._outputs = {state.input: state.output for state in model.states}
        self._alive: dict[str, OpenSequence] = {}
        """Least recently used first."""
        self._behind = 0

    def __len__(self) -> int:
        return len(self._alive)

    def enter(
        self, job: Job, step: SequenceStep, now_ns: int, most_behind: int | None
    ) -> OpenSequence:
        """The life that ``job`` takes a step of; it is the last one of its line now.

        Raises UnavailableError where there is none, or where ``most_behind`` requests of this
        model wait for one before them already.
        """
        sequence = self._alive.pop(step.sequence, None)
        if step.starts:
            self._make_room()
            sequence = OpenSequence(self._first, self._outputs, now_ns)
        if sequence is None:
            raise UnavailableError(
                f"the state of sequence {step.sequence} of model '{self._model.name}' is lost: "
                "the worker that had it has ended, or the sequence was idle for too long; begin "
                "it again, by a request with sequence_start"
            )
        if not step.ends:
            self._alive[step.sequence] = sequence
        if sequence.line:
            if most_behind is not None and self._behind >= most_behind:
                raise UnavailableError(
                    f"{most_behind} requests of model '{self._model.name}' wait for others of "
                    "their sequences already, which is its brisk_max_queue_size"
                )
            self._behind += 1
        sequence.line.append(job)
        sequence.used_ns = now_ns
        return sequence

    def leave(self, sequence: OpenSequence, job: Job, now_ns: int) -> Job | None:
        """Note that ``job`` is answered, well or not. Return the one whose turn it is now, if it
        waited for this."""
        was_first = sequence.line[0] is job
        sequence.line.remove(job)
        sequence.used_ns = now_ns
        if was_first and not sequence.line:
            return None
        self._behind -= 1
        return sequence.line[0] if was_first else None

    def forget_idle(self, now_ns: int) -> None:
        """Give the states back of sequences that Triton has ended by now."""
        patience_ns = self._model.sequence_idle_ns + IDLE_MARGIN_NS
        for key, sequence in list(self._alive.items()):
            if not sequence.line and now_ns - sequence.used_ns > patience_ns:
                del self._alive[key]

    def _make_room(self) -> None:
        """Forget the sequence that is idle for longest where there are too many.

        Triton's scheduler has no more than ``max_sequences`` at a time, so it is one that it has
        ended. Twice as many are kept, since it counts from other moments.
        """
        if len(self._alive) < 2 * max(1, self._model.max_sequences):
            return
        idle = next((key for key, sequence in self._alive.items() if not sequence.line), None)
        if idle is not None:
            del self._alive[idle]


def _first_value(state: StateForm) -> Value:
    """Raises InvalidModelError where it cannot be made."""
    datatype = DATATYPES.get(state.datatype)
    try:
        if datatype is None or any(size < 0 for size in state.shape):
            raise InvalidModelError(f"there is no {state.datatype} tensor {list(state.shape)}")
        size = math.prod(state.shape) * (datatype.item_bytes or 4)
        if size > MAX_STATE_BYTES:
            raise InvalidModelError(f"it takes {size} bytes, the most is {MAX_STATE_BYTES}")
        content = bytes(size)
        if state.file:
            path = Path(state.file)
            with open_inside(path.parent, path.name, "data_file") as file:
                if os.fstat(file.fileno()).st_size > MAX_STATE_BYTES:
                    raise InvalidModelError(f"{path} has more than {MAX_STATE_BYTES} bytes")
                content = file.read(MAX_STATE_BYTES + 1)
        return read_tensor(TensorForm(state.input, state.datatype, state.shape), content)
    except (BriskError, OSError, ValueError, MemoryError) as error:
        raise InvalidModelError(f"the first state '{state.input}': {error}") from error
