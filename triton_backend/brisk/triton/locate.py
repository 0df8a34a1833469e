"""The search for the real Triton: the wheel's own server, or one installed on the system.

The wheel ``nvidia-pytriton`` carries a complete ``tritonserver``; nothing of it is imported (it
would pull in packages that Brisk does not need), only its files are used.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from brisk.errors import InvalidConfigurationError

STUB = "triton_python_backend_stub"
UTILS = "triton_python_backend_utils.py"
LIBRARY = "libtriton_python.so"
SYSTEM_SERVER = Path("/opt/tritonserver/bin/tritonserver")

_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
_LINKER_DIRECTORIES = ("/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib")


@dataclass(frozen=True, slots=True)
class ServerInstallation:
    """The files of one Triton installation; every path exists."""

    executable: Path
    python_backend: tuple[Path, ...]
    """The files of Triton's Python backend, in the order library, module, stub."""
    backends: Path | None
    """The server's own backend directory; None for the wheel's server, which has only the Python
    backend."""
    caches: Path | None
    """The value of ``--cache-directory``; None if the server finds its caches by itself."""
    library_path: tuple[Path, ...]
    """The directories that the server and the stub need in ``LD_LIBRARY_PATH``."""

    @property
    def embedded(self) -> bool:
        """Whether it is the wheel's server, whose stub runs the same Python as this process."""
        return self.backends is None


def locate_server(requested: Path | str | None = None) -> ServerInstallation:
    """Find a Triton: ``requested``, else ``$TRITONSERVER``, the wheel's, ``/opt``, ``PATH``.

    ``requested`` is the executable or the directory with ``bin/tritonserver``. Raises
    InvalidConfigurationError that says what is missing and how to get it.
    """
    if chosen := requested or os.environ.get("TRITONSERVER"):
        return _installation(_executable(Path(chosen).expanduser()))
    for candidate in (_wheel_executable(), SYSTEM_SERVER, shutil.which("tritonserver")):
        if candidate is not None and Path(candidate).is_file():
            return _installation(Path(candidate))
    raise InvalidConfigurationError(
        "no tritonserver found; run `pip install --no-deps nvidia-pytriton==0.7.0`, or give one "
        "with --tritonserver or $TRITONSERVER"
    )


def _executable(path: Path) -> Path:
    for candidate in (path, path / "tritonserver", path / "bin" / "tritonserver"):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.resolve()
    raise InvalidConfigurationError(f"no executable tritonserver at '{path}'")


def _wheel_executable() -> Path | None:
    """Return the server inside the installed wheel, found without importing the package."""
    specification = importlib.util.find_spec("pytriton")
    if specification is None or specification.origin is None:
        return None
    return Path(specification.origin).parent / "tritonserver" / "bin" / "tritonserver"


def _installation(executable: Path) -> ServerInstallation:
    prefix = executable.parent.parent
    python = prefix / "backends" / "python"
    stubs = prefix / "python_backend_stubs"
    if stubs.is_dir():
        stub = stubs / _VERSION / STUB
        if not stub.is_file():
            versions = ", ".join(sorted(path.name for path in stubs.iterdir()))
            raise InvalidConfigurationError(
                f"the server at '{executable}' has no stub for Python {_VERSION}, only for "
                f"{versions}; run Brisk with one of these"
            )
        return ServerInstallation(
            executable=executable,
            python_backend=_required(python / LIBRARY, python / UTILS, stub),
            backends=None,
            caches=prefix / "caches",
            library_path=(
                *_required(prefix.parent.parent / "nvidia_pytriton.libs"),
                *libpython_directories(),
            ),
        )
    caches = prefix / "caches"
    return ServerInstallation(
        executable=executable,
        python_backend=_required(python / LIBRARY, python / UTILS, python / STUB),
        backends=prefix / "backends",
        caches=caches if caches.is_dir() else None,
        library_path=(),
    )


def _required(*paths: Path) -> tuple[Path, ...]:
    for path in paths:
        if not path.exists():
            raise InvalidConfigurationError(
                f"this Triton has no '{path}'; its Python backend is needed"
            )
    return paths


def libpython_directories() -> tuple[Path, ...]:
    """Return the directories to add to ``LD_LIBRARY_PATH`` for this interpreter's libpython.

    Empty if the system's linker finds it by itself. Raises InvalidConfigurationError if there is
    no shared libpython, to which Triton's stub links.
    """
    name = f"libpython{_VERSION}.so.1.0"
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for directory in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
        if directory and (Path(directory) / name).is_file():
            return () if directory in _LINKER_DIRECTORIES else (Path(directory),)
    for directory in _LINKER_DIRECTORIES:
        if any((Path(directory) / part / name).is_file() for part in ("", multiarch)):
            return ()
    raise InvalidConfigurationError(
        f"Python {_VERSION} at '{sys.base_prefix}' has no {name}, which Triton's Python backend "
        f"needs; install it (Debian: apt-get install libpython{_VERSION})"
    )
