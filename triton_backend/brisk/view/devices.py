"""The devices whose runtimes a server's entries will ask for, as far as that is sure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from brisk.view.entry_text import entries_of, last

_A_GPU = Path("/dev/nvidia0")


def expected_devices(repositories: Sequence[Path], served: Sequence[str]) -> list[str]:
    """``cpu``, ``cuda:0``, …, each once. ``served``: the backends that are Brisk.

    An entry that does not say where it runs is on the processor where there is no GPU; else
    Triton decides, and its stub starts the runtime.
    """
    found: dict[str, None] = {}
    for repository in repositories:
        for message in entries_of(repository, served):
            found.update(dict.fromkeys(_devices(message.get("instance_group", []))))
    return sorted(found)


def _devices(groups: Sequence[Any]) -> Iterator[str]:
    if not groups and not _A_GPU.exists():
        yield "cpu"
    for group in groups:
        if not isinstance(group, dict):
            continue
        kind = last(group, "kind")
        if kind == "KIND_CPU" or (kind in (None, "KIND_AUTO") and not _A_GPU.exists()):
            yield "cpu"
        elif kind == "KIND_GPU":
            yield from (f"cuda:{gpu}" for gpu in group.get("gpus", []) if isinstance(gpu, int))
