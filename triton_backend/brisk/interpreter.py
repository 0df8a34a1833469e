"""The Python of Brisk's own processes, and the environment in which they start."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

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
