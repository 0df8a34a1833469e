"""CUDA's libraries found in packages, and memory of their own for cuBLAS's handles: on small
libraries of the same names, compiled here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.fork_server.build import WORKSPACE, gpu_library

BLAS = """
#include <stddef.h>
static void *given[4]; static size_t sizes[4]; static int set;
int cublasSetStream_v2(void *handle, void *stream) {
    set++; given[(size_t)handle] = NULL;  /* as cuBLAS does */
    return stream == (void *)99 ? 7 : 0;
}
int cublasSetWorkspace_v2(void *handle, void *memory, size_t size) {
    given[(size_t)handle] = memory; sizes[(size_t)handle] = size;
    return 0;
}
void *memory_of(size_t handle) { return given[handle]; }
size_t size_of(size_t handle) { return sizes[handle]; }
int streams_set(void) { return set; }
"""

RUNTIME = """
#include <stdlib.h>
int left = 2;
int cudaMalloc(void **memory, size_t size) {
    if (!left) return 2;
    left--;
    *memory = malloc(size);
    return 0;
}
"""

PROVIDER = """
int cublasSetStream_v2(void *handle, void *stream);
int begin(void *handle, void *stream) { return cublasSetStream_v2(handle, stream); }
"""

PROGRAM = """
import ctypes, sys
from pathlib import Path
from brisk.gpu.libraries import WORKSPACE_BYTES, give_workspaces, load_libraries
folder = Path(sys.argv[1])
loaded = load_libraries()
assert loaded == ["libcudart.so.13", "libcublas.so.13"], loaded
give_workspaces(Path(sys.argv[2]), loaded)
begin = ctypes.CDLL(str(folder / "provider.so")).begin
begin.argtypes = ctypes.c_size_t, ctypes.c_size_t
blas = ctypes.CDLL("libcublas.so.13")
blas.memory_of.restype = ctypes.c_void_p
assert begin(1, 5) == begin(2, 5) == 0
one, two = blas.memory_of(1), blas.memory_of(2)
assert one and two and one != two
assert blas.size_of(1) == WORKSPACE_BYTES
assert begin(1, 6) == 0 and blas.memory_of(1) == one  # its own again, for another stream
assert begin(3, 5) == 0 and not blas.memory_of(3)  # there is no memory left: as without
assert begin(1, 99) == 7  # what cuBLAS refuses is refused
assert blas.streams_set() == 5
print("well")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with packages like NVIDIA's, and a library that needs one of theirs."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    libraries = tmp_path / "nvidia" / "cu13" / "lib"
    libraries.mkdir(parents=True)
    for name, text in (("libcublas.so.13", BLAS), ("libcudart.so.13", RUNTIME)):
        source = tmp_path / f"{name}.c"
        source.write_text(text)
        options = ["-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(libraries / name)]
        subprocess.run([compiler, *options, str(source)], check=True)
    (libraries / "libcurand.so.10").write_text("no library")
    source = tmp_path / "provider.c"
    source.write_text(PROVIDER)
    options = ["-shared", "-fPIC", "-o", str(tmp_path / "provider.so")]
    needs = [f"-L{libraries}", "-l:libcublas.so.13"]
    subprocess.run([compiler, *options, str(source), *needs], check=True)
    return tmp_path


def test_each_handle_has_memory_of_its_own(folder: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(gpu_library(WORKSPACE))],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": ":".join([str(folder), *sys.path])},
        check=False,
    )
    assert (child.stdout, child.stderr) == ("well\n", "")
