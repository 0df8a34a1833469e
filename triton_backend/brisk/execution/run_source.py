"""Runs of an artefact as layers of a starting program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from brisk.execution.artefact import Artefact
from brisk.execution.joining import JoinedLayers
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.loading import FramePlan
from brisk.execution.runs import DrawnRun, empty_layer
from brisk.native.run import SmallRun
from brisk.solutions.base import Solution


class RunSource:
    """A run stands at its first member's place, the others are empty. Thread-safe.

    Runs give up the interpreter's lock while lanes may want it, that is until they are joined.
    Whichever member is loaded first decides for all of them, so that no frame meets a part of a
    run: where the run cannot be loaded its members stand alone.
    """

    def __init__(
        self,
        artefact: Artefact,
        frame: FramePlan,
        solution: Callable[[int], Solution],
        load_member: Callable[[int], LoadedLayer],
    ) -> None:
        """``solution`` of a layer by its number; ``load_member`` loads one that stands alone."""
        self._artefact = artefact
        self._frame = frame
        self._solution = solution
        self._load_member = load_member
        self._locks = [threading.Lock() for _ in range(artefact.run_count)]
        self._loaded: dict[int, tuple[DrawnRun, LoadedLayer] | None] = {}

    def layer(self, index: int, *, is_damaged: bool) -> LoadedLayer | None:
        """The layer where it is a run's; None where it stands alone.

        ``is_damaged``: what has not been loaded by now is not to be. Raises ArtefactError where
        the run is damaged.
        """
        number = self._artefact.run_of.get(index)
        if number is None:
            return None
        with self._locks[number]:
            if number not in self._loaded:
                self._loaded[number] = None
                if not is_damaged:
                    self._loaded[number] = self._load(number)
            made = self._loaded[number]
        if made is None:
            return None
        run, layer = made
        if index == run.first:
            return layer
        return empty_layer(self._frame.program, index, self._solution(index))

    def members(self) -> list[int]:
        """Layers that are part of a loaded run."""
        numbers = self._artefact.run_of.items()
        return [index for index, number in numbers if self._loaded.get(number)]

    def join(self, layers: Sequence[LoadedLayer]) -> JoinedLayers | None:
        """``layers``, all of them, with the runs; None unless all runs are loaded."""
        made = [self._loaded.get(number) for number in range(len(self._locks))]
        found = [each for each in made if each is not None]
        if len(found) < len(made):
            return None
        for _, layer in found:
            assert isinstance(layer.kernel, SmallRun)
            layer.kernel.hold_lock(True)
        return JoinedLayers.of(layers, found)

    def _load(self, number: int) -> tuple[DrawnRun, LoadedLayer]:
        run = self._artefact.run(number)
        frame = self._frame
        layer = run.load(
            frame.program,
            frame.slots,
            self._solution(run.first),
            lambda: [self._load_member(place) for place in run.places],
            unlocked=True,
        )
        return run, layer
