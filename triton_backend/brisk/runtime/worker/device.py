"""A device with its streams and events, the same for the CPU and for CUDA.

On the CPU a layer is done when its call returns, so streams order nothing and every event is
done; the executor is written for CUDA, where a call only issues work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import TYPE_CHECKING

from brisk.errors import InvalidConfigurationError

if TYPE_CHECKING:
    import torch


class StreamPriority(Enum):
    HIGH = "high"
    LOW = "low"


class Event(ABC):
    """A point in a stream's work."""

    @abstractmethod
    def is_done(self) -> bool:
        """Whether all work issued before the event is finished; never blocks."""

    @abstractmethod
    def wait(self) -> None:
        """Block until it is."""


class Stream(ABC):
    """An order of work on a device."""

    @abstractmethod
    def issuing(self) -> AbstractContextManager[object]:
        """While entered, the calling thread issues to this stream."""

    @abstractmethod
    def record(self) -> Event:
        """An event behind everything issued so far."""


class Device(ABC):
    """What computes. One runtime process owns one device.

    ``is_asynchronous``: a layer's call returns before the layer is done.
    """

    def __init__(self, name: str, is_asynchronous: bool) -> None:
        """``name``: ``cpu`` or ``cuda:<n>``."""
        self.name = name
        self.is_asynchronous = is_asynchronous

    @abstractmethod
    def new_stream(self, priority: StreamPriority) -> Stream: ...


class _DoneEvent(Event):
    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


class _CpuStream(Stream):
    def issuing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def record(self) -> Event:
        return _DoneEvent()


class CpuDevice(Device):
    def __init__(self) -> None:
        super().__init__("cpu", is_asynchronous=False)

    def new_stream(self, priority: StreamPriority) -> Stream:
        return _CpuStream()


class _CudaEvent(Event):
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]  # torch

    def wait(self) -> None:
        self._event.synchronize()


class _CudaStream(Stream):
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def issuing(self) -> AbstractContextManager[object]:
        import torch

        return torch.cuda.stream(self._stream)

    def record(self) -> Event:
        import torch

        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch
        event.record(self._stream)
        return _CudaEvent(event)


class CudaDevice(Device):
    """A CUDA device; made in the worker only, because CUDA does not survive a fork."""

    def new_stream(self, priority: StreamPriority) -> Stream:
        import torch

        # CUDA counts downwards: a smaller number is more urgent.
        number = -1 if priority is StreamPriority.HIGH else 0
        stream = torch.cuda.Stream(  # type: ignore[no-untyped-call]  # torch
            torch.device(self.name), priority=number
        )
        return _CudaStream(stream)


def open_device(name: str) -> Device:
    """The device ``cpu`` or ``cuda:<n>``; InvalidConfigurationError where there is none."""
    if name == "cpu":
        return CpuDevice()
    import torch

    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.type != "cuda" or device.index is None or device.index >= count:
        raise InvalidConfigurationError(
            f"device '{name}' is not here: torch {torch.__version__} sees {count} CUDA devices; "
            "ask for KIND_CPU in the instance group, or give the runtime a CUDA build of torch "
            "with BRISK_PYTHON"
        )
    return CudaDevice(name, is_asynchronous=True)
