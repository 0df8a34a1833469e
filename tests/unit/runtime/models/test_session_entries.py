"""Whether a load is under way stands in every asker's memory, whoever asks when."""

from __future__ import annotations

from brisk.protocol import request_flags
from brisk.runtime.models.session_entry import SessionEntry


def a_mark() -> memoryview:
    return memoryview(bytearray(request_flags.MARK_BYTES))


def test_who_asks_before_a_load_or_during_it_sees_it_begin_and_end() -> None:
    entry = SessionEntry("net")
    early, late = a_mark(), a_mark()
    entry.ask(early)
    assert not request_flags.has_begun(early)
    entry.begin()
    entry.ask(late)
    assert request_flags.has_begun(early)
    assert request_flags.has_begun(late)
    entry.end()
    assert not request_flags.has_begun(early)
    assert not request_flags.has_begun(late)


def test_who_asks_behind_a_load_is_told_of_none() -> None:
    entry = SessionEntry("net")
    entry.begin()
    entry.end()
    behind = a_mark()
    entry.ask(behind)
    assert not request_flags.has_begun(behind)


class EndsMeanwhile(list[memoryview]):
    """Marks of an entry whose load ends just before another mark is noted."""

    def __init__(self, entry: SessionEntry) -> None:
        super().__init__()
        self._entry = entry

    def append(self, memory: memoryview) -> None:
        self._entry.end()
        super().append(memory)


def test_a_load_that_ends_while_it_is_asked_for_blames_nobody() -> None:
    entry = SessionEntry("net")
    entry.begin()
    entry.marks = EndsMeanwhile(entry)
    meanwhile = a_mark()
    entry.ask(meanwhile)
    assert not request_flags.has_begun(meanwhile)
