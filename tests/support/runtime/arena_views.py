"""A peer's side of shared memory, told what its owner's side announces."""

from __future__ import annotations

from collections.abc import Iterable

from brisk.protocol.records import AttachSlab
from brisk.protocol.shared_memory import ArenaView, SlabChange


def follow(view: ArenaView, changes: Iterable[SlabChange]) -> None:
    """Apply the changes to ``view``, like a peer that reads the records."""
    for record, descriptor in changes:
        if isinstance(record, AttachSlab):
            assert descriptor is not None
            view.attach(record.slab, record.size, descriptor)
        else:
            view.detach(record.slab)
