"""NVIDIA's driver, called directly: contexts, streams, events, memory and kernels.

ONNX Runtime computes on a stream that is made here; Brisk also decides what to wait for, how far
ahead to issue work and what to launch next. So it calls the driver without a library in between
(``libcuda.so.1`` by ctypes, which releases the interpreter's lock for each call), and checks the
result of each call.

All of it is usable from any thread in which the context is current (``Context.enter``).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from ctypes import c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from typing import NamedTuple

from brisk.errors import InternalError, UnavailableError

LIBRARY = "libcuda.so.1"

OUT_OF_MEMORY, NOT_READY = 2, 600

_STICKY = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721})
"""Errors after which each further call of the process fails: of the memory, of a kernel that read
what it may not, trapped or did not end. (700 to 719 holds others: 712, memory that is registered
already, harms nothing.)"""

_NON_BLOCKING = 1
"""The flag of a stream that does not wait for the default one, which others use."""

_ATTRIBUTES = {"multiprocessors": 16, "major": 75, "minor": 76}

_POINTER = c_void_p

_SIGNATURES: Mapping[str, Sequence[type]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_POINTER,),
    "cuGetErrorName": (c_int, _POINTER),
    "cuDeviceGetCount": (_POINTER,),
    "cuDeviceGet": (_POINTER, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (_POINTER, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (_POINTER,),
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxGetStreamPriorityRange": (_POINTER, _POINTER),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (_POINTER, _POINTER),
    "cuMemAlloc_v2": (_POINTER, c_size_t),
    "cuMemFree_v2": (_POINTER,),
    "cuMemHostAlloc": (_POINTER, c_size_t, c_uint),
    "cuMemFreeHost": (_POINTER,),
    "cuMemHostRegister_v2": (_POINTER, c_size_t, c_uint),
    "cuMemHostUnregister": (_POINTER,),
    "cuMemHostGetDevicePointer_v2": (_POINTER, _POINTER, c_uint),
    "cuPointerGetAttribute": (_POINTER, c_int, _POINTER),
    "cuMemcpyHtoDAsync_v2": (_POINTER, _POINTER, c_size_t, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _POINTER, c_size_t, _POINTER),
    "cuMemcpyDtoDAsync_v2": (_POINTER, _POINTER, c_size_t, _POINTER),
    "cuStreamCreateWithPriority": (_POINTER, c_uint, c_int),
    "cuStreamDestroy_v2": (_POINTER,),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamQuery": (_POINTER,),
    "cuStreamWaitEvent": (_POINTER, _POINTER, c_uint),
    "cuStreamBeginCapture_v2": (_POINTER, c_int),
    "cuStreamEndCapture": (_POINTER, _POINTER),
    "cuEventCreate": (_POINTER, c_uint),
    "cuEventDestroy_v2": (_POINTER,),
    "cuEventRecord": (_POINTER, _POINTER),
    "cuEventQuery": (_POINTER,),
    "cuEventSynchronize": (_POINTER,),
    "cuEventElapsedTime": (_POINTER, _POINTER, _POINTER),
    "cuModuleLoadData": (_POINTER, _POINTER),
    "cuModuleUnload": (_POINTER,),
    "cuModuleGetFunction": (_POINTER, _POINTER, c_char_p),
    "cuLaunchKernel": (_POINTER, *(c_uint,) * 7, _POINTER, _POINTER, _POINTER),
    "cuGraphGetNodes": (_POINTER, _POINTER, _POINTER),
    "cuGraphGetEdges_v2": (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    "cuGraphNodeGetType": (_POINTER, _POINTER),
    "cuGraphCreate": (_POINTER, c_uint),
    "cuGraphKernelNodeGetParams_v2": (_POINTER, _POINTER),
    "cuGraphAddKernelNode_v2": (_POINTER, _POINTER, _POINTER, c_size_t, _POINTER),
    "cuGraphKernelNodeCopyAttributes": (_POINTER, _POINTER),
    "cuGraphMemcpyNodeGetParams": (_POINTER, _POINTER),
    "cuGraphAddMemcpyNode": (_POINTER, _POINTER, _POINTER, c_size_t, _POINTER, _POINTER),
    "cuGraphMemsetNodeGetParams": (_POINTER, _POINTER),
    "cuGraphAddMemsetNode": (_POINTER, _POINTER, _POINTER, c_size_t, _POINTER, _POINTER),
    "cuGraphAddEmptyNode": (_POINTER, _POINTER, _POINTER, c_size_t),
    "cuGraphDestroy": (_POINTER,),
    "cuGraphInstantiateWithFlags": (_POINTER, _POINTER, ctypes.c_ulonglong),
    "cuGraphKernelNodeGetAttribute": (_POINTER, c_int, _POINTER),
    "cuGraphUpload": (_POINTER, _POINTER),
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuGraphExecDestroy": (_POINTER,),
    "cuDeviceGetDevResource": (c_int, _POINTER, c_int),
    "cuDevSmResourceSplitByCount": (_POINTER, _POINTER, _POINTER, _POINTER, c_uint, c_uint),
    "cuDevResourceGenerateDesc": (_POINTER, _POINTER, c_uint),
    "cuGreenCtxCreate": (_POINTER, _POINTER, c_int, c_uint),
    "cuGreenCtxDestroy": (_POINTER,),
    "cuGreenCtxStreamCreate": (_POINTER, _POINTER, c_uint, c_int),
}
"""The arguments of each function that is called; all return a CUresult. The names are the driver's
own, whose suffix is the version that these arguments belong to."""


class CudaError(InternalError):
    """A call of the driver failed, with the CUresult ``number``.

    ``is_sticky``: nothing of this process can use the device any more, so the process has to end.
    """

    def __init__(self, function: str, number: int, name: str) -> None:
        super().__init__(f"{function} of NVIDIA's driver failed: {name} ({number})")
        self.number = number
        self.is_sticky = number in _STICKY


class Driver:
    """The driver's functions, by name."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load the driver. Raises UnavailableError if there is no driver, or no device that it
        drives."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise UnavailableError(
                f"NVIDIA's driver is not here ({error}): a container needs --gpus, a machine the "
                "driver's package"
            ) from error
        try:
            self.call("cuInit", 0)
        except CudaError as error:
            raise UnavailableError(f"NVIDIA's driver is here, but no device: {error}") from error

    def call(self, function: str, *arguments: object) -> None:
        """Call a function. Raises CudaError if the result is not success."""
        number = self._result(function, *arguments)
        if number:
            raise CudaError(function, number, self._name_of(number))

    def is_done(self, function: str, handle: int) -> bool:
        """Return what ``cuStreamQuery`` and ``cuEventQuery`` report; never waits. Raises
        CudaError."""
        number = self._result(function, handle)
        if number not in (0, NOT_READY):
            raise CudaError(function, number, self._name_of(number))
        return number == 0

    def handle(self, function: str, *arguments: object) -> int:
        """Return the handle that a function writes to its first argument."""
        handle = c_void_p()
        self.call(function, ctypes.byref(handle), *arguments)
        return handle.value or 0

    def number(self, function: str, *arguments: object) -> int:
        """Return the ``int`` that a function writes to its first argument."""
        value = c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value

    @property
    def version(self) -> tuple[int, int]:
        """The newest version of CUDA that the driver can run, such as (13, 0)."""
        number = self.number("cuDriverGetVersion")
        return number // 1000, number % 1000 // 10

    @property
    def devices(self) -> int:
        return self.number("cuDeviceGetCount")

    def _result(self, name: str, *arguments: object) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise UnavailableError(f"NVIDIA's driver has no {name}: it is too old") from error
        if function.argtypes is None:
            function.argtypes = _SIGNATURES[name]
        result: int = function(*arguments)
        return result

    def _name_of(self, number: int) -> str:
        name = c_char_p()
        if self._result("cuGetErrorName", number, ctypes.byref(name)) or name.value is None:
            return "an error that it does not name"
        return name.value.decode()


