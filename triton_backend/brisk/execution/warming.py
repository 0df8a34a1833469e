"""The switch from the solutions a program started with to its warm ones (PASK VI, NNV12 3.5)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

from brisk.compiled.library import is_final
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.starting import StartingProgram


def warm_up(
    starting: StartingProgram, may_go_on: Callable[[], bool], cuts: Collection[int] = ()
) -> bool:
    """``load_skipped`` and ``join_runs``, one after the other. Returns whether both are done.

    Raises BriskError where a solution fails to load: the program then stays as it is.
    """
    with settling(starting):
        return load_skipped(starting, may_go_on) and may_go_on() and join_runs(starting, cuts)


@contextlib.contextmanager
def settling(starting: StartingProgram) -> Iterator[None]:
    """Around all that exchanges kernels of a program."""
    try:
        yield
    finally:
        starting.table.is_warmed_up = True


def load_skipped(starting: StartingProgram, may_go_on: Callable[[], bool]) -> bool:
    """Load every warm solution that is not there, then give them all to new frames at once.

    ``may_go_on`` is called before each layer and may block until there is time for it; False ends
    the work. Returns whether new frames have all of them. Raises BriskError where one fails to
    load: new frames then have what the program started with.
    """
    table, source = starting.table, starting.source
    if not table.is_whole:
        return False
    warm: dict[int, LoadedLayer] = {}
    for index in source.warm_layers():
        if not may_go_on():
            return False
        warm[index] = source.load_warm(index)
    if warm:
        table.switch(warm)
    return True


def join_runs(starting: StartingProgram, cuts: Collection[int] = ()) -> bool:
    """Let new frames compute runs of small layers as one call each; they stop at ``cuts``, numbers
    of layers done. False where layers are missing. Raises BriskError.
    """
    table = starting.table
    if not table.is_whole:
        return False
    joined = starting.source.join(table.current(), cuts)
    if joined is not None:
        table.switch({}, joined)
    return True


def is_settled(starting: StartingProgram) -> bool:
    """Whether no kernel of the program will be exchanged for another any more.

    From then on equal inputs of equal shapes have answers of equal bits.
    """
    return starting.table.is_warmed_up and is_final()
