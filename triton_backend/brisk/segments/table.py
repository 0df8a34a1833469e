"""Layers that are loaded by lanes while the first frames already run them.

Every layer has one loader: whoever claims it, a lane or the executor that needs it. The exception
is a layer whose lane does not come back: the executor loads it, too, and the first one counts.
Lanes take the layers of their own queues in order, then those at the head of the longest other
queue (NNV12 3.3, workload stealing). An executor that meets a layer nobody has begun loads it
itself; one that meets a layer in work waits a moment, then loads the next free ones meanwhile.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, overload

from brisk.errors import BriskError, InternalError
from brisk.segments.timeline import EventKind, Recorder, clock_ns

PATIENCE_S = 0.001
"""How long an executor waits for a layer in work before it helps with others."""

RESCUE_S = 2.0
"""How long an executor waits for one layer in work; then it loads that itself. Far above what any
layer takes: a lane that takes longer hangs, or stands back on a machine without an idle moment."""

EXECUTOR = "issue"

Part = TypeVar("Part")
"""What stands in a table: a segment, ready to run; a layer, where torch computes."""

LoadPart: TypeAlias = "Callable[[int, str, bool], Part]"
"""Loads a layer by its number, in the lane of that name; the flag says that it is stolen."""

GiveWay: TypeAlias = "Callable[[LayerTable[Any]], None]"


class LayerTable(Sequence[Part]):
    """The layers of one program. Thread-safe.

    Indexing is the executor's: it returns the layer as soon as it is loaded, and loads it where
    it must. Raises what loading raised.
    """

    def __init__(
        self,
        count: int,
        load: LoadPart[Part],
        queues: Sequence[Sequence[int]],
        recorder: Recorder | None = None,
    ) -> None:
        """``queues``: the layers of each lane in order, none twice; what is in no queue is the
        executor's, or of whoever has nothing else to do.
        """
        self._load = load
        self._recorder = recorder
        self._layers: list[Part | None] = [None] * count
        self._claimed = bytearray(count)
        self._errors: dict[int, BriskError] = {}
        self._queues = [deque(queue) for queue in queues]
        self._changed = threading.Condition()
        self._remaining = count
        self._complete: tuple[Part, ...] | None = () if count == 0 else None
        self._closed = False
        self._told: list[Callable[[], None]] = []
        self._early: list[weakref.ref[_Loading[Part]]] = []
        self._workers = 0

    def __len__(self) -> int:
        return len(self._layers)

    @overload
    def __getitem__(self, position: int) -> Part: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Part]: ...
    def __getitem__(self, position: int | slice) -> Part | Sequence[Part]:
        if isinstance(position, slice):
            return [self[index] for index in range(*position.indices(len(self)))]
        layer = self._layers[position]
        if layer is not None:
            return layer
        return self._await(position)

    def current(self) -> Sequence[Part]:
        """What a new frame runs: the finished layers as a tuple, else each as it is loaded."""
        if self._complete is not None:
            return self._complete
        loading = _Loading(self)
        self._early.append(weakref.ref(loading))
        return loading

    @property
    def is_loading(self) -> bool:
        """Whether a lane still has, or may take, work."""
        return self._remaining > 0 and not self._closed

    @property
    def loaded(self) -> int:
        """How many layers are loaded by now."""
        return len(self._layers) - self._remaining

    @property
    def lanes_at_work(self) -> int:
        return self._workers

    @property
    def is_whole(self) -> bool:
        """Whether every layer is loaded and none has failed."""
        return self._complete is not None

    @property
    def is_closed(self) -> bool:
        return self._closed

    def switch(self, layers: Mapping[int, Part]) -> None:
        """Give frames that start from now on these layers; those that run keep theirs.

        Precondition: the table is whole.
        """
        with self._changed:
            if self._complete is None:
                raise InternalError("layers are switched before they are loaded")
            present = enumerate(self._complete)
            self._complete = tuple(layers.get(index, layer) for index, layer in present)
            if not any(frame() for frame in self._early):
                self._layers[:] = self._complete  # lets go of the first ones, and of their source
                self._load = _load_nothing
                self._early.clear()

    def work(self, lane: int, name: str, give_way: GiveWay | None = None) -> None:
        """Load layers in the calling thread until none is left to claim.

        ``give_way`` is called with this table before each, and may block for a while.
        """
        with self._changed:
            self._workers += 1
        while True:
            if give_way is not None:
                give_way(self)
            # Claimed behind the wait: an executor that needs the layer meanwhile takes it.
            if (claim := self._claim(lane)) is None:
                break
            index, stolen = claim
            self._perform(index, name, stolen)
        with self._changed:
            self._workers -= 1

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
        self._closed = True

    def _claim(self, lane: int) -> tuple[int, bool] | None:
        """The next layer of the lane's queue, or of the longest other: (layer, stolen)."""
        with self._changed:
            if self._closed:
                return None
            own = self._queues[lane]
            others = sorted(self._queues, key=len, reverse=True)
            for queue in (own, *others):
                while queue:
                    index = queue.popleft()
                    if not self._claimed[index]:
                        self._claimed[index] = 1
                        return index, queue is not own
            index = self._claimed.find(0)
            if index >= 0:
                self._claimed[index] = 1
                return index, True
        return None

    def _claim_this(self, index: int) -> bool:
        with self._changed:
            if self._claimed[index]:
                return False
            self._claimed[index] = 1
            return True

    def _claim_any(self) -> int | None:
        """The first layer that nobody has begun."""
        with self._changed:
            index = self._claimed.find(0)
            if index < 0:
                return None
            self._claimed[index] = 1
            return index

    def _perform(self, index: int, lane: str, stolen: bool) -> None:
        """Load a claimed layer and publish it, or what it raised."""
        layer: Part | None = None
        error: BriskError | None = None
        try:
            layer = self._load(index, lane, stolen)
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
            elif self._remaining == 0 and not self._errors:
                self._complete = tuple(each for each in self._layers if each is not None)
            self._changed.notify_all()

    def _await(self, index: int) -> Part:
        give_up_ns = clock_ns() + int(RESCUE_S * 1e9)
        while (layer := self._layers[index]) is None and index not in self._errors:
            if self._claim_this(index):
                self._perform(index, EXECUTOR, stolen=True)
            elif not self._wait_for(index):
                if (other := self._claim_any()) is not None:
                    self._perform(other, EXECUTOR, stolen=True)
                elif clock_ns() > give_up_ns:
                    self._perform(index, EXECUTOR, stolen=True)
        if layer is None:
            raise self._errors[index]
        return layer

    def _wait_for(self, index: int) -> bool:
        started_ns = clock_ns()
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._layers[index] is not None or index in self._errors, PATIENCE_S
            )
        if self._recorder is not None:
            self._recorder.add(EXECUTOR, EventKind.WAIT, index, started_ns)
        return done


def _load_nothing(index: int, lane: str, stolen: bool) -> Any:
    raise InternalError(f"layer {index} is loaded again")


class _Loading(Sequence[Part]):
    """The layers of a frame that began before all were loaded: as long as it lives, the first ones
    stay.
    """

    __slots__ = ("__weakref__", "_table")

    def __init__(self, table: LayerTable[Part]) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, position: int) -> Part: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[Part]: ...
    def __getitem__(self, position: int | slice) -> Part | Sequence[Part]:
        return self._table[position]
