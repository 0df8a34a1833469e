"""A small model that its stub computes itself: no request crosses to the worker and back.

The worker offers it (``brisk.runtime.requests.offering``) once the model is warm, asked for often
and quick: then the way to the worker costs several times what the network does. The stub maps the
same prepared form, so that weights are in memory once, and runs the same segments by the same
code.

What is urgent, large, late, or comes while the worker has real-time work, goes to the worker as
ever; so does everything, for good, when one run has taken much longer than it should.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from brisk.errors import UnavailableError
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.protocol.records import ComputedInStub, ComputeInStub, LoadModel
from brisk.stub.joining import Group
from brisk.stub.response import divided_responses, response_of

if TYPE_CHECKING:
    from brisk.segments.frame import RunControl
    from brisk.segments.program import SegmentProgram
    from brisk.stub.tensors import InputData

LONGEST_NS, LONGEST_TRIED_NS = 4_000_000, 8_000_000
"""Expected of a run of all that came at once: longer ones gain nothing by being here. What is
guessed from fewer rows may be longer: a run of twice the rows takes less than twice the time."""

TOO_LONG_NS = 50_000_000
"""Then a run is ended, and the worker computes the model from now on."""

LOOK_S = 0.02
"""Between two looks at the run under way."""

_QUIET_LOOKS = 50
"""Looks that found no run, until the next one wakes the guard."""

TELL_NS = 1_000_000_000
"""Between two reports to the worker."""

_NO_ARRAYS = frozenset({"string", "bfloat16"})
"""Types whose tensors Triton's module does not make of arrays as they are."""


class LocalModel:
    """``answer`` is Triton's thread's. Make it in another one: it imports ONNX Runtime."""

    def __init__(
        self,
        model: LoadModel,
        offer: ComputeInStub,
        gate: int,
        tell: Callable[[ComputedInStub], None],
    ) -> None:
        """``gate``: a descriptor, closed here. ``tell``: sends to the worker.

        Raises BriskError where the prepared form cannot be used in this process, OSError where it
        or the gate cannot be mapped.
        """
        try:
            page = mmap.mmap(gate, mmap.PAGESIZE, prot=mmap.PROT_READ)
        finally:
            os.close(gate)
        self._realtime = memoryview(page).cast("q")
        program, self._is_for_a_row = _open(model, offer)
        self._compute = _run_of(program)
        self._control: RunControl | None = None
        """Of the thread that runs it, once it has."""
        self._expected_ns = {1: float(offer.row_ns)}
        """By the number of rows in binary digits: 1, 2 or 3, 4 to 7, …"""
        self._model = offer.model
        self._tell = tell
        self._answered = 0
        self._told_ns = time.monotonic_ns()
        self._guard = Guard()
        self.is_given_up = False

    def _takes(self, rows: int) -> bool:
        """Whether a run of so many rows is to be computed here now."""
        if self.is_given_up or self._realtime[0]:
            return False
        if self._is_for_a_row and rows > 1:
            return False
        size = max(1, rows).bit_length()
        known_ns = self._expected_ns.get(size)
        if known_ns is not None:
            if known_ns <= LONGEST_NS:
                return True
            self._expected_ns[size] = 0.99 * known_ns  # so that it is tried again, after a while
            return False
        below = max(each for each in self._expected_ns if each < size)
        return self._expected_ns[below] * 2 ** (size - below) <= LONGEST_TRIED_NS

    def _learn(self, rows: int, taken_ns: int) -> None:
        size = max(1, rows).bit_length()
        known_ns = self._expected_ns.get(size, float(taken_ns))
        taken_ns = min(taken_ns, int(2 * known_ns))  # others may have had the processor
        self._expected_ns[size] = known_ns + 0.1 * (taken_ns - known_ns)

    def answer(self, group: Group, ones: Mapping[str, tuple[int, ...]]) -> list[Any] | None:
        """The responses; None where the worker is to compute them.

        ``ones``: as in ``TritonReply``. Raises InvalidRequestError where the inputs do not fit.
        """
        rows = [each.rows for each in group.asked]
        if not self._takes(sum(rows)):
            return None
        feeds = feeds_of([each.inputs for each in group.asked])
        begun_ns = time.monotonic_ns()
        outputs = self._run(feeds, group.asked[0].outputs)
        self._learn(sum(rows), time.monotonic_ns() - begun_ns)
        return None if outputs is None else divided_responses(outputs, rows, ones)

    def answer_lone(
        self, inputs: Sequence[Any], outputs: Sequence[str], ones: Mapping[str, tuple[int, ...]]
    ) -> Any | None:
        """As ``answer``, the response to one request; ``inputs``: its tensors, as Triton has them.

        Raises whatever is wrong with it. As few calls as can be: in a stub, which sleeps between
        two requests, each costs a microsecond.
        """
        feeds = {tensor.name(): tensor.as_numpy() for tensor in inputs}
        shape = next(iter(feeds.values())).shape if feeds else ()
        rows = shape[0] if shape else 0
        if not self._takes(rows):
            return None
        begun_ns = time.monotonic_ns()
        found = self._run(feeds, outputs)
        self._learn(rows, time.monotonic_ns() - begun_ns)
        return None if found is None else response_of(found, ones)

    def _run(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str]
    ) -> dict[str, np.ndarray] | None:
        """The outputs by name; None where the worker is to compute it.

        Raises InvalidRequestError where the inputs do not fit the model.
        """
        own = self._control
        if own is None:
            from brisk.segments.frame import control

            own = self._control = control()
        self._guard.begin(own)
        try:
            found = self._compute(feeds, outputs, own)
        except Exception:
            if self._guard.finish(own):
                self.is_given_up = True
                return None
            raise
        if self._guard.finish(own):
            self.is_given_up = True
        return found

    def count(self, answered: int, now_ns: int) -> None:
        """Requests that were answered here; the worker is told now and then."""
        self._answered += answered
        if now_ns - self._told_ns >= TELL_NS:
            self._told_ns = now_ns
            self._tell(ComputedInStub(self._model, self._answered))
            self._answered = 0

    def close(self) -> None:
        self.is_given_up = True
        self._guard.close()


