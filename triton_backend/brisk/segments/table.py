"""Layers that are loaded by lanes while the first frames already run them.

Every layer has one loader: whoever claims it, a lane or the executor that needs it. The exception
is a layer whose lane does not come back: the executor loads it, too, and the first one counts.
Lanes take the first layer that nobody has begun. An executor that meets such a layer loads it
itself; one that meets a layer in work waits a moment, then loads the next free ones meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from brisk.errors import BriskError, InternalError, UnavailableError
from brisk.segments.timeline import EventKind, Recorder, clock_ns

PATIENCE_S = 0.001
"""How long an executor waits for a layer in work before it helps with others."""

RESCUE_S = 2.0
"""How long an executor waits for one layer in work; then it loads that itself. Far above what any
layer takes: a lane that takes longer hangs, or stands back on a machine without an idle moment."""

EXECUTOR = "issue"

Part = TypeVar("Part")
"""What stands in a table: a segment, ready to run."""

GiveWay: TypeAlias = "Callable[[LayerTable[Any]], None]"


class LayerTable(Generic[Part]):
    """The layers of one program, and in ``recorder`` the timeline of its start. Thread-safe.

    Indexing is the executor's: it returns the layer as soon as it is loaded, and loads it where
    it must. Raises what loading raised.
    """

    def __init__(
        self,
        count: int,
        load: Callable[[int], Part],
        is_here: Callable[[int], bool] = lambda index: True,
    ) -> None:
        """``load``: loads a layer by its number. ``is_here``: whether all that this reads is here;
        else it waits, and raises UnavailableError where that takes too long: the layer is as if
        nobody had begun it then.
        """
        self.recorder = Recorder()
        self._load = load
        self._is_here = is_here
        self._layers: list[Part | None] = [None] * count
        self._claimed = bytearray(count)
        self._errors: dict[int, BriskError] = {}
        self._changed = threading.Condition()
        self._remaining = count
        self._told: list[Callable[[], None]] = []
        self.lanes_at_work = 0
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, index: int) -> Part:
        give_up_ns = clock_ns() + int(RESCUE_S * 1e9)
        while (layer := self._layers[index]) is None and index not in self._errors:
            if self._claim(index) is not None:
                self._perform(index, EXECUTOR)
            elif not self._wait_for(index):
                if (other := self._claim_here()) is not None:
                    self._perform(other, EXECUTOR)
                elif not self._is_here(index):  # its lane waits for bytes, too
                    give_up_ns = clock_ns() + int(RESCUE_S * 1e9)
                elif clock_ns() > give_up_ns:
                    self._perform(index, EXECUTOR)
        if layer is None:
            raise self._errors[index]
        return layer

    def __iter__(self) -> Iterator[Part]:
        return (self[index] for index in range(len(self)))

    def current(self) -> Sequence[Part | None]:
        """What a new frame runs: a layer, or None where it must ask the table, which loads it.

        Loading fills the gaps; a switch leaves it as it is.
        """
        return self._layers

    @property
    def is_loading(self) -> bool:
        """Whether a lane still has, or may take, work."""
        return self._remaining > 0 and not self.is_closed

    @property
    def loaded(self) -> int:
        """How many layers are loaded by now."""
        return len(self._layers) - self._remaining

    @property
    def is_whole(self) -> bool:
        """Whether every layer is loaded and none has failed."""
        with self._changed:
            return not self._remaining and not self._errors

    def next_free(self) -> int | None:
        """The first layer that nobody has begun; None where there is none."""
        index = self._claimed.find(0)
        return None if index < 0 else index

    def switch(self, layers: Mapping[int, Part]) -> None:
        """Give frames that start from now on these layers; those that run keep theirs.

        Precondition: the table is whole.
        """
        if not self.is_whole:
            raise InternalError("layers are switched before they are loaded")
        self._layers = [layers.get(index, layer) for index, layer in enumerate(self._layers)]
        self._load = _load_nothing  # lets go of what the first ones came from

    def work(self, name: str, give_way: GiveWay | None = None) -> None:
        """Load layers in the calling thread, the lane ``name``, until none is left to claim.

        ``give_way`` is called with this table before each, and may block for a while.
        """
        with self._changed:
            self.lanes_at_work += 1
        while True:
            if give_way is not None:
                give_way(self)
            # Claimed behind the wait: an executor that needs the layer meanwhile takes it.
            if self.is_closed or (index := self._claim()) is None:
                break
            with contextlib.suppress(UnavailableError):  # later, then
                self._perform(index, name)
        with self._changed:
            self.lanes_at_work -= 1

    def wait(self, timeout_s: float) -> bool:
        """Until every layer is loaded, or has failed; False after the time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._remaining == 0, timeout_s)

    def when_loaded(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once every layer is loaded, or has failed: at once, or in the thread that
        loads the last one, before anybody can run that. It must not block, or use the table.
        """
        with self._changed:
            if self._remaining == 0:
                tell()
            else:
                self._told.append(tell)

    def close(self) -> None:
        """Let no lane begin another layer; an executor still may."""
        self.is_closed = True

    def _claim(self, wanted: int | None = None) -> int | None:
        """``wanted``, or the first layer that nobody has begun; None where that is not free."""
        with self._changed:
            index = self._claimed.find(0) if wanted is None else wanted
            if index < 0 or self._claimed[index]:
                return None
            self._claimed[index] = 1
            return index

    def _claim_here(self) -> int | None:
        """The first layer that nobody has begun, if loading it waits for nothing."""
        index = self.next_free()
        return None if index is None or not self._is_here(index) else self._claim(index)

    def _perform(self, index: int, lane: str) -> None:
        """Load a claimed layer and publish it, or what it raised.

        Raises UnavailableError where it may be had later.
        """
        layer: Part | None = None
        error: BriskError | None = None
        started_ns = clock_ns()
        try:
            layer = self._load(index)
            self.recorder.add(lane, EventKind.CREATE, index, started_ns)
        except UnavailableError:
            with self._changed:
                self._claimed[index] = self._layers[index] is not None
                self._changed.notify_all()
            raise
        except BriskError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001  # whoever needs the layer must learn of it
            error = InternalError(f"layer {index}: {type(raised).__name__}: {raised}")
        with self._changed:
            if self._layers[index] is not None or index in self._errors:
                return  # it was rescued, or the other way round
            self._remaining -= 1
            if self._remaining == 0:
                for tell in self._told:
                    tell()
                self._told.clear()
            self._layers[index] = layer
            if error is not None:
                self._errors[index] = error
            self._changed.notify_all()

    def _wait_for(self, index: int) -> bool:
        started_ns = clock_ns()
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._layers[index] is not None or index in self._errors, PATIENCE_S
            )
        self.recorder.add(EXECUTOR, EventKind.WAIT, index, started_ns)
        return done


def _load_nothing(index: int) -> Any:
    raise InternalError(f"layer {index} is loaded again")
