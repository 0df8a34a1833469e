"""Memory of processes: of each alone, of all together, and shared memory counted once."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from brisk_bench.engines.model_inputs import make_inputs
from brisk_bench.engines.process import run_apart
from brisk_bench.engines.registry import open_session, session_options
from brisk_bench.harness.processes import kind_of, processes_of

_SHARED = ("/memfd:", "/dev/shm/", "/dev/zero")
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ (\S+) (\d+)\s*(.*)$")

_SETTLED_SHARE, _SETTLE_PAUSE_S, _SETTLE_TIMEOUT_S = 0.01, 1.0, 30.0


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of one process.

    ``private_bytes``: Private_Clean and Private_Dirty.
    ``own_bytes``: the dirty ones of them: no pages of files, which the kernel may drop and other
      processes may share.
    ``shared``: by device and inode, bytes of memory without a file that is mapped to be shared and
      is not private.
    """

    pid: int
    kind: str
    private_bytes: int
    own_bytes: int
    pss_bytes: int
    shared: Mapping[tuple[str, int], int]


def read_rollup(text: str) -> tuple[int, int, int]:
    """Return private bytes, the dirty ones of them, and proportional bytes of a ``smaps_rollup``.

    Raises ValueError without them.
    """
    fields: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if value.endswith("kB"):
            fields[name] = int(value.split()[0]) * 1024
    try:
        dirty = fields["Private_Dirty"]
        return fields["Private_Clean"] + dirty, dirty, fields["Pss"]
    except KeyError as error:
        raise ValueError(f"a smaps_rollup without {error}") from None


def read_shared(text: str) -> dict[tuple[str, int], int]:
    """Return shared bytes by device and inode, of ``smaps``' mappings of memory without a file.

    Pages there that only this process has are among its private ones.
    """
    shared_bytes: dict[tuple[str, int], int] = {}
    key: tuple[str, int] | None = None
    for line in text.splitlines():
        if mapping := _MAPPING.match(line):
            device, inode, name = mapping.groups()
            key = (device, int(inode)) if name.startswith(_SHARED) else None
        elif key is not None and line.startswith(("Shared_Clean:", "Shared_Dirty:")):
            shared_bytes[key] = shared_bytes.get(key, 0) + int(line.split()[1]) * 1024
    return shared_bytes


def shared_once(processes: Iterable[ProcessMemory]) -> int:
    """Return the shared bytes, each piece of memory as the process with most of it counts it."""
    largest: dict[tuple[str, int], int] = {}
    for process in processes:
        for key, size in process.shared.items():
            largest[key] = max(size, largest.get(key, 0))
    return sum(largest.values())


def memory_of(pids: Iterable[int]) -> list[ProcessMemory]:
    """Return the memory of those processes that are alive."""
    processes = []
    for pid in pids:
        folder = Path(f"/proc/{pid}")
        try:
            private, own, pss = read_rollup((folder / "smaps_rollup").read_text())
            shared = read_shared((folder / "smaps").read_text())
            kind = kind_of((folder / "cmdline").read_bytes())
        except (OSError, ValueError):  # it has ended, or is about to: a zombie has no memory
            continue
        processes.append(ProcessMemory(pid, kind, private, own, pss, shared))
    return processes


def settled_memory(runtime: Path) -> list[ProcessMemory]:
    """Return the memory of all processes that know the runtime, once it changes no more.

    Loads go on after their first answers. Waits at most ``_SETTLE_TIMEOUT_S``.
    """
    deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
    before = memory_of(processes_of(runtime))
    while True:
        time.sleep(_SETTLE_PAUSE_S)
        now = memory_of(processes_of(runtime))
        totals = [sum(each.private_bytes for each in processes) for processes in (before, now)]
        has_settled = abs(totals[1] - totals[0]) <= _SETTLED_SHARE * totals[0]
        if has_settled or time.monotonic() > deadline_s:
            return now
        before = now


def session_bytes(file: Path, threads: int) -> int:
    """Return the dirty private bytes of a default ONNX Runtime session after its first answer.

    It runs in a process of its own. Raises EngineUnavailableError with that process's last words.
    """
    return int(run_apart(__name__, file, threads).split()[-1])


def _own_bytes() -> int:
    return read_rollup(Path("/proc/self/smaps_rollup").read_text())[1]


if __name__ == "__main__":  # the process of ``session_bytes``
    model, options = Path(sys.argv[1]), session_options(int(sys.argv[2]))  # imports ONNX Runtime
    inputs = make_inputs(model)
    before_bytes = _own_bytes()
    session = open_session(model, options)
    session.run(None, inputs)
    print(_own_bytes() - before_bytes)
