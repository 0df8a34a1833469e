"""The processors that threads run on."""

from __future__ import annotations

from pathlib import Path


def processor() -> int:
    """Return the number of the processor that the calling thread runs on (proc(5), field 39 of
    ``stat``)."""
    return int(Path("/proc/thread-self/stat").read_text().rsplit(")", 1)[1].split()[36])
