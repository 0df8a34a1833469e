"""A small model's sessions in its stub, on one thread or several, and what their runs take."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.errors import BriskError, UnavailableError
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.protocol.records import ComputeInStub, LoadModel

if TYPE_CHECKING:
    from brisk.segments.frame import RunAll
    from brisk.segments.program import SegmentProgram

LONGEST_NS, LONGEST_BATCH_NS = 50_000_000, 4_000_000
"""The longest expected run that the stub computes itself: longer ones gain nothing by being here.
The second one is for runs on one thread while the worker would use several."""

MOST_ROWS = 1 << 20

SHORT_NS = 2_000_000
"""The longest time of a row of a small model on all processors. A small model is computed on
several threads only if they are seen to gain, others from the start. A run that takes longer gives
way to real-time work."""

GAINS, LEAST_GAIN_NS, MEASURED = 0.8, 120_000, 16
"""The time of a small model's run on several threads over that on one from which on it is worth
the further processor time that it costs; the least that it must save; and the number of measured
runs before the two are compared."""

WINDOW, CROWDED, CALM = 8, 1.25, 1.1
"""The number of runs after which the number of threads may change. Threads of a run wait for each
other without sleeping, so alone on the machine a run has a processor all the time. If it takes
CROWDED times as long, others want the processors, and it gives up half of its threads; below CALM
times, it may take twice as many."""

FIRST_REST_NS, LONGEST_REST_NS = 500_000_000, 8_000_000_000
"""The time after which more threads are tried again. It doubles with each try in vain."""

_NO_ARRAYS = frozenset({"string", "bfloat16"})
"""The element types of which Triton's module does not make tensors from arrays as they are."""


@dataclass(slots=True, eq=False)
class LocalProgram:
    """The model's sessions, opened on ``threads`` threads each.

    Sizes are the binary digits of a run's rows: 1, 2 or 3, 4 to 7, …
    """

    threads: int
    program: SegmentProgram
    """The program, which keeps the weights mapped."""
    run: RunAll
    most_rows: int
    longest_ns: int = LONGEST_NS
    """The longest expected run that it computes. By an estimate from fewer rows it may be twice as
    long, up to LONGEST_NS, since a run of twice the rows takes less than twice the time."""
    expected_ns: dict[int, float] = field(default_factory=dict)
    """The expected time of a run, as if nothing else used the processors, by size."""
    least_ns: dict[int, int] = field(default_factory=dict)
    """The least time of a measured run, by size."""
    measured: int = 0
    """The number of measured runs."""
    is_watched: bool = False
    """Whether each run is to be measured."""

    @property
    def shrinks_arena(self) -> bool:
        segments = self.program.segments.current()
        return any(each is not None and each.session.shrinks_arena for each in segments)

    def expect(self, row_ns: float) -> None:
        """Expect ``row_ns`` a row, and forget what was learned."""
        self.expected_ns = {1: row_ns}

    def takes(self, rows: int) -> bool:
        """Whether to compute a run of so many rows in this process, by the times of earlier
        runs."""
        if rows > self.most_rows:
            return False
        expected_ns = self.expected_ns
        size = max(1, rows).bit_length()
        known_ns = expected_ns.get(size)
        if known_ns is not None:
            if known_ns <= self.longest_ns:
                return True
            expected_ns[size] = 0.99 * known_ns  # so that it is tried again, after a while
            return False
        return self.estimated_ns(rows) <= min(2 * self.longest_ns, LONGEST_NS)

    def estimated_ns(self, rows: int) -> float:
        """Return the expected time of a run of so many rows, or what a smaller one's says."""
        size = max(1, rows).bit_length()
        below = max(each for each in self.expected_ns if each <= size)
        return self.expected_ns[below] * 2 ** (size - below)

    def learn(self, rows: int, taken_ns: int, computed_ns: int) -> None:
        """Learn of a run that took ``taken_ns``, of which its thread had a processor for
        ``computed_ns``: that is what it takes if nothing else uses the processors."""
        size = max(1, rows).bit_length()
        known_ns = self.expected_ns.get(size, float(computed_ns))
        computed_ns = min(computed_ns, int(2 * known_ns))
        self.expected_ns[size] = known_ns + 0.1 * (computed_ns - known_ns)
        self.least_ns[size] = min(taken_ns, self.least_ns.get(size, taken_ns))
        self.measured += 1


