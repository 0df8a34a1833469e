"""Compiles the launcher of stubs, the library that makes a stub a fork server, the one that
tritonserver loads, and those that the runtime of a GPU loads.

``python -m brisk.fork_server.build DIRECTORY`` puts all of them into DIRECTORY, for machines
without a compiler: ``share/brisk`` of their Python's prefix, for example.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from brisk.fork_server.start import PRELOAD, SERVER_PRELOAD, add_seal, has_seal
from brisk.ownership import make_private, open_own
from brisk.protocol.stub_process import STUB
from brisk.settings import cache_directory

LAUNCHER = STUB
"""The name of the file in a backend's folder that Triton starts for the backend's stubs."""

WORKSPACE = "brisk_workspace.so"
"""The library that the runtime of a GPU loads (``brisk.gpu.libraries``)."""

GPU_MEMORY = "brisk_gpu_memory.so"
"""The library that it loads if it has a limit of memory (``brisk.gpu.memory_limit``)."""

_SOURCES = Path(__file__).resolve().parent / "source"
_COMMON = ("-std=c++17", "-O2")
_MADE_OF = {
    LAUNCHER: ("launcher.cpp", ("-static",)),
    PRELOAD: ("preload.cpp", ("-fPIC", "-shared", "-ldl")),
    SERVER_PRELOAD: ("server.cpp", ("-fPIC", "-shared", "-fvisibility-inlines-hidden", "-ldl")),
    WORKSPACE: ("workspace.cpp", ("-fPIC", "-shared", "-ldl")),
    GPU_MEMORY: ("gpu_memory.cpp", ("-fPIC", "-shared", "-ldl")),
}
"""The source and options of each file. A program that is linked statically runs with any C
library, not only that of the compiling machine."""

_PLACED = LAUNCHER, PRELOAD, SERVER_PRELOAD
"""The files that are placed in folders of backends."""

_TIMEOUT_S = 600.0
_COMPILERS = ("c++", "g++", "clang++")


class CompilerError(Exception):
    """A file is not compiled; the message says why and what would help."""


def place_launchers(backends: Sequence[Path]) -> bool:
    """Put the three files into each backend's folder; return False if they cannot be compiled.

    Then none of the files is left in the folders, and stubs start as without Brisk.
    """
    try:
        contents = _prebuilt() or _compiled_together(_PLACED)
    except (CompilerError, OSError):
        for backend in backends:
            for name in _PLACED:
                with contextlib.suppress(FileNotFoundError):
                    (backend / name).unlink()
        return False
    for backend in backends:
        for name in reversed(_PLACED):  # the launcher, which uses another one, last
            _replace(contents[name], backend / name)
    return True


def gpu_library(name: str) -> Path:
    """Return the path of ``WORKSPACE`` or ``GPU_MEMORY``; compile it if needed.

    Raises CompilerError or OSError.
    """
    built = _ahead(name)
    if not built.is_file():
        _compiled_together((name,))
        built = _cached(name, _compiler())
    _read(built)
    return built


def _ahead(name: str) -> Path:
    """Return the path of a file that was compiled ahead of time."""
    return Path(sys.prefix) / "share" / "brisk" / name


def _prebuilt() -> dict[str, bytes] | None:
    files = {name: _ahead(name) for name in _PLACED}
    if not all(file.is_file() for file in files.values()):
        return None
    return {name: _read(file) for name, file in files.items()}


def _compiled_together(names: Sequence[str]) -> dict[str, bytes]:
    """Return each file's content by its name; the first time takes a second of each processor.

    Raises CompilerError or OSError.
    """
    compiler = _compiler()
    cached = {name: _cached(name, compiler) for name in names}
    with contextlib.suppress(CompilerError, OSError):
        return {name: _read(file) for name, file in cached.items()}
    from concurrent.futures import ThreadPoolExecutor  # late, like what compiles: a start waits

    with ThreadPoolExecutor() as threads:
        contents = threads.map(lambda name: _compiled(name, compiler, cached[name]), names)
        return dict(zip(names, contents, strict=True))


def _compiler() -> str:
    """Return the compiler. Raises CompilerError if there is none."""
    compiler = find_compiler()
    if compiler is None:
        raise CompilerError(f"no C++ compiler ({', '.join(_compilers())}) is installed")
    return compiler


def _cached(name: str, compiler: str) -> Path:
    """Return the path of the compiled file in the user's cache."""
    source, options = _MADE_OF[name]
    code = (_SOURCES / source).read_bytes()
    digest = hashlib.sha256(f"{compiler}{_COMMON}{options}".encode() + code).hexdigest()[:24]
    return cache_directory() / "native" / f"{digest}-{name}"


def _compiled(name: str, compiler: str, target: Path) -> bytes:
    """Compile into ``target`` unless it exists and is intact. Return its content.

    Raises CompilerError or OSError.
    """
    import tempfile

    source, options = _MADE_OF[name]
    with contextlib.suppress(CompilerError, OSError):  # then it is made, anew perhaps
        return _read(target)
    make_private(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent) as drafts:
        draft = Path(drafts) / name
        _compile(compiler, _SOURCES / source, options, draft)
        add_seal(draft)
        os.chmod(draft, 0o700)
        draft.replace(target)
    return _read(target)


def _read(file: Path) -> bytes:
    """Read a file that will be run, after checks that no other user can have written it and that
    it is as it was compiled.

    Raises PermissionError, CompilerError or OSError.
    """
    with open(open_own(file), "rb") as opened:
        content = opened.read()
    if not has_seal(content):
        raise CompilerError(f"'{file}' is not as it was compiled; remove it")
    return content


def find_compiler() -> str | None:
    """Return the path of ``$CXX``, else of the first usual compiler; None if there is none."""
    return next(filter(None, map(shutil.which, _compilers())), None)


def _compilers() -> tuple[str, ...]:
    return (chosen,) if (chosen := os.environ.get("CXX")) else _COMPILERS


def _compile(compiler: str, source: Path, options: tuple[str, ...], draft: Path) -> None:
    import subprocess

    command = [compiler, *_COMMON, "-o", str(draft), str(source), *options]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CompilerError(f"'{compiler}' took {_TIMEOUT_S:g} s") from error
    if ended.returncode:
        raise CompilerError(f"'{compiler}' failed: {ended.stderr.strip()[:400]}")


def _replace(content: bytes, target: Path) -> None:
    """Replace ``target`` in one step: a server may be starting stubs from the old file."""
    if target.is_file() and target.read_bytes() == content:
        return
    import tempfile

    with tempfile.TemporaryDirectory(dir=target.parent) as drafts:
        draft = Path(drafts) / target.name
        draft.write_bytes(content)
        os.chmod(draft, 0o755)
        draft.replace(target)


def main() -> int:
    """Compile into the directory given. Return the exit status: 1, with a message, on failure."""
    (directory,) = sys.argv[1:]
    try:
        for name, content in _compiled_together(tuple(_MADE_OF)).items():
            _replace(content, Path(directory, name))
    except (CompilerError, OSError) as error:
        print(f"stubs will start as Triton starts them: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
