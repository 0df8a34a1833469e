"""The limit of the memory that a process's models may take on its device (``BRISK_GPU_MEMORY``).

Allocations of ONNX Runtime, of its arenas and weights, go through a library of ours
(``source/gpu_memory.cpp``), which counts them and refuses what is too much; the driver's, which
Brisk makes itself, are counted here. What CUDA and its libraries allocate for themselves is not: a
context, kernels, and the handles of cuBLAS and cuDNN.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

from brisk.errors import UnavailableError
from brisk.gpu.driver import OUT_OF_MEMORY, Context, CudaError, DeviceMemory, Driver
from brisk.gpu.libraries import name_of

NAME = "BRISK_GPU_MEMORY"

_MIB = 1 << 20


class MemoryLimit:
    """A limit of ``limit_bytes``, kept by ``library``, which ``source/gpu_memory.cpp`` is compiled
    to.

    Precondition: ONNX Runtime has not loaded its provider.
    """

    def __init__(self, library: Path, loaded: list[str], limit_bytes: int) -> None:
        """``loaded``: the names of CUDA's libraries. Raises OSError if ``library`` cannot be
        loaded."""
        self.limit_bytes = limit_bytes
        self._library = ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        self._library.brisk_memory_limit.argtypes = ctypes.c_char_p, ctypes.c_size_t
        self._library.brisk_memory_limit.restype = None
        for function in (self._library.brisk_memory_take, self._library.brisk_memory_give):
            function.argtypes = (ctypes.c_size_t,)
        self._library.brisk_memory_limit(name_of(loaded, "libcudart.so"), limit_bytes)

    def take(self, size_bytes: int) -> bool:
        """Count bytes as taken; return False if that would be too many."""
        return bool(self._library.brisk_memory_take(size_bytes))

    def give_back(self, size_bytes: int) -> None:
        self._library.brisk_memory_give(size_bytes)

    @property
    def state(self) -> tuple[int, int]:
        """The bytes that are taken, and the number of allocations that were refused."""
        taken, refused = ctypes.c_size_t(), ctypes.c_size_t()
        self._library.brisk_memory_state(ctypes.byref(taken), ctypes.byref(refused))
        return taken.value, refused.value

    def __str__(self) -> str:
        taken = self.state[0] / _MIB
        return f"{NAME} allows {self.limit_bytes / _MIB:,.0f} MiB, of which {taken:,.0f} are taken"


class LimitedContext(Context):
    """A context whose own allocations count, too."""

    def __init__(self, driver: Driver, ordinal: int, limit: MemoryLimit) -> None:
        super().__init__(driver, ordinal)
        self._limit = limit

    def allocate(self, size_bytes: int) -> DeviceMemory:
        if not self._limit.take(size_bytes):
            raise CudaError("cuMemAlloc_v2", OUT_OF_MEMORY, f"not called, as {self._limit}")
        try:
            memory = super().allocate(size_bytes)
        except CudaError:
            self._limit.give_back(size_bytes)
            raise
        return LimitedMemory(memory, self._limit, size_bytes)


class LimitedMemory(DeviceMemory):
    """Memory of the device that a limit counts."""

    def __init__(self, memory: DeviceMemory, limit: MemoryLimit, size_bytes: int) -> None:
        super().__init__(memory.driver, memory.handle)
        self._limit, self._size_bytes = limit, size_bytes

    def close(self) -> None:
        size_bytes, self._size_bytes = self._size_bytes, 0
        super().close()
        self._limit.give_back(size_bytes)


_limit: MemoryLimit | None = None


def set_limit(limit: MemoryLimit) -> None:
    """Keep ``limit`` in this process and those that are forked from it."""
    global _limit
    _limit = limit


def memory_limit() -> MemoryLimit | None:
    """Return the limit of this process; None: there is none."""
    return _limit


@contextlib.contextmanager
def naming_the_limit() -> Iterator[None]:
    """Raise UnavailableError, which names the limit, in the place of an error of ONNX Runtime's
    while allocations were refused."""
    limit = _limit
    refused = 0 if limit is None else limit.state[1]
    try:
        yield
    except Exception as error:
        if limit is None or limit.state[1] == refused:
            raise
        raise UnavailableError(f"there is not enough memory on the GPU: {limit}") from error
