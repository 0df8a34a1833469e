"""Mapped files held under a lease: a process that would shorten one waits until it is copied.

Reading past the new end of a mapped file ends a process. The kernel notifies the holder of a lease
(fcntl(2), F_SETLEASE) when another process opens the file to write or to shorten it, and makes
that process wait, for 45 s unless set otherwise. Meanwhile the bytes are copied into memory of our
own, which takes the mapping's place at the same addresses, in one step and while other threads
read it; then the lease is given up. Replacing a file by ``rename`` and removing it break nothing:
the mapping keeps what it maps. If a file system has no leases, or the file is another user's, only
its mode and its folder's protect the file; they keep all but its owner from writing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import signal
import struct
import threading
import weakref

from brisk.posix import libc

_F_SETSIG, _F_SETOWN_EX, _F_OWNER_TID = 10, 15, 0
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_PAGE_BYTES = mmap.PAGESIZE
_LOOK_S = 1.0
"""The interval of checks of all leases, in case a signal was lost, for instance in a fork."""

_libc = libc()
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mremap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
]
_FAILED = ctypes.c_void_p(-1).value


class LeasedMap:
    """A file's mapping and the descriptor that its lease is on, which closes with the mapping."""

    def __init__(
        self, descriptor: int, mapping: mmap.mmap, address: int, *, is_written: bool
    ) -> None:
        """Take over ``descriptor``. ``address``: where ``mapping`` begins. ``is_written``: whether
        the mapping is private and may be written to."""
        self.descriptor = descriptor
        self._is_written = is_written
        self.address, self.size = address, len(mapping)
        self.mapping = weakref.ref(mapping)
        self.is_held = False
        """Whether the lease is held: a process that would shorten the file then waits."""
        self._is_copied = False

    def is_wanted(self) -> bool:
        """Whether another process waits to open the file for writing."""
        return fcntl.fcntl(self.descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK

    def let_go(self) -> None:
        """Replace the mapping by a copy, then let the waiting process go on."""
        mapping = self.mapping()  # keeps the mapping alive during the exchange
        if mapping is not None:
            self._is_copied = True
            _exchange(self.address, self.size, is_written=self._is_written)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def end(self) -> None:
        """Give up the lease: nothing reads from the file any longer."""
        _watch.forget(self)

    def drop_pages(self, offset: int, size: int) -> None:
        """Release this process's whole pages within these bytes until it reads them again.

        The pages come back from the file. A mapping that was replaced by a copy keeps its pages.
        """
        begin = -(-offset // _PAGE_BYTES) * _PAGE_BYTES
        end = (offset + size) // _PAGE_BYTES * _PAGE_BYTES
        with _watch.lock:  # no copy may take the file's place between the check and the call
            mapping = self.mapping()
            if begin < end and mapping is not None and not self._is_copied:
                mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _exchange(address: int, size: int, *, is_written: bool) -> None:
    """Replace the memory at ``address`` by anonymous memory with the same bytes. Raises OSError.

    ``is_written``: whether other threads may write to the bytes during the exchange and later.
    """
    size = -(-size // _PAGE_BYTES) * _PAGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    copy = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if copy == _FAILED:
        raise OSError(ctypes.get_errno(), "no memory for a copy of a mapped file")
    ctypes.memmove(copy, address, size)
    if not is_written:
        _libc.mprotect(ctypes.c_void_p(copy), ctypes.c_size_t(size), mmap.PROT_READ)
    moved = _libc.mremap(copy, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED, address)
    if moved == _FAILED:
        raise OSError(ctypes.get_errno(), "a mapped file cannot be exchanged for its copy")


class _Watch:
    """The leases of a process, and the one thread that takes the kernel's signal for them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._leased: list[LeasedMap] = []
        self._thread = 0
        self._is_ready = threading.Event()

    def hold(self, leased: LeasedMap) -> bool:
        """Take a lease; return False if the file system or the file's owner allow none."""
        with self.lock:
            if not self._thread:
                watcher = threading.Thread(target=self._run, name="brisk-leases", daemon=True)
                watcher.start()
                self._is_ready.wait()
            try:
                fcntl.fcntl(leased.descriptor, _F_SETSIG, signal.SIGIO)
                owner = struct.pack("ii", _F_OWNER_TID, self._thread)
                fcntl.fcntl(leased.descriptor, _F_SETOWN_EX, owner)
                fcntl.fcntl(leased.descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError:
                return False
            self._leased.append(leased)
            leased.is_held = True
        return True

    def forget(self, leased: LeasedMap) -> None:
        """Give up a lease, if it is still held."""
        with self.lock:
            if leased in self._leased:
                self._leased.remove(leased)
                os.close(leased.descriptor)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
        self._thread = threading.get_native_id()
        self._is_ready.set()
        while True:
            signal.sigtimedwait({signal.SIGIO}, _LOOK_S)
            self.look()

    def look(self) -> None:
        """Release files that other processes wait for, and forget mappings that are gone."""
        with self.lock:
            self._leased = [each for each in self._leased if not self._is_over(each)]

    def _is_over(self, leased: LeasedMap) -> bool:
        if leased.mapping() is None:
            os.close(leased.descriptor)
            return True
        if not leased.is_wanted():
            return False
        with contextlib.suppress(OSError):  # no memory: the other process gets the file after 45 s
            leased.let_go()
            os.close(leased.descriptor)
            return True
        return False


_watch = _Watch()


def _start_anew() -> None:
    """Begin without leases in a fork: it has its parent's, but not the thread that serves them."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_start_anew)


def hold(
    descriptor: int, mapping: mmap.mmap, address: int, *, is_written: bool = False
) -> LeasedMap:
    """Hold a mapped file under a lease for as long as it is mapped.

    ``descriptor``: the file's, which is duplicated. ``address``: where ``mapping`` begins.
    ``is_written``: whether the mapping is private and may be written to. The result is not
    ``is_held`` if no lease can be had. The duplicate, and with it a lock on the file, stays open
    for as long as the mapping even then.
    """
    leased = LeasedMap(os.dup(descriptor), mapping, address, is_written=is_written)
    if not _watch.hold(leased):
        weakref.finalize(mapping, os.close, leased.descriptor)
    return leased
