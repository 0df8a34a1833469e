"""The limit of a GPU's memory: on small libraries in the place of CUDA's runtime and of ONNX
Runtime's provider, compiled here, and a stand-in for the driver.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from brisk.errors import UnavailableError
from brisk.fork_server.build import GPU_MEMORY, gpu_library
from brisk.runtime.sessions import device
from brisk.runtime.sessions.device import PROVIDER, open_queues
from support.runtime.compiled import compile_shared
from support.runtime.fake_driver import fake_driver

RUNTIME = """
#include <stdlib.h>
int calls;
int cudaMalloc(void **memory, size_t size) {
    calls++;
    if (size > 5000) return 2;
    *memory = malloc(size);
    return 0;
}
int cudaFree(void *memory) { free(memory); return 0; }
void *foreign(void) { return malloc(7); }
"""

PROVIDER_SOURCE = """
#include <stddef.h>
int cudaMalloc(void **memory, size_t size);
int cudaFree(void *memory);
int take(void **memory, size_t size) { return cudaMalloc(memory, size); }
int give(void *memory) { return cudaFree(memory); }
"""

PROGRAM = """
import ctypes, sys
from pathlib import Path
from brisk.errors import UnavailableError
from brisk.gpu.driver import Context, CudaError, Driver
from brisk.gpu.memory_limit import (
    LimitedContext, MemoryLimit, memory_limit, naming_the_limit, set_limit
)
runtime = ctypes.CDLL(sys.argv[1])
limit = MemoryLimit(Path(sys.argv[3]), ["libcudart.so.13"], 10_000)
set_limit(limit)
provider = ctypes.CDLL(sys.argv[2])
give = provider.give
give.argtypes = [ctypes.c_void_p]
runtime.foreign.restype = ctypes.c_void_p

def take(size):
    memory = ctypes.c_void_p()
    provider.take.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return provider.take(ctypes.byref(memory), size), memory.value

result, one = take(4000)
assert result == 0 and limit.state == (4000, 0)
result, two = take(4500)
assert result == 0 and limit.state == (8500, 0)
calls = ctypes.c_int.in_dll(runtime, "calls").value
assert take(1501)[0] == 2 and limit.state == (8500, 1)
assert ctypes.c_int.in_dll(runtime, "calls").value == calls == 2
assert give(two) == 0 and limit.state == (4000, 1)
assert take(6000)[0] == 2 and limit.state == (4000, 1)  # the device itself has no more
assert give(runtime.foreign()) == 0 == give(None) and limit.state == (4000, 1)

context = LimitedContext(Driver(sys.argv[4]), 0, limit)
memory = context.allocate(6000)
assert limit.state == (10_000, 1)
try:
    context.allocate(1)
except CudaError as error:
    assert (error.number, error.is_sticky) == (2, False)
    assert "BRISK_GPU_MEMORY allows 0 MiB" in str(error), error
else:
    raise AssertionError("it was allocated")
for _ in range(2):
    memory.close()
    assert limit.state == (4000, 2)
Context.allocate, real = lambda *_: (_ for _ in ()).throw(CudaError("f", 2, "n")), Context.allocate
try:
    context.allocate(1000)
except CudaError:
    assert limit.state == (4000, 2)
Context.allocate = real

try:
    with naming_the_limit():
        raise RuntimeError("of something else")
except RuntimeError as error:
    assert str(error) == "of something else"
try:
    with naming_the_limit():
        assert take(9000)[0] == 2
        raise RuntimeError("ONNX Runtime's")
except UnavailableError as error:
    assert "not enough memory on the GPU: BRISK_GPU_MEMORY allows 0 MiB, of which 0" in str(error)
else:
    raise AssertionError("nothing was raised")
assert give(one) == 0 and limit.state == (0, 3)
print("well")
"""


def test_what_is_allocated_counts_until_it_is_free_and_too_much_is_refused(
    tmp_path: Path,
) -> None:
    """The provider's allocations and Brisk's own share the limit."""
    soname = "-Wl,-soname,libcudart.so.13"
    runtime = compile_shared(tmp_path / "libcudart.so.13", RUNTIME, soname)
    needs = f"-L{tmp_path}", "-l:libcudart.so.13"
    provider = compile_shared(tmp_path / "provider.so", PROVIDER_SOURCE, *needs)
    arguments = map(str, (runtime, provider, gpu_library(GPU_MEMORY), fake_driver()))
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join(sys.path)},
        check=False,
    )
    assert (child.stdout, child.stderr) == ("well\n", "")


def test_a_limit_that_nothing_keeps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = SimpleNamespace(get_available_providers=lambda: [PROVIDER])
    monkeypatch.setattr("brisk.segments.onnxruntime.onnxruntime", lambda: here)
    monkeypatch.setattr(device, "_device", None)
    with pytest.raises(UnavailableError, match="BRISK_GPU_MEMORY is set, but the library"):
        open_queues("cuda:0", 2, is_limited=True)
