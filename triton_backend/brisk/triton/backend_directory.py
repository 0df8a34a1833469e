"""The directory that ``tritonserver --backend-directory`` reads, with Brisk in it.

Layout::

    <directory>/python/{libtriton_python.so, triton_python_backend_utils.py, …_stub}
    <directory>/brisk/{model.py, triton_python_backend_utils.py, brisk/}    this package
    <directory>/onnxruntime/                 the same, for entries of the ONNX Runtime backend
    <directory>/<other backends of a system server>
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import brisk
from brisk.errors import InvalidConfigurationError
from brisk.fork_server.build import place_launchers
from brisk.settings import cache_directory
from brisk.triton.locate import LIBRARY, STUB, ServerInstallation

DEFAULT_NAMES = ("brisk", "onnxruntime")
REPLACED_SUFFIX = ".replaced-by-brisk"

STUB_FILES = ("model.py", "triton_python_backend_utils.py")
"""The files next to the package that Triton's stub imports by these names."""


def package_folder() -> Path:
    """Return the folder of the running Brisk."""
    return Path(brisk.__file__).resolve().parent


def backend_source() -> tuple[Path, ...]:
    """Return the STUB_FILES and the package of the running Brisk, a checkout or pip installation.

    Raises InvalidConfigurationError if STUB_FILES were not installed with the package.
    """
    package = package_folder()
    for place in (package.parent, Path(sys.prefix) / "share" / "brisk"):
        files = tuple(place / name for name in STUB_FILES)
        if all(file.is_file() for file in files):
            return (*(file.resolve() for file in files), package)
    raise InvalidConfigurationError(
        f"the package at '{package}' came without the backend's {' and '.join(STUB_FILES)}; "
        "install Brisk again"
    )


def default_directory(installation: ServerInstallation, names: Sequence[str]) -> Path:
    """Return a lasting directory for ``assemble``: one for each server, Brisk and set of names."""
    parts = [*map(str, installation.python_backend), str(backend_source()[-1]), *names]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache_directory() / "backends" / key


def assemble(
    directory: Path,
    installation: ServerInstallation,
    *,
    names: Sequence[str] = DEFAULT_NAMES,
    compiles: bool = True,
) -> Path:
    """Make ``directory`` a complete backend directory for ``installation``; idempotent.

    ``compiles``: also compile the package, which takes 25 ms if it is compiled already.

    Brisk is linked, so a change of its code takes effect at the next start. The Python backend's
    files are copied: Triton refuses a backend library whose real path is elsewhere. Several
    processes may call this at the same time for the same installation.
    """
    python = directory / "python"
    python.mkdir(parents=True, exist_ok=True)
    for file in installation.python_backend:
        _copy(file, python / file.name)
    compile_files(*python.glob("*.py"))
    _place([directory / name for name in names], copy=False)
    if compiles:
        compile_files(package_folder())
    if installation.backends is not None:
        for other in sorted(installation.backends.iterdir()):
            if other.is_dir() and other.name not in ("python", *names):
                _link(other, directory / other.name)
    return directory


def install(
    directory: Path, *, name: str = "brisk", copy: bool = False, force: bool = False
) -> Path:
    """Put Brisk into an existing deployment's backend directory as ``<directory>/<name>``.

    Another backend of that name is replaced only with ``force``, and kept as
    ``<name>.replaced-by-brisk``. Raises InvalidConfigurationError otherwise, and if ``directory``
    is no backend directory.
    """
    if not directory.is_dir():
        raise InvalidConfigurationError(f"'{directory}' is no directory")
    for needed in (LIBRARY, STUB):  # without a stub each load would wait for one for ever
        if not (directory / "python" / needed).is_file():
            raise InvalidConfigurationError(
                f"'{directory}' holds no python/{needed}: it is no Triton backend directory, or "
                "one without the whole Python backend, which Brisk needs"
            )
    if name in ("", "..") or Path(name).name != name:
        raise InvalidConfigurationError(f"'{name}' is no backend name")
    target = directory / name
    if target.exists() and not _is_ours(target):
        if not force:
            raise InvalidConfigurationError(
                f"'{target}' is another backend; --force moves it to '{name}{REPLACED_SUFFIX}'"
            )
        replaced = directory / (name + REPLACED_SUFFIX)
        if replaced.exists():
            raise InvalidConfigurationError(f"'{replaced}' is in the way; move it first")
        target.rename(replaced)
    _place([target], copy=copy)
    if not copy:
        compile_files(package_folder())
    return target


def names_of_ours(directory: Path) -> tuple[str, ...]:
    """Return the names of the backends in a backend directory that are Brisk."""
    try:
        return tuple(sorted(path.name for path in directory.iterdir() if _is_ours(path)))
    except OSError:  # the server will report it
        return ()


def _is_ours(target: Path) -> bool:
    return (target / "model.py").exists() and (target / "brisk" / "errors.py").exists()


def _place(targets: Sequence[Path], *, copy: bool) -> None:
    for target in targets:
        target.mkdir(exist_ok=True)
    place_launchers(targets)
    sources = backend_source()
    for target in targets:
        _bring(sources, target, copy=copy)


def _bring(sources: Sequence[Path], target: Path, *, copy: bool) -> None:
    for source in sources:
        placed = target / source.name
        if not copy:
            _link(source, placed)
            if not source.is_dir():
                compile_files(placed)
            continue
        if placed.is_dir() and not placed.is_symlink():
            shutil.rmtree(placed)
        placed.unlink(missing_ok=True)
        if source.is_dir():
            shutil.copytree(source, placed, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, placed)
        compile_files(placed)


def _copy(source: Path, target: Path) -> None:
    """Copy a file, atomically, unless the target has its size and time already."""
    original = source.stat()
    if target.is_file() and not target.is_symlink():
        present = target.stat()
        if (present.st_size, present.st_mtime_ns) == (original.st_size, original.st_mtime_ns):
            return
    temporary = _temporary(target)
    shutil.copy2(source, temporary)
    temporary.replace(target)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.urandom(16).hex()}")


def _link(source: Path, target: Path) -> None:
    """Make ``target`` a link to ``source``; an existing file or link is replaced atomically."""
    if target.is_symlink() and Path(os.readlink(target)) == source:
        return
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    temporary = _temporary(target)
    temporary.symlink_to(source)
    temporary.replace(target)


# The compilation of the backend's Python files once, ahead of the processes that import them.
#
# If Python may not write bytecode (``PYTHONDONTWRITEBYTECODE``, which many containers set), each
# stub and each runtime would compile all files again: 0.15 s of every load.


def compile_files(*places: Path) -> None:
    """Compile Python files, and those in directories, whose bytecode is missing or outdated.

    The bytecode is for this interpreter's version only. Nothing happens if the directories cannot
    be written. Several processes may call this at the same time.
    """
    import compileall

    for place in places:
        if place.is_dir():
            compileall.compile_dir(place, quiet=2)
        else:
            compileall.compile_file(place, quiet=2)
