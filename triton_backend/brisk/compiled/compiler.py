"""Compiling the executor on the machine it runs on, once, into the user's cache.

``python -m brisk.compiled.compiler`` does it ahead of the first use.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "source"

FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread"),
    *("-fno-math-errno", "-fno-trapping-math"),
)

COMPILERS = ("c++", "g++", "clang++")

_NICENESS = 19
"""Not SCHED_IDLE, under which it starves on a machine that is never idle."""

_TIME_OUT_S = 3600.0
"""Twenty seconds on an idle processor; a busy machine may leave a hundredth of one."""

_DRAFTS = ".new"
"""Ends the names of folders in which a library is being compiled."""

_SEAL_BYTES = hashlib.sha256().digest_size


class CompilerError(Exception):
    """There is no executor; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class Build:
    """What to compile with, and the library that comes of it, made or not."""

    compiler: Path
    library: Path


def plan_build() -> Build:
    """Raises CompilerError where there is no compiler.

    The library's name holds a digest of sources, flags, compiler and processor, so that another
    machine that shares the cache has its own.
    """
    if sys.platform != "linux":
        raise CompilerError(f"the executor is for Linux, not for {sys.platform}")
    compiler = find_compiler()
    status = os.stat(compiler)
    digest = hashlib.sha256(f"{FLAGS}{compiler}{status.st_size}{status.st_mtime_ns}".encode())
    for file in sorted(SOURCES.iterdir()):
        digest.update(file.read_bytes())
    digest.update(_processor())
    name = f"executor-{digest.hexdigest()[:24]}.so"
    return Build(compiler, cache_directory() / "native" / name)


def find_compiler() -> Path:
    """``$CXX``, else the first of the usual ones. Raises CompilerError where there is none."""
    found = os.environ.get("CXX") or next(filter(None, map(shutil.which, COMPILERS)), None)
    compiler = shutil.which(found) if found else None
    if compiler is None:
        wanted = found or ", ".join(COMPILERS)
        raise CompilerError(f"no C++ compiler ({wanted}) is installed; one would speed this up")
    return Path(compiler)


def is_whole(library: Path) -> bool:
    """Whether the file is there, and as ``compile_library`` made it.

    A library of other bytes would not fail to load: it would end the worker when it runs.
    """
    try:
        data = library.read_bytes()
    except OSError:
        return False
    return hashlib.sha256(data[:-_SEAL_BYTES]).digest() == data[-_SEAL_BYTES:]


def _seal(file: Path) -> None:
    """Append the digest of all that is there; what loads the library reads over it."""
    data = file.read_bytes()
    with file.open("ab") as end:
        end.write(hashlib.sha256(data).digest())


def compile_library(build: Build) -> None:
    """Make ``build.library``, in one step visible to others; at the lowest niceness.

    Raises CompilerError with the compiler's first words where it fails.
    """
    folder = build.library.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _drafts(folder) as drafts:
            made = drafts / build.library.name
            _compile(build.compiler, made)
            _seal(made)
            os.chmod(made, 0o500)
            os.replace(made, build.library)
    except OSError as error:
        raise CompilerError(f"'{folder}' cannot be written: {error.strerror}") from error


def _compile(compiler: Path, made: Path) -> None:
    """Raises CompilerError."""
    command = [str(compiler), *FLAGS, "-o", str(made), str(SOURCES / "exports.cpp")]
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise CompilerError(f"'{compiler}' cannot be run: {error.strerror}") from error
    with process:
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
        try:
            _, errors = process.communicate(timeout=_TIME_OUT_S)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise CompilerError(f"'{compiler}' took {_TIME_OUT_S:g} s") from error
    if process.returncode:
        raise CompilerError(f"'{compiler}' failed: {errors.strip()[:400]}")


@contextlib.contextmanager
def _drafts(folder: Path) -> Iterator[Path]:
    """A new folder for what is being compiled, without those that killed processes have left.

    A process holds the lock of its own as long as it lives. Raises OSError.
    """
    with _locked(folder):
        for left in folder.glob(f"*{_DRAFTS}"):
            with contextlib.suppress(OSError), _locked(left, fcntl.LOCK_NB):
                shutil.rmtree(left)
        drafts = Path(tempfile.mkdtemp(suffix=_DRAFTS, dir=folder))
        own = contextlib.ExitStack()
        own.enter_context(_locked(drafts))
    with own:
        try:
            yield drafts
        finally:
            shutil.rmtree(drafts)


@contextlib.contextmanager
def _locked(folder: Path, how: int = 0) -> Iterator[None]:
    """Raises BlockingIOError with ``LOCK_NB`` where another process holds it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(descriptor)


def cache_directory() -> Path:
    """``$BRISK_CACHE_DIR``, else ``$XDG_CACHE_HOME/brisk``, else ``~/.cache/brisk``."""
    if chosen := os.environ.get("BRISK_CACHE_DIR"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brisk"


def _processor() -> bytes:
    """Model and instruction sets, for which ``-march=native`` compiles."""
    wanted = ("model name", "flags", "cpu family", "model\t", "Features", "CPU part")
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        return "\n".join(line for line in text.split("\n") if line.startswith(wanted)).encode()
    return b""


@functools.cache
def is_intel() -> bool:
    """Whether the processor is of the make that MKL is tuned for."""
    return b"Intel" in _processor()


@functools.cache
def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself (AVX-512, AMX or Arm's instructions)."""
    return b"bf16" in _processor()


def main() -> int:
    """Compile unless it is done; the exit status is 1 where that is impossible here."""
    try:
        build = plan_build()
        if not is_whole(build.library):
            compile_library(build)
    except CompilerError as error:
        print(f"small layers will run one by one: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
