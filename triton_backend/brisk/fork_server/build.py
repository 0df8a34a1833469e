"""Compiling the launcher of stubs, what makes a stub a fork server, what the server loads, and
what the runtime of a GPU does.

``python -m brisk.fork_server.build DIRECTORY`` puts all of them there, for machines without a
compiler: into ``share/brisk`` of their Python's prefix, say.
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
"""Where a backend's folder has a file of this name, Triton starts it for the backend's stubs."""

WORKSPACE = "brisk_workspace.so"
"""What the runtime of a GPU loads (``brisk.gpu.libraries``)."""

_SOURCES = Path(__file__).resolve().parent / "source"
_COMMON = ("-std=c++17", "-O2")
_MADE_OF = {
    LAUNCHER: ("launcher.cpp", ("-static",)),
    PRELOAD: ("preload.cpp", ("-fPIC", "-shared", "-ldl")),
    SERVER_PRELOAD: ("server.cpp", ("-fPIC", "-shared", "-fvisibility-inlines-hidden", "-ldl")),
    WORKSPACE: ("workspace.cpp", ("-fPIC", "-shared", "-ldl")),
}
"""Each with its source and options. A program that is linked statically runs beside any C library,
not only that of the compiling machine."""

_PLACED = LAUNCHER, PRELOAD, SERVER_PRELOAD
"""In folders of backends."""

_TIMEOUT_S = 600.0
_COMPILERS = ("c++", "g++", "clang++")


class CompilerError(Exception):
    """What was to be compiled is not; the message says why and what would help."""


def place_launchers(backends: Sequence[Path]) -> bool:
    """Put the three files into each backend's folder; False where that is impossible.

    Then stubs start as without Brisk: the folders have none of the files.
    """
    try:
        made = _prebuilt() or _compiled_together(_PLACED)
    except (CompilerError, OSError):
        for backend in backends:
            for name in _PLACED:
                with contextlib.suppress(FileNotFoundError):
                    (backend / name).unlink()
        return False
    for backend in backends:
        for name in reversed(_PLACED):  # the launcher, which uses another one, last
            _replace(made[name], backend / name)
    return True


def workspace_library() -> Path:
    """``WORKSPACE``, built or to be found. Raises CompilerError or OSError."""
    built = _ahead(WORKSPACE)
    if not built.is_file():
        _compiled_together((WORKSPACE,))
        built = _kept_place(WORKSPACE, _compiler())
    _read(built)
    return built


def _ahead(name: str) -> Path:
    """Where a file is that was compiled ahead of time."""
    return Path(sys.prefix) / "share" / "brisk" / name


def _prebuilt() -> dict[str, bytes] | None:
    files = {name: _ahead(name) for name in _PLACED}
    if not all(file.is_file() for file in files.values()):
        return None
    return {name: _read(file) for name, file in files.items()}


def _compiled_together(names: Sequence[str]) -> dict[str, bytes]:
    """Each file by its name; the first time takes a second of each processor.

    Raises CompilerError or OSError.
    """
    compiler = _compiler()
    kept = {name: _kept_place(name, compiler) for name in names}
    with contextlib.suppress(CompilerError, OSError):
        return {name: _read(file) for name, file in kept.items()}
    from concurrent.futures import ThreadPoolExecutor  # late, as what compiles: a start waits

    with ThreadPoolExecutor() as threads:
        made = threads.map(lambda name: _compiled(name, compiler, kept[name]), names)
        return dict(zip(names, made, strict=True))


def _compiler() -> str:
    """Raises CompilerError."""
    compiler = find_compiler()
    if compiler is None:
        raise CompilerError(f"no C++ compiler ({', '.join(_wanted_compilers())}) is installed")
    return compiler


def _kept_place(name: str, compiler: str) -> Path:
    """Where the user's cache keeps the compiled file."""
    source, options = _MADE_OF[name]
    code = (_SOURCES / source).read_bytes()
    digest = hashlib.sha256(f"{compiler}{_COMMON}{options}".encode() + code).hexdigest()[:24]
    return cache_directory() / "native" / f"{digest}-{name}"


def _compiled(name: str, compiler: str, made: Path) -> bytes:
    """Compiled into ``made``, unless it is there. Raises CompilerError or OSError."""
    import tempfile

    source, options = _MADE_OF[name]
    with contextlib.suppress(CompilerError, OSError):  # then it is made, anew perhaps
        return _read(made)
    make_private(made.parent)
    with tempfile.TemporaryDirectory(dir=made.parent) as drafts:
        draft = Path(drafts) / name
        _compile(compiler, _SOURCES / source, options, draft)
        add_seal(draft)
        os.chmod(draft, 0o700)
        draft.replace(made)
    return _read(made)


def _read(file: Path) -> bytes:
    """What will be started: nobody else can have written it, and it is as it was compiled.

    Raises PermissionError, CompilerError or OSError.
    """
    with open(open_own(file), "rb") as opened:
        content = opened.read()
    if not has_seal(content):
        raise CompilerError(f"'{file}' is not as it was compiled; remove it")
    return content


def find_compiler() -> str | None:
    """``$CXX``, else the first of the usual ones; None where there is none."""
    return next(filter(None, map(shutil.which, _wanted_compilers())), None)


def _wanted_compilers() -> tuple[str, ...]:
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


def _replace(made: bytes, target: Path) -> None:
    """In one step: a server may be starting stubs by what was there."""
    if target.is_file() and target.read_bytes() == made:
        return
    import tempfile

    with tempfile.TemporaryDirectory(dir=target.parent) as drafts:
        draft = Path(drafts) / target.name
        draft.write_bytes(made)
        os.chmod(draft, 0o755)
        draft.replace(target)


def main() -> int:
    """Exit status 1, and the reason, where it is impossible."""
    (directory,) = sys.argv[1:]
    try:
        for name, made in _compiled_together(tuple(_MADE_OF)).items():
            _replace(made, Path(directory, name))
    except (CompilerError, OSError) as error:
        print(f"stubs will start as Triton starts them: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
