"""The threads that Triton keeps for each instance of a Python backend's model, Brisk's included.

They handle what a stub sends apart from its answers: responses by a sender, requests for other
models, loads. Triton makes 32 for each instance (``thread-pool-size``). Forty entries are 1,280
threads that sleep, each with some 16 KiB of the kernel's memory for its stack and as much of the
server's own. A stub of Brisk's sends one thing at a time, so a few are enough.

The setting is for all Python backends of a server alike. A Python model that asks many others at a
time has one of its threads for each, so it decides where there is one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from brisk.paths import listed
from brisk.protocol.entry_files import CONFIG_FILE, versions_in

THREADS = 4
"""The threads of an instance. With 1, 2, 4 and 32 no difference in throughput was seen."""

_PYTHON = "python"
_SETTING = "thread-pool-size"
FEW_THREADS = f"--backend-config={_PYTHON},{_SETTING}={THREADS}"
"""The option of ``tritonserver`` for that number."""

_PYTHON_FILE = "model.py"


def with_few_threads(options: Sequence[str]) -> tuple[str, ...]:
    """Return ``tritonserver``'s options with THREADS threads for each instance, unless they say
    how many."""
    return tuple(options) if says_threads(options) else (*options, FEW_THREADS)


def says_threads(options: Sequence[str]) -> bool:
    """Whether ``tritonserver``'s options say how many threads an instance has."""
    return any(f"{_SETTING}=" in word for word in options)


def has_python_models(repositories: Iterable[Path], backends: Path, ours: Sequence[str]) -> bool:
    """Return whether an entry may be one of a Python backend that is not Brisk's.

    ``backends``: the server's backend directory; ``ours``: Brisk's names there. An entry counts as
    one if its configuration has such a backend's name anywhere, or a version has a ``model.py``.
    """
    others = {folder.name for folder in listed(backends) if (folder / _PYTHON_FILE).exists()}
    names = [name.encode() for name in {*others, _PYTHON}.difference(ours)]
    entries = (entry for repository in repositories for entry in listed(repository))
    return any(_is_python_model(entry, names) for entry in entries if os.path.isdir(entry))


def _is_python_model(entry: Path, names: Sequence[bytes]) -> bool:
    config = entry / CONFIG_FILE
    try:
        text = config.read_bytes() if stat.S_ISREG(config.stat().st_mode) else b""
    except FileNotFoundError:
        text = b""
    except OSError:
        return True
    return any(name in text for name in names) or any(
        os.path.exists(entry / str(version) / _PYTHON_FILE)  # not where it may not be looked at
        for version in versions_in(entry)
    )
