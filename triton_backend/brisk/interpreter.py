"""The Python of Brisk's own processes, and the environment in which they start."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from brisk.errors import InvalidConfigurationError
from brisk.settings import absolute_paths

ENVIRONMENT = threading.RLock()
"""The lock held while this process's environment differs from the one that its children get."""


def runtime_python(environment: Mapping[str, str] = os.environ) -> str:
    """Return ``$BRISK_PYTHON``, else the Python of this process, else ``python3``."""
    if chosen := environment.get("BRISK_PYTHON"):
        return absolute_paths(environment).get("BRISK_PYTHON", chosen)
    own = Path(sys.prefix) / "bin" / "python3"
    if own.exists():
        return str(own)
    import shutil  # late: its import takes long, and this is hardly ever reached

    return shutil.which("python3") or "python3"


_PACKAGES = ("numpy", "onnx", "onnxruntime")
_ANSWER = "lacks"
_LOOK = (
    "import sys; from importlib.util import find_spec; "
    f"print('{_ANSWER}', *(name for name in sys.argv[1:] if find_spec(name) is None))"
)
"""A program that names the packages that its Python does not find; it imports none."""

_LOOK_TIMEOUT_S = 120.0
"""The longest wait for it: a Python on a cold disk."""


def checking_python(environment: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """Begin to check whether ``$BRISK_PYTHON`` can be the runtime's; does not wait. Call what is
    returned for the result.

    That raises InvalidConfigurationError if it cannot be run, is no Python or lacks a package.
    Nothing is run where it is this process's own.
    """
    python = runtime_python(environment)
    if not environment.get("BRISK_PYTHON") or _is_own(python):
        return lambda: None
    import subprocess  # late: a stub does without

    def wrong(what: str) -> InvalidConfigurationError:
        expected = f"a Python that has {', '.join(_PACKAGES)}"
        return InvalidConfigurationError(f"BRISK_PYTHON '{python}' {what}; expected {expected}")

    try:
        looking = subprocess.Popen(
            [python, "-c", _LOOK, *_PACKAGES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=dict(environment),
            cwd="/",  # as a runtime
        )
    except OSError as error:
        raise wrong(f"cannot be run: {error.strerror}") from error

    def conclude() -> None:
        try:
            output, complaint = looking.communicate(timeout=_LOOK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            looking.kill()
            looking.wait()
            raise wrong(f"has not answered within {_LOOK_TIMEOUT_S:.0f} s") from None
        answer, *lacking = output.split() or [""]
        if looking.returncode or answer != _ANSWER:
            last = "".join(complaint.strip().splitlines()[-1:])
            raise wrong(f"does not run as a Python (status {looking.returncode}) {last}".rstrip())
        if lacking:
            raise wrong(f"has no {', '.join(lacking)}")

    return conclude


def _is_own(python: str) -> bool:
    """Whether it is this process's: a link to the same file from another folder may be another
    environment's."""
    own = Path(sys.executable)
    return Path(python).parent == own.parent and os.path.realpath(python) == os.path.realpath(own)


def python_environment() -> dict[str, str]:
    """Return an environment in which the runtime's Python finds this Brisk, and has this process's
    folders although it works in another directory."""
    package_root = str(Path(__file__).resolve().parents[1])
    with ENVIRONMENT:
        search_path = os.environ.get("PYTHONPATH", "")
        return {
            **os.environ,
            **absolute_paths(),
            "PYTHONPATH": package_root + (os.pathsep + search_path if search_path else ""),
        }
