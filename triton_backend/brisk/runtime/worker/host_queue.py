"""A stream's virtual host queue: how far a run is issued ahead of the device (REEF, 4.4: REEF-N).

REEF-N buffers launched kernels in front of the GPU runtime and transmits at most *c* of them, so
that a preemption has little to wait for and can drop the rest. Here a frame makes its layers one
by one, so what is dropped was never made: a run that is preempted stays at the boundary behind
its last issued layer, and goes on from there. At most ``capacity`` of its layers are still on the
device then. They run to their end; a stream of high priority does not wait for them, only for
the blocks that run already. REEF's eviction flag, which would end them sooner, needs a line of
code in each kernel, which kernels of a vendor's library do not have.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import Protocol

from brisk.runtime.worker.device import Event, Stream


class Steppable(Protocol):
    """A frame, of a network or of several."""

    def step(self) -> bool: ...


class HostQueue:
    """Issues layers to ``stream``, at most ``capacity`` ahead of it; None: without bound.

    Used by the worker's main thread, which looks at its sockets while there is no room. Where a
    layer is done when its call returns, as on a CPU, there always is.
    """

    def __init__(self, stream: Stream, capacity: int | None) -> None:
        self._stream = stream
        self._capacity = capacity
        self._outstanding: deque[Event] = deque()

    def issuing(self) -> AbstractContextManager[object]:
        """While entered, the calling thread issues to this queue's stream."""
        return self._stream.issuing()

    def has_room(self) -> bool:
        """Whether another layer may be issued now."""
        return self._capacity is None or self._drop_done() < self._capacity

    def issue(self, frame: Steppable) -> bool:
        """Issue the frame's next layer; True where it was the last. There must be room."""
        is_last = frame.step()
        if is_last or self._capacity is not None:
            self._outstanding.append(self._stream.record())
        return is_last

    def is_done(self) -> bool:
        """Whether the device has done all that was issued; never blocks."""
        return not self._drop_done()

    def _drop_done(self) -> int:
        """Forget the layers that are done, which are so in order; how many are left."""
        while self._outstanding and self._outstanding[0].is_done():
            self._outstanding.popleft()
        return len(self._outstanding)
