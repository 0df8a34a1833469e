"""The switch from the solutions a program started with to its warm ones (PASK VI, NNV12 3.5)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from brisk.compiled.library import is_final
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.starting import StartingProgram


def warm_up(
    starting: StartingProgram, may_go_on: Callable[[], bool], cuts: Collection[int] = ()
) -> bool:
    """Load every warm solution that is not there, then give them all to new frames at once.

    Frames stop at ``cuts``, numbers of layers done. ``may_go_on`` is called before each layer and
    may block until there is time for it; False ends the work. Returns whether new frames are
    warm. Raises BriskError where a solution fails to load: the program then stays as it is.
    """
    try:
        return _switch(starting, may_go_on, cuts)
    finally:
        starting.table.is_warmed_up = True


def is_settled(starting: StartingProgram) -> bool:
    """Whether no kernel of the program will be exchanged for another any more.

    From then on equal inputs of equal shapes have answers of equal bits.
    """
    return starting.table.is_warmed_up and is_final()


def _switch(
    starting: StartingProgram, may_go_on: Callable[[], bool], cuts: Collection[int]
) -> bool:
    table, source = starting.table, starting.source
    if not table.is_whole:
        return False
    warm: dict[int, LoadedLayer] = {}
    for index in source.warm_layers():
        if not may_go_on():
            return False
        warm[index] = source.load_warm(index)
    if not may_go_on():
        return False
    whole = [warm.get(index, layer) for index, layer in enumerate(table.current())]
    joined = source.join(whole, cuts)
    if warm or joined is not None:
        table.switch(warm, joined)
    return True
