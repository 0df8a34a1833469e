"""Mapped files held under a lease: a process that would shorten one waits until nobody needs it.

Reading behind the new end of a mapped file ends a process. The kernel tells the holder of a lease
(fcntl(2), F_SETLEASE) that somebody opens the file to write or to shorten it, and lets that one
wait, for 45 s unless set otherwise. Meanwhile the bytes are copied into memory of our own that
takes the mapping's place at the same addresses, in one step and beside threads that read it; then
the lease is given up. Replacing a file by ``rename`` and removing it break nothing: the mapping
keeps what it maps. If a file system has no leases, or the file is another user's, the file is held
by nothing but its mode and its folder's, which keep all but its owner from writing.
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
"""The interval of looks at leases whose signal was lost, in a fork for instance."""

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
        """``address``: of ``mapping``. ``descriptor`` is ours from now on. ``is_written``: the
        mapping is private and may be written to."""
        self.descriptor = descriptor
        self._is_written = is_written
        self.address, self.size = address, len(mapping)
        self.mapping = weakref.ref(mapping)
        self.is_held = False
        """Whether a process that would shorten the file waits."""
        self._is_copied = False

    def is_wanted(self) -> bool:
        """Whether somebody waits to write the file."""
        return fcntl.fcntl(self.descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK

    def let_go(self) -> None:
        """Put a copy in the mapping's place, then let the waiting process go on."""
        mapping = self.mapping()  # keeps the addresses ours while they are exchanged
        if mapping is not None:
            self._is_copied = True
            _exchange(self.address, self.size, is_written=self._is_written)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def end(self) -> None:
        """Hold the file no more: nothing reads from it any longer."""
        _watch.forget(self)

    def drop_pages(self, offset: int, size: int) -> None:
        """Free this process of the whole pages in these bytes until it reads them again.

        They come back from the file. A copy is the only one there is: it stays.
        """
        begin = -(-offset // _PAGE_BYTES) * _PAGE_BYTES
        end = (offset + size) // _PAGE_BYTES * _PAGE_BYTES
        with _watch.lock:  # no copy may take the file's place between the look and the call
            mapping = self.mapping()
            if begin < end and mapping is not None and not self._is_copied:
                mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _exchange(address: int, size: int, *, is_written: bool) -> None:
    """Replace the memory at ``address`` by anonymous memory with the same bytes. Raises OSError.

    ``is_written``: others may write the bytes that are there, meanwhile and later.
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
    """One thread for all leases of the process; only it takes the kernel's signal."""

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
        """Answer who waits, and forget mappings that are gone."""
        with self.lock:
            self._leased = [each for each in self._leased if not self._is_over(each)]

    def _is_over(self, leased: LeasedMap) -> bool:
        if leased.mapping() is None:
            os.close(leased.descriptor)
            return True
        if not leased.is_wanted():
            return False
        with contextlib.suppress(OSError):  # no memory: who waits gets the file after its time
            leased.let_go()
            os.close(leased.descriptor)
            return True
        return False


_watch = _Watch()


def _start_anew() -> None:
    """Begin without leases: a fork has its parent's, but not the thread that would answer for
    them."""
    global _watch
    _watch = _Watch()


os.register_at_fork(after_in_child=_start_anew)


def hold(
    descriptor: int, mapping: mmap.mmap, address: int, *, is_written: bool = False
) -> LeasedMap:
    """Hold the mapped file of ``descriptor``, which is copied, under a lease while it is mapped.

    ``address``: of ``mapping``. ``is_written``: it is private, and may be written to. The result
    is not ``is_held`` if that is impossible; the copy of ``descriptor``, and what is locked by it,
    stays open for as long as the mapping then, too.
    """
    leased = LeasedMap(os.dup(descriptor), mapping, address, is_written=is_written)
    if not _watch.hold(leased):
        weakref.finalize(mapping, os.close, leased.descriptor)
    return leased
