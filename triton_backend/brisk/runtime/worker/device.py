"""What computes: streams of layers on the device, and torch where that is a GPU.

On a CPU a layer is done when its call returns; on a GPU a call only issues work. CUDA is
initialised in the worker only, because it does not survive a fork.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any

from brisk.errors import BriskError, InvalidConfigurationError, UnavailableError
from brisk.runtime.models.session import Frame
from brisk.scheduling.job import JobClass

if TYPE_CHECKING:
    import torch

_torch: ModuleType | None = None


def import_torch(threads: int) -> None:
    """Have torch ready, to compute with ``threads``; any thread, any number of times.

    Raises UnavailableError where it is not installed.
    """
    global _torch
    if _torch is not None:
        return
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UnavailableError(
            f"models on a GPU are computed by torch, which {sys.executable} does not have: "
            "install 'brisk-triton[gpu]' there, or ask for KIND_CPU in the instance group"
        ) from error

    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False  # answers agree with the CPU's, in full float32
    torch.backends.cuda.matmul.allow_tf32 = False
    _torch = torch


def inference() -> AbstractContextManager[object]:
    """While entered, the calling thread's tensors remember nothing of how they were made."""
    return nullcontext() if _torch is None else _torch.inference_mode()


def synchronise() -> None:
    """Wait for what the calling thread has issued to a GPU, if anything."""
    if _torch is not None and _torch.cuda.is_initialized():
        _torch.cuda.current_stream().synchronize()


def has_lost_device(error: Exception) -> bool:
    """Whether ``error`` is one of a GPU behind which each further call of this process fails, such
    as a kernel's illegal access. Waits for what was issued.
    """
    if _torch is None or isinstance(error, BriskError) or not _torch.cuda.is_initialized():
        return False
    try:
        _torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


class LayerQueue:
    """A stream's virtual host queue: how far a run is issued ahead of the GPU (REEF, 4.4: REEF-N).

    REEF-N buffers launched kernels in front of the GPU runtime and transmits at most *c* of them,
    so that a preemption has little to wait for and can drop the rest. Here a frame makes its
    layers one by one, so what is dropped was never made: a run that is preempted stays at the
    boundary behind its last issued layer, and goes on from there. At most ``capacity`` of its
    layers are still on the device then. They run to their end; a stream of high priority does not
    wait for them, only for the blocks that run already. REEF's eviction flag, which would end them
    sooner, needs a line of code in each kernel, which kernels of a vendor's library do not have.

    Used by the worker's main thread, which looks at its sockets while there is no room.
    """

    def __init__(self, stream: torch.cuda.Stream | None, capacity: int | None) -> None:
        """``stream`` None: on a CPU, where there always is room. ``capacity`` None: no bound."""
        self._stream = stream
        self._capacity = capacity
        self._outstanding: deque[Any] = deque()  # of events of torch

    def issuing(self) -> AbstractContextManager[object]:
        """While entered, the calling thread issues to this queue's stream."""
        if self._stream is None or _torch is None:
            return nullcontext()
        stream: AbstractContextManager[object] = _torch.cuda.stream(self._stream)
        return stream

    def has_room(self) -> bool:
        """Whether another layer may be issued now."""
        return self._capacity is None or self._drop_done() < self._capacity

    def issue(self, frame: Frame) -> bool:
        """Issue the frame's next layer; True where it was the last. There must be room."""
        is_last = frame.step()
        if self._stream is not None and (is_last or self._capacity is not None):
            self._outstanding.append(self._stream.record_event())
        return is_last

    def is_done(self) -> bool:
        """Whether the device has done all that was issued; never blocks."""
        return not self._drop_done()

    def _drop_done(self) -> int:
        """Forget the layers that are done, which are so in order; how many are left."""
        while self._outstanding and self._outstanding[0].query():
            self._outstanding.popleft()
        return len(self._outstanding)


def open_queues(device: str, capacity: int, threads: int) -> Mapping[JobClass, LayerQueue]:
    """Where the layers of each class are issued, on ``cpu`` or ``cuda:<n>``.

    ``capacity``: layers of other than real-time runs that may be on a GPU. Raises
    UnavailableError where torch is not installed, InvalidConfigurationError where there is no such
    device.
    """
    if device == "cpu":
        return dict.fromkeys(JobClass, LayerQueue(None, None))
    import_torch(threads)
    import torch

    wanted = torch.device(device)
    count = torch.cuda.device_count()
    if wanted.type != "cuda" or wanted.index is None or wanted.index >= count:
        raise InvalidConfigurationError(
            f"device '{device}' is not here: torch {torch.__version__} sees {count} CUDA devices; "
            "ask for KIND_CPU in the instance group, or give the runtime a CUDA build of torch "
            "with BRISK_PYTHON"
        )
    # CUDA counts downwards: a smaller number is more urgent.
    urgent, other = (
        torch.cuda.Stream(wanted, priority=number)  # type: ignore[no-untyped-call]  # torch
        for number in (-1, 0)
    )
    queues = dict.fromkeys(JobClass, LayerQueue(other, capacity))
    return {**queues, JobClass.REALTIME: LayerQueue(urgent, None)}
