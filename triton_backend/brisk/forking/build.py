"""Compiling the launcher of stubs and what makes a stub a fork server.

``python -m brisk.forking.build DIRECTORY`` puts both there, for machines without a compiler:
into ``share/brisk`` of their Python's prefix, say.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from brisk.compiled.compiler import CompilerError, cache_directory, find_compiler
from brisk.forking.start import PRELOAD
from brisk.wire.stub_process import STUB

LAUNCHER = STUB
"""Where a backend's folder has a file of this name, Triton starts it for the backend's stubs."""

_SOURCES = Path(__file__).resolve().parent / "source"
_COMMON = ("-std=c++17", "-O2")
_MADE_OF = {
    LAUNCHER: ("launcher.cpp", ("-static",)),
    PRELOAD: ("preload.cpp", ("-fPIC", "-shared", "-ldl")),
}
"""Each with its source and options. A program that is linked statically, and a library that asks
for nothing but ``dlsym``, run beside any C library, not only that of the compiling machine."""

_TIMEOUT_S = 600.0


def place_launcher(backend: Path) -> bool:
    """Put the two files into a backend's folder; False where that is impossible.

    Then stubs start as without Brisk: the folder has neither file.
    """
    try:
        made = _prebuilt() or {name: _made(name) for name in _MADE_OF}
    except (CompilerError, OSError):
        for name in _MADE_OF:
            with contextlib.suppress(FileNotFoundError):
                (backend / name).unlink()
        return False
    for name in (PRELOAD, LAUNCHER):  # the one that uses the other last
        _replace(made[name], backend / name)
    return True


def _prebuilt() -> dict[str, Path] | None:
    folder = Path(sys.prefix) / "share" / "brisk"
    files = {name: folder / name for name in _MADE_OF}
    return files if all(file.is_file() for file in files.values()) else None


def _made(name: str) -> Path:
    """The compiled file, which the user's cache keeps. Raises CompilerError or OSError."""
    compiler = find_compiler()
    source, options = _MADE_OF[name]
    code = (_SOURCES / source).read_bytes()
    digest = hashlib.sha256(f"{compiler}{_COMMON}{options}".encode() + code).hexdigest()[:24]
    made = cache_directory() / "native" / f"{digest}-{name}"
    if not made.is_file():
        made.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as drafts:
            draft = Path(drafts) / name
            _compile(compiler, _SOURCES / source, options, draft)
            draft.replace(made)
    return made


def _compile(compiler: Path, source: Path, options: tuple[str, ...], draft: Path) -> None:
    command = [str(compiler), *_COMMON, "-o", str(draft), str(source), *options]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise CompilerError(f"'{compiler}' took {_TIMEOUT_S:g} s") from error
    if ended.returncode:
        raise CompilerError(f"'{compiler}' failed: {ended.stderr.strip()[:400]}")


def _replace(made: Path, target: Path) -> None:
    """In one step: a server may be starting stubs by what was there."""
    if target.is_file() and target.read_bytes() == made.read_bytes():
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as drafts:
        draft = Path(drafts) / target.name
        shutil.copyfile(made, draft)
        os.chmod(draft, 0o755)
        draft.replace(target)


def main() -> int:
    """Exit status 1, and the reason, where it is impossible."""
    (directory,) = sys.argv[1:]
    try:
        for name in _MADE_OF:
            _replace(_made(name), Path(directory, name))
    except (CompilerError, OSError) as error:
        print(f"stubs will start as Triton starts them: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
