"""Ends every process in the namespaces of a rack, also when the process that made them is gone.

Run as a program in the switch of a rack, it reads numbers of network namespaces by lines on its
standard input. When that ends, by ``close`` or because the process that held it was killed, it
kills every process that is in one of them, in whatever session, and ends. With the last process of
a network namespace the kernel removes the namespace, and with that its interfaces and their
shaping.

Standard library only, and nothing of this package: it is run by its path, as another user, too.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection

_PATIENCE_S = 10.0
_BETWEEN_S = 0.005


def namespace_of(process_id: int | str) -> int | None:
    """Return the number of a process's network namespace.

    None if the process has ended, or is another user's.
    """
    try:
        return os.stat(f"/proc/{process_id}/ns/net").st_ino
    except OSError:
        return None


def processes_in(namespaces: Collection[int]) -> list[int]:
    """Return ids of the processes, without zombies, that are in one of these namespaces now."""
    ids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    return [each for each in ids if namespace_of(each) in namespaces]


def end_processes(namespaces: Collection[int], patience_s: float = _PATIENCE_S) -> list[int]:
    """Kill all processes in these namespaces but this one, again until none is left.

    A killed process may have begun another one just before: so it looks again. Returns the ids of
    those that do not end within ``patience_s``.
    """
    deadline_s = time.monotonic() + patience_s
    while True:
        survivors = [each for each in processes_in(namespaces) if each != os.getpid()]
        if not survivors or time.monotonic() > deadline_s:
            return survivors
        for each in survivors:
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just ended
        time.sleep(_BETWEEN_S)


def main() -> None:
    """Say ``ready``, repeat each number that is read, end everything when there are no more."""
    own = namespace_of("self")
    assert own is not None
    namespaces = {own}
    print("ready", flush=True)
    for line in sys.stdin:
        namespaces.add(int(line))
        print(line.strip(), flush=True)
    if survivors := end_processes(namespaces):
        sys.exit(f"processes that do not end: {', '.join(map(str, survivors))}")


if __name__ == "__main__":
    main()
