"""The device that computes; on a GPU, launches are issued to streams ahead of its work.

On a CPU a step is done when its call returns; on a GPU a call only issues work. CUDA is
initialised only in the worker, because it does not survive a fork.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from brisk.errors import InvalidConfigurationError, UnavailableError
from brisk.runtime.sessions.session import Frame
from brisk.scheduling.job_class import JobClass

if TYPE_CHECKING:
    from brisk.gpu.device import Device
    from brisk.gpu.driver import Event, Stream

PROVIDER = "CUDAExecutionProvider"

_device: Device | None = None


def gpu() -> Device:
    """Return the worker's GPU. Precondition: ``open_queues`` has been called for one."""
    assert _device is not None
    return _device


def synchronise() -> None:
    """Wait for what the calling thread has issued to a GPU, if anything."""
    if _device is not None:
        _device.stream.synchronise()


def has_lost_device(error: Exception) -> bool:
    """Return whether each further call of this process to its GPU fails since ``error``, as it
    does after a kernel's illegal access. Waits for what was issued.
    """
    if _device is None:
        return False
    from brisk.gpu.driver import CudaError

    if isinstance(error, CudaError) and error.is_sticky:
        return True
    try:
        _device.context.synchronise()
    except CudaError as lost:
        return lost.is_sticky
    return False


class LaunchQueue:
    """A stream's virtual host queue: how far a run is issued ahead of the GPU (REEF, 4.4: REEF-N).

    REEF-N buffers launched kernels in front of the GPU runtime and transmits at most *c* of them,
    so that a preemption has little to wait for and can drop the rest. Here a frame issues its
    launches one by one, so what would be dropped was never made: a preempted run stays at the
    boundary after its last launch, and goes on from there. At most ``capacity`` of its launches
    are then still on the device. They run to their end; a stream of high priority does not wait
    for them, only for the blocks that run already. REEF's eviction flag, which would end them
    sooner, needs a line of code in each kernel, which kernels of a vendor's library do not have.

    Used by the worker's main thread, which looks at its sockets while there is no room.
    """

    def __init__(
        self, device: Device | None = None, urgency: int = 0, capacity: int | None = None
    ) -> None:
        """Make an empty queue. ``device`` None: on a CPU, where there is always room. ``urgency``:
        the index of its stream. ``capacity`` None: no bound.
        """
        self._device = device
        self._stream: Stream | None = None if device is None else device.streams[urgency]
        self._capacity = capacity
        self._outstanding: deque[Event] = deque()
        self._free: list[Event] = []

    def issuing(self) -> AbstractContextManager[object]:
        """Return a context in which the calling thread issues to this queue's stream."""
        if self._device is None or self._stream is None:
            return nullcontext()
        return self._device.issuing(self._stream)

    def has_room(self) -> bool:
        """Return whether another launch may be issued now."""
        return self._capacity is None or self._drop_done() < self._capacity

    def issue(self, frame: Frame) -> bool:
        """Issue the frame's next launch; return True if it was the last. Precondition: room."""
        is_last = frame.step()
        if self._stream is not None and (is_last or self._capacity is not None):
            self._outstanding.append(self._recorded(self._stream))
        return is_last

    def is_done(self) -> bool:
        """Return whether the device has done all that was issued; never blocks."""
        return not self._drop_done()

    def _recorded(self, stream: Stream) -> Event:
        assert self._device is not None
        event = self._free.pop() if self._free else self._device.context.event()
        event.record(stream)
        return event

    def _drop_done(self) -> int:
        """Forget the launches that are done (they end in order); return how many are left."""
        while self._outstanding and self._outstanding[0].is_done():
            self._free.append(self._outstanding.popleft())
        return len(self._outstanding)


def open_queues(
    device: str, capacity: int, *, is_limited: bool = False
) -> Mapping[JobClass, LaunchQueue]:
    """Return the queues that the work of each class is issued to, on ``cpu`` or ``cuda:<n>``.

    ``capacity``: launches, except those of real-time runs, that may be on a GPU. ``is_limited``:
    its memory must have a limit. Raises UnavailableError if it has none, if ONNX Runtime has no
    provider for the device or there is no driver, and InvalidConfigurationError if there is no
    such device.
    """
    if device == "cpu":
        return dict.fromkeys(JobClass, LaunchQueue())
    global _device
    _device = _opened(device, is_limited=is_limited)
    return {
        job_class: LaunchQueue(_device, urgency, None if urgency == 0 else capacity)
        for urgency, job_class in enumerate(
            (JobClass.REALTIME, JobClass.NORMAL, JobClass.BESTEFFORT)
        )
    }


def _opened(device: str, *, is_limited: bool) -> Device:
    from brisk.gpu.device import Device
    from brisk.gpu.driver import Context, Driver
    from brisk.gpu.memory_limit import NAME, LimitedContext, memory_limit
    from brisk.segments.onnxruntime import onnxruntime

    if PROVIDER not in onnxruntime().get_available_providers():
        raise UnavailableError(
            "models on a GPU are computed by ONNX Runtime's CUDA provider, which onnxruntime "
            f"{onnxruntime().__version__} of {sys.executable} does not have: replace it there "
            "(pip uninstall onnxruntime, then pip install onnxruntime-gpu), or ask for "
            "KIND_CPU in the instance group"
        )
    limit = memory_limit()
    if is_limited and limit is None:
        raise UnavailableError(
            f"{NAME} is set, but the library that would keep the limit cannot be loaded: the "
            "runtime's log has the reason"
        )
    driver = Driver()
    kind, _, ordinal = device.partition(":")
    if kind != "cuda" or not ordinal.isdigit() or int(ordinal) >= driver.devices:
        raise InvalidConfigurationError(
            f"device '{device}' is not here: the driver sees {driver.devices} CUDA devices; ask "
            "for KIND_CPU in the instance group, or let the container see the device"
        )
    if limit is not None:
        return Device(LimitedContext(driver, int(ordinal), limit))
    return Device(Context(driver, int(ordinal)))
