"""What the machine's processors did: where others worked, a run is not slow by itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")

_IDLE = (3, 4)  # idle, and waiting for a disk
_STOLEN = 7
_PARTS = 8  # those behind it are counted in user and nice already


@dataclass(frozen=True, slots=True)
class MachineTime:
    """Shares of all processors' time: with any process on them, and taken by the hypervisor."""

    busy: float
    stolen: float


def read_ticks(text: str | None = None) -> tuple[int, ...]:
    """Of all processors since the machine started, by what they did (``proc(5)``)."""
    line = (_STAT.read_text() if text is None else text).partition("\n")[0]
    return tuple(int(ticks) for ticks in line.split()[1 : 1 + _PARTS])


def between(before: tuple[int, ...], after: tuple[int, ...]) -> MachineTime:
    """Of two readings. Precondition: ``after`` is at least a tick later."""
    passed = [late - early for early, late in zip(before, after, strict=True)]
    total = max(1, sum(passed))
    stolen = passed[_STOLEN]
    idle = sum(passed[part] for part in _IDLE)
    return MachineTime((total - idle - stolen) / total, stolen / total)
