"""What a benchmark's own runtime finds around it, and its end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping

from brisk.protocol.runtime_paths import RuntimePaths

_END_TIMEOUT_S = 120.0


@contextlib.contextmanager
def environment(changes: Mapping[str, str]) -> Iterator[None]:
    """What a runtime started within finds in its environment."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def wait_until_gone(place: RuntimePaths) -> None:
    """Until the runtime has ended, as it does when nobody is connected, and cleaned up."""
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while place.directory.exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
