"""State passed from request to request of a sequence, by correlation id: Triton's implicit state.

The state lives as long as the binding that it belongs to. It is lost with the worker or the
connection; then requests that need it are refused until one starts the sequence anew.

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
"""Triton ends an idle sequence without notice to its backend; the state is freed so much later."""

MAX_STATE_BYTES = 1 << 30
"""The most bytes that a first state may have."""

State: TypeAlias = Mapping[str, Value]
"""The values of states by the model's inputs; on the CPU, and never changed."""


@dataclass(slots=True, eq=False)
class OpenSequence:
    """One life of a sequence, from the request that starts it to the one that ends it."""

    state: State
    """The state from which the next run starts: that after the last request that did not fail."""
    outputs: Mapping[str, str]
    """The output that is handed on to each state's input, by input."""
    used_ns: int
    line: deque[Job] = field(default_factory=deque)
    """The requests in order; the first one waits for its turn or runs, all others wait for it."""


class Sequences:
    """The sequences of one binding. A request belongs to the life that exists when it enters.

    A request that starts a sequence anew is therefore independent of requests still under way in
    the life before. That life needs no end of its own: no later request can find it.
    """

    def __init__(self, model: LoadModel) -> None:
        """Make the first states. Raises InvalidModelError if one cannot be made."""
        self._model = model
        self._first = {state.input: _first_value(state) for state in model.states}
        self._outputs = {state.input: state.output for state in model.states}
        self._alive: dict[str, OpenSequence] = {}
        """The sequences by name, the least recently used first."""
        self._behind = 0

    def __len__(self) -> int:
        return len(self._alive)

    def enter(
        self, job: Job, step: SequenceStep, now_ns: int, most_behind: int | None
    ) -> OpenSequence:
        """Return the life that ``job`` takes a step of; ``job`` is now the last of its line.

        Raises UnavailableError if there is none, or if ``most_behind`` requests of this model
        already wait for one before them.
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
        """Note that ``job`` is answered, with a result or an error. Return the job that waited for
        it and may run now, if any."""
        was_first = sequence.line[0] is job
        sequence.line.remove(job)
        sequence.used_ns = now_ns
        if was_first and not sequence.line:
            return None
        self._behind -= 1
        return sequence.line[0] if was_first else None

    def forget_idle(self, now_ns: int) -> None:
        """Free the states of sequences that Triton must have ended by now."""
        patience_ns = self._model.sequence_idle_ns + IDLE_MARGIN_NS
        for key, sequence in list(self._alive.items()):
            if not sequence.line and now_ns - sequence.used_ns > patience_ns:
                del self._alive[key]

    def _make_room(self) -> None:
        """Forget the sequence that has been idle for longest if there are too many.

        Triton's scheduler has at most ``max_sequences`` at a time, so it has ended that sequence.
        Twice as many are kept, because Triton counts at other moments.
        """
        if len(self._alive) < 2 * max(1, self._model.max_sequences):
            return
        idle = next((key for key, sequence in self._alive.items() if not sequence.line), None)
        if idle is not None:
            del self._alive[idle]


def _first_value(state: StateForm) -> Value:
    """Return the first value of a state. Raises InvalidModelError if it cannot be made."""
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