def _open(model: LoadModel, offer: ComputeInStub) -> tuple[SegmentProgram, bool]:
    """All of the prepared form's sessions, on one thread each; whether they are for lone rows.

    Packed weights are a copy that this process has for itself. Where they pay for batches alone,
    and Triton makes none, a row is computed as fast on the mapped ones.
    """
    from brisk.segments.prepared.form import PreparedModel
    from brisk.segments.starting import open_warm_program

    path, file = Path(offer.prepared), Path(model.path)
    source = PreparedModel(path, file, 1, (), model.tuning, shares=False)  # nobody else is here
    for variable in (*source.plan.inputs, *source.plan.outputs):
        dtype = variable.type.dtype
        if dtype not in BY_ELEMENT_NAME or dtype in _NO_ARRAYS:
            raise UnavailableError(f"'{variable.name}' is of type {dtype}")
    if model.batching or not any(each.packs and not each.packs_for_a_row for each in source.kept):
        return open_warm_program(source), False
    return open_warm_program(source, source.open_for_a_row), True


def _run_of(
    program: SegmentProgram,
) -> Callable[[Mapping[str, np.ndarray], Sequence[str], RunControl], dict[str, np.ndarray]]:
    """What runs all of it in the calling thread, whose control is the last argument."""
    from brisk.segments.frame import ArrayRun, run_serially

    if ArrayRun.fits(program):
        return ArrayRun(program)
    return lambda feeds, outputs, _own: run_serially(program, feeds, outputs)


class Guard:
    """A thread that ends a run which takes too long; it sleeps while there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: RunControl | None = None
        self._begun_ns = 0
        self._has_ended = False
        self._busy = threading.Event()
        self._closing = False
        threading.Thread(target=self._watch, name="brisk-guard", daemon=True).start()

    def begin(self, control: RunControl) -> None:
        self._begun_ns = time.monotonic_ns()
        self._current = control
        if not self._busy.is_set():
            self._busy.set()

    def finish(self, control: RunControl) -> bool:
        """The run is over; whether it took too long."""
        with self._lock:
            self._current = None
            has_ended, self._has_ended = self._has_ended, False
        if has_ended:
            control.renew()
        return has_ended

    def close(self) -> None:
        self._closing = True
        self._busy.set()

    def _watch(self) -> None:
        quiet = 0
        while self._busy.wait() and not self._closing:
            time.sleep(LOOK_S)
            if self._current is None:
                quiet += 1
                if quiet == _QUIET_LOOKS:
                    quiet = 0
                    self._busy.clear()
                    if self._current is not None or self._closing:
                        self._busy.set()  # it was set before the line above
                continue
            quiet = 0
            with self._lock:
                control = self._current
                is_long = time.monotonic_ns() - self._begun_ns >= TOO_LONG_NS
                if control is not None and is_long and not self._has_ended:
                    self._has_ended = True
                    control.end()


def feeds_of(inputs: Sequence[Sequence[InputData]]) -> dict[str, np.ndarray]:
    """By name, the rows of requests one behind the other; ``inputs``: each request's."""
    first = inputs[0]
    if len(inputs) == 1:
        return {each.form.name: each.content for each in first}
    return {
        tensor.form.name: np.concatenate([each[place].content for each in inputs])
        for place, tensor in enumerate(first)
    }