class LocalPrograms:
    """The model's programs, of which ``current`` computes, by the number of their threads.

    One run is done sooner on several threads; many runs at a time are done sooner on one thread
    each. Nothing orders the runs of several stubs, so each learns from its own runs whether others
    want the processors. Any thread may call ``expect``, Triton's calls ``learn``.
    """

    def __init__(self, model: LoadModel, offer: ComputeInStub) -> None:
        """Open the first program. Raises as ``open_program`` does."""
        self._model, self._prepared = model, offer.prepared
        self._row_ns, self.most_threads = offer.row_ns, offer.threads
        self._gains = offer.row_ns > SHORT_NS
        """Whether several threads are faster than one."""
        self._is_settled = self.most_threads == 1
        """Whether the number of threads does not change any more."""
        self._opened: LocalProgram | None = None
        """A program that another thread has opened; Triton's takes it."""
        self._is_opening = False
        self._walls_ns = self._computed_ns = self._runs = 0
        """The time of recent runs, their processor time, and their number."""
        self._rises_at_ns, self._rest_ns, self._rose_at_ns = 0, FIRST_REST_NS, 0
        self.current = open_program(model, offer.prepared, self.most_threads if self._gains else 1)
        self.current.expect(offer.row_ns)
        self._programs = {self.current.threads: self.current}
        self._judge()

    def expect(self, row_ns: int) -> None:
        """Expect ``row_ns`` a row, and forget what was learned."""
        self._row_ns = row_ns
        self.current.expect(row_ns)

    def learn(self, program: LocalProgram, rows: int, taken_ns: int, computed_ns: int) -> None:
        """Learn of a run of a program (see there), and choose what computes the next one."""
        program.learn(rows, taken_ns, computed_ns)
        if not self._is_settled and program is self.current:
            self._take_opened()
            if self._gains:
                self._adapt(taken_ns, computed_ns)
            elif program.measured >= MEASURED:
                self._compare(program)

    def _compare(self, program: LocalProgram) -> None:
        """Compare a small model's runs on one thread with those on several: first with what they
        take in the worker, then with what they take here."""
        one_ns = self._programs[1].least_ns
        if program.threads == 1:
            if any(_gains(one_ns[size], self._row_ns << (size - 1)) for size in one_ns):
                self._use(self.most_threads)
            else:  # from now on, each sixteenth run
                program.is_watched = False
            return
        several_ns = program.least_ns
        self._gains = any(
            _gains(one_ns[size], several_ns[size]) for size in one_ns.keys() & several_ns
        )
        if not self._gains:
            self._settle_on_one()
        self._judge()

    def _adapt(self, taken_ns: int, computed_ns: int) -> None:
        """Change the number of threads if a window of runs says so."""
        self._walls_ns += min(taken_ns, 2 * computed_ns)  # a single stall is no crowd
        self._computed_ns += computed_ns
        self._runs += 1
        if self._runs < WINDOW:
            return
        waits = self._walls_ns / max(1, self._computed_ns)
        self._walls_ns = self._computed_ns = self._runs = 0
        threads, now_ns = self.current.threads, time.monotonic_ns()
        if threads > 1 and waits > CROWDED and self._slowed_ns(threads // 2) <= LONGEST_NS:
            is_in_vain = now_ns - self._rose_at_ns < self._rest_ns
            rest_ns = 2 * self._rest_ns if is_in_vain else FIRST_REST_NS
            self._rest_ns = min(rest_ns, LONGEST_REST_NS)
            self._rises_at_ns = now_ns + self._rest_ns
            self._use(threads // 2)
        elif threads < self.most_threads and waits < CALM and now_ns >= self._rises_at_ns:
            self._rose_at_ns = now_ns
            self._use(min(2 * threads, self.most_threads))

    def _slowed_ns(self, threads: int) -> float:
        """Return the longest time of a row on so many threads, by what it takes on all."""
        return self._row_ns * self.most_threads / threads

    def _use(self, threads: int) -> None:
        """Compute on so many threads, as soon as a program on them is open."""
        if threads in self._programs:
            self.current = self._programs[threads]
        elif not self._is_opening:
            self._is_opening = True
            threading.Thread(
                target=self._open, args=(threads,), name="brisk-local-program", daemon=True
            ).start()

    def _open(self, threads: int) -> None:
        """Open a program. Runs in its own thread."""
        try:
            program = open_program(self._model, self._prepared, threads)
        except (BriskError, OSError):  # the one that is there goes on
            self._is_settled = True
            self._judge()
            return
        program.expect(self._slowed_ns(threads))
        self._opened = program

    def _take_opened(self) -> None:
        """Compute with a program that has been opened; keep the one before it, and no other."""
        program = self._opened
        if program is not None:
            self._opened, self._is_opening = None, False
            self._programs = {self.current.threads: self.current, program.threads: program}
            self.current = program
            self._judge()

    def _settle_on_one(self) -> None:
        self._is_settled = True
        self.current = self._programs[1]
        self._programs = {1: self.current}

    def _judge(self) -> None:
        """Say how each program is used."""
        for program in self._programs.values():
            program.is_watched = not self._is_settled
            is_slow = program.threads == 1 < self.most_threads and not self._gains
            program.longest_ns = LONGEST_BATCH_NS if is_slow else LONGEST_NS


def _gains(one_ns: int, several_ns: int) -> bool:
    return several_ns <= min(GAINS * one_ns, one_ns - LEAST_GAIN_NS)


def open_program(model: LoadModel, prepared: str, threads: int) -> LocalProgram:
    """Open all of the prepared form's sessions on ``threads`` threads each.

    Packed weights are a private copy of this process. If they pay only for batches, and Triton
    makes none, a row is computed as fast on the mapped weights; the program is for single rows
    then. Raises BriskError if the prepared form cannot be used in this process, OSError if it
    cannot be mapped.
    """
    from brisk.segments.prepared.form import PreparedModel
    from brisk.segments.starting import open_warm_program

    path, file = Path(prepared), Path(model.path)
    source = PreparedModel(path, file, threads, (), model.tuning, shares=False)  # alone here
    for variable in (*source.plan.inputs, *source.plan.outputs):
        dtype = variable.type.dtype
        if dtype not in BY_ELEMENT_NAME or dtype in _NO_ARRAYS:
            raise UnavailableError(f"'{variable.name}' is of type {dtype}")
    if model.batching or not any(each.packs and not each.packs_for_a_row for each in source.kept):
        program = open_warm_program(source)
        return LocalProgram(threads, program, _run_of(program), MOST_ROWS)
    program = open_warm_program(source, source.open_for_a_row)
    return LocalProgram(threads, program, _run_of(program), 1)


def _run_of(program: SegmentProgram) -> RunAll:
    """Return the function that runs the whole program in the calling thread."""
    from brisk.segments.frame import run_in_one, run_serially

    return run_in_one(program) or (
        lambda outputs, feeds, _options: list(run_serially(program, feeds, outputs).values())
    )