class Facts(NamedTuple):
    """Properties of a device."""

    name: str
    capability: tuple[int, int]
    """The version of its kernels, such as (9, 0)."""
    multiprocessors: int
    memory_bytes: int
    priorities: tuple[int, int]
    """The least and the most urgent priority of streams; a smaller number is more urgent."""


class Context:
    """The primary context of a device, which all libraries of the process use."""

    def __init__(self, driver: Driver, ordinal: int = 0) -> None:
        """Make the context current in the calling thread; the first use of a device takes a tenth
        of a second and more.

        Raises CudaError; UnavailableError if there is no such device.
        """
        if not 0 <= ordinal < driver.devices:
            raise UnavailableError(
                f"there is no device cuda:{ordinal}; the driver sees {driver.devices}"
            )
        self.driver = driver
        self.device = driver.number("cuDeviceGet", ordinal)
        self._handle = driver.handle("cuDevicePrimaryCtxRetain", self.device)
        self.enter()

    def close(self) -> None:
        """Release the context. Precondition: everything made in it is closed."""
        if self._handle:
            self._handle = 0
            self.driver.call("cuDevicePrimaryCtxRelease_v2", self.device)

    def enter(self) -> None:
        """Make the context current in the calling thread."""
        self.driver.call("cuCtxSetCurrent", self._handle)

    @property
    def facts(self) -> Facts:
        name = ctypes.create_string_buffer(256)
        self.driver.call("cuDeviceGetName", name, len(name), self.device)
        attributes = {
            each: self.driver.number("cuDeviceGetAttribute", number, self.device)
            for each, number in _ATTRIBUTES.items()
        }
        least, most = c_int(), c_int()
        self.driver.call("cuCtxGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(most))
        return Facts(
            name=name.value.decode(),
            capability=(attributes["major"], attributes["minor"]),
            multiprocessors=attributes["multiprocessors"],
            memory_bytes=self.memory()[1],
            priorities=(least.value, most.value),
        )

    def memory(self) -> tuple[int, int]:
        """Return the device's free bytes, and all of its bytes."""
        free, total = c_size_t(), c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def synchronise(self) -> None:
        """Wait for all work that was issued in the context."""
        self.driver.call("cuCtxSynchronize")

    def stream(self, priority: int = 0) -> Stream:
        """Return a new stream.

        ``priority``: see ``Facts.priorities``; what is out of range counts as its end.
        """
        handle = self.driver.handle("cuStreamCreateWithPriority", _NON_BLOCKING, priority)
        return Stream(self.driver, handle)

    def event(self) -> Event:
        return Event(self.driver, self.driver.handle("cuEventCreate", 0))

    def allocate(self, size_bytes: int) -> DeviceMemory:
        """Allocate memory of the device. Raises CudaError (2, out of memory) if there is not
        enough."""
        return DeviceMemory(self.driver, self.driver.handle("cuMemAlloc_v2", size_bytes))

    def pinned(self, size_bytes: int) -> HostMemory:
        """Allocate pinned memory of the process, which the device reads and writes by itself at
        full speed."""
        return HostMemory(self.driver, self.driver.handle("cuMemHostAlloc", size_bytes, 0))

    @contextlib.contextmanager
    def registered(self, address: int, size_bytes: int) -> Iterator[None]:
        """Let the device read and write these pages of the process by itself while entered."""
        self.driver.call("cuMemHostRegister_v2", address, size_bytes, 0)
        try:
            yield
        finally:
            self.driver.call("cuMemHostUnregister", address)

    def module(self, image: bytes) -> Module:
        """Load kernels. ``image``: PTX, or machine code for the device."""
        text = ctypes.create_string_buffer(image)
        return Module(self.driver, self.driver.handle("cuModuleLoadData", text))


class _Resource:
    """A resource of a context that has to be given back, once."""

    _DESTROY = ""

    def __init__(self, driver: Driver, handle: int) -> None:
        self.driver = driver
        self.handle = handle

    def close(self) -> None:
        if self.handle:
            handle, self.handle = self.handle, 0
            self.driver.call(self._DESTROY, handle)

    def __enter__(self) -> object:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Stream(_Resource):
    """Work that is done in the order in which it is issued."""

    _DESTROY = "cuStreamDestroy_v2"

    def synchronise(self) -> None:
        self.driver.call("cuStreamSynchronize", self.handle)

    def is_done(self) -> bool:
        return self.driver.is_done("cuStreamQuery", self.handle)

    def wait_for(self, event: Event) -> None:
        """Let later work of the stream begin when the event is passed; returns at once."""
        self.driver.call("cuStreamWaitEvent", self.handle, event.handle, 0)

    def to_device(self, memory: DeviceMemory, address: int, size_bytes: int) -> None:
        """Copy bytes at ``address`` to the device.

        Return after they are read if they are not registered. Else return at once; they must not
        change until the copy is done.
        """
        self.driver.call("cuMemcpyHtoDAsync_v2", memory.handle, address, size_bytes, self.handle)

    def to_host(self, address: int, memory: DeviceMemory, size_bytes: int) -> None:
        """Copy bytes to ``address``, like ``to_device``."""
        self.driver.call("cuMemcpyDtoHAsync_v2", address, memory.handle, size_bytes, self.handle)


class Event(_Resource):
    """A point in a stream, and when it was passed."""

    _DESTROY = "cuEventDestroy_v2"

    def record(self, stream: Stream) -> None:
        self.driver.call("cuEventRecord", self.handle, stream.handle)

    def is_done(self) -> bool:
        return self.driver.is_done("cuEventQuery", self.handle)

    def synchronise(self) -> None:
        self.driver.call("cuEventSynchronize", self.handle)

    def ms_since(self, before: Event) -> float:
        """Return the milliseconds on the device between two events that were both passed."""
        elapsed = c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(elapsed), before.handle, self.handle)
        return elapsed.value


class DeviceMemory(_Resource):
    """Memory of the device; ``handle`` is its address there."""

    _DESTROY = "cuMemFree_v2"


class HostMemory(_Resource):
    """Memory of the process; ``handle`` is its address."""

    _DESTROY = "cuMemFreeHost"


class Module(_Resource):
    """Kernels that were compiled together."""

    _DESTROY = "cuModuleUnload"

    def launch(
        self,
        kernel: str,
        stream: Stream,
        grid: int,
        block: int,
        arguments: Sequence[ctypes._SimpleCData[int]],
    ) -> None:
        """Launch ``grid`` blocks of ``block`` threads; returns at once."""
        function = self.driver.handle("cuModuleGetFunction", self.handle, kernel.encode())
        addresses = (c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self.driver.call(
            "cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream.handle, addresses, None
        )
