"""What a thread needs to compute beside the main one: threads, helpers and memory of its own."""

from __future__ import annotations

from dataclasses import dataclass

from brisk.compiled.library import Library, library


@dataclass(frozen=True, slots=True)
class Workplace:
    """Of a thread that lives as long as the process."""

    _library: Library
    _address: int | None

    @classmethod
    def take(cls, threads: int) -> Workplace | None:
        """The calling thread's from now on, with helpers for runs on so many threads.

        None while the compiled library is not there: what is computed without it needs none.
        """
        found = library()
        if found is None:
            return None
        address = found.take_workplace()
        found.use_threads(threads)
        return cls(found, address)

    def part(self) -> None:
        """Its thread uses the caller's processor no more; any other thread calls this."""
        if self._address is not None:
            self._library.part(self._address)
