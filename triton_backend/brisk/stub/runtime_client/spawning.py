"""Making a runtime's process; a module of its own, as few stubs have to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from brisk.errors import InvalidConfigurationError
from brisk.protocol.host.runtime_paths import RuntimePaths
from brisk.stub.preload.numpy_import import ENVIRONMENT
from brisk.stub.runtime_client.allocator import allocator_settings


def spawn(place: RuntimePaths, niceness: int) -> subprocess.Popen[bytes]:
    """The runtime leaves this stub's process group by itself (``brisk.runtime``).

    Not its session: with ``setsid`` it would get a scheduling group of its own, in which its
    best-effort work gave way only to its own.
    """
    package_root = str(Path(__file__).resolve().parents[3])
    search_path = os.environ.get("PYTHONPATH", "")
    with ENVIRONMENT:
        environment = {
            **os.environ,
            **allocator_settings(os.environ),
            "PYTHONPATH": package_root + (os.pathsep + search_path if search_path else ""),
            "BRISK_RUNTIME_DIR": str(place.base),
        }
    interpreter = runtime_interpreter()
    command = [interpreter, "-m", "brisk.runtime", "--device", place.device]
    try:
        return subprocess.Popen(
            [*command, "--niceness", str(niceness)],
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,
            env=environment,
            cwd="/",
        )
    except OSError as error:
        raise InvalidConfigurationError(
            f"the runtime's Python '{interpreter}' cannot be run ({error}); "
            "set BRISK_PYTHON to one that has onnxruntime"
        ) from error


def runtime_interpreter() -> str:
    """``$BRISK_PYTHON``, else the Python this process runs on, else ``python3``."""
    if chosen := os.environ.get("BRISK_PYTHON"):
        return chosen
    own = Path(sys.prefix) / "bin" / "python3"
    if own.exists():
        return str(own)
    import shutil  # which is long to import, for what is hardly ever needed

    return shutil.which("python3") or "python3"
