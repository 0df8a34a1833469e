"""What a peer may be shown of shared memory: nothing beyond it, and no file that could fault."""

from __future__ import annotations

import fcntl
import mmap
import os

import pytest

from brisk.errors import ProtocolError
from brisk.protocol.records import Region
from brisk.protocol.shared_memory import MAX_SLAB_BYTES, ArenaView
from support.open_files import nothing_left_open


def memory_file(size: int, seals: int | None) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if seals is not None:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    "region",
    [
        Region(7, 0, 1),
        Region(0, -1, 1),
        Region(0, 0, -1),
        Region(0, 0, mmap.PAGESIZE + 1),
        Region(0, mmap.PAGESIZE, 1),
        Region(0, 2**63 - 1, 2**63 - 1),
    ],
)
def test_a_region_outside_of_what_is_shared_is_refused(region: Region) -> None:
    view = ArenaView()
    view.attach(0, mmap.PAGESIZE, memory_file(mmap.PAGESIZE, fcntl.F_SEAL_SHRINK))
    assert len(view.memory(Region(0, mmap.PAGESIZE - 1, 1))) == 1
    with pytest.raises(ProtocolError, match=r"slab 7 is unknown|lies outside slab 0"):
        view.memory(region)


def test_no_bytes_need_no_slab() -> None:
    assert len(ArenaView().memory(Region(0, 0, 0))) == 0


@pytest.mark.parametrize(
    ("size", "claimed", "seals", "reason"),
    [
        (4096, 4096, 0, "not sealed against shrinking"),
        (4096, 4096, None, "not sealed against shrinking"),
        (4096, 8192, fcntl.F_SEAL_SHRINK, "shorter than the 8192 bytes"),
        (4096, 0, fcntl.F_SEAL_SHRINK, "claims 0 bytes"),
        (4096, -1, fcntl.F_SEAL_SHRINK, "claims -1 bytes"),
        (4096, MAX_SLAB_BYTES + 1, fcntl.F_SEAL_SHRINK, "claims"),
    ],
)
def test_a_file_that_could_fault_under_a_reader_is_not_mapped(
    size: int, claimed: int, seals: int | None, reason: str
) -> None:
    with nothing_left_open(), pytest.raises(ProtocolError, match=reason):
        ArenaView().attach(1, claimed, memory_file(size, seals))


def test_a_descriptor_that_is_no_memory_is_refused_and_closed() -> None:
    with nothing_left_open():
        reading, writing = os.pipe()
        with pytest.raises(ProtocolError, match="cannot be mapped"):
            ArenaView().attach(1, 4096, reading)
        os.close(writing)


def test_a_slab_is_announced_once_and_given_up_once() -> None:
    with nothing_left_open():
        view = ArenaView()
        view.attach(1, 4096, memory_file(4096, fcntl.F_SEAL_SHRINK))
        with pytest.raises(ProtocolError, match="slab 1 was announced twice"):
            view.attach(1, 4096, memory_file(4096, fcntl.F_SEAL_SHRINK))
        view.detach(1)
        with pytest.raises(ProtocolError, match="slab 1 is unknown"):
            view.detach(1)
