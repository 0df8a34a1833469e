"""Whether a load is under way stands in every requester's memory, whoever asks when."""

from __future__ import annotations

from pathlib import Path

from brisk.protocol.shared_memory import MARK_BYTES, mark_is_set
from brisk.runtime.models.entry import LoadState, SessionEntry
from brisk.segments.table import SegmentTable
from support.models.segment_models import scaling
from support.runtime.requests import NotingLoader, a_model, a_peer, a_session_table


def a_mark() -> memoryview:
    return memoryview(bytearray(MARK_BYTES))


def an_entry() -> SessionEntry:
    return SessionEntry("net", Path("model.onnx"), a_model())


def test_who_asks_before_a_load_or_during_it_sees_it_begin_and_end() -> None:
    entry = an_entry()
    early, late = a_mark(), a_mark()
    entry.ask(early)
    assert not mark_is_set(early)
    entry.begin()
    entry.ask(late)
    assert mark_is_set(early)
    assert mark_is_set(late)
    entry.reach(LoadState.LOADED)
    assert not mark_is_set(early)
    assert not mark_is_set(late)


def test_who_asks_behind_a_load_is_told_of_none() -> None:
    entry = an_entry()
    entry.begin()
    entry.reach(LoadState.LOADED)
    behind = a_mark()
    entry.ask(behind)
    assert not mark_is_set(behind)


def test_a_model_that_memory_was_short_for_is_blamed_for_no_crash() -> None:
    problems: list[Exception] = [MemoryError()]
    entry = an_entry()
    before, behind = a_mark(), a_mark()

    def load(index: int) -> int:
        assert mark_is_set(before)
        raise problems[0]

    table = SegmentTable(2, load)
    table.when_left(entry.runs_short)
    entry.ask(before)
    entry.begin()
    table.work("load-0")
    assert not mark_is_set(before)
    entry.ask(behind)
    assert not mark_is_set(behind)


class EndsMeanwhile(list[memoryview]):
    """Marks of an entry whose load ends just before another mark is noted."""

    def __init__(self, entry: SessionEntry) -> None:
        super().__init__()
        self._entry = entry

    def append(self, memory: memoryview) -> None:
        self._entry.reach(LoadState.LOADED)
        super().append(memory)


def test_a_load_that_ends_while_it_is_asked_for_blames_nobody() -> None:
    entry = an_entry()
    entry.begin()
    entry.marks = EndsMeanwhile(entry)
    meanwhile = a_mark()
    entry.ask(meanwhile)
    assert not mark_is_set(meanwhile)


def test_a_requester_whose_connection_ends_finds_no_mark_and_others_do(tmp_path: Path) -> None:
    """Its process may live on: it takes a mark for the worker's death."""
    loader = NotingLoader()
    table = a_session_table(loader)
    model = a_model(scaling(tmp_path / "model.onnx"))
    dropped, other, took_back = (a_peer(number) for number in range(3))
    for peer in (dropped, other, took_back):
        table.bind(peer, model)
    (entry,) = loader.asked
    entry.begin()
    marks = [peer.view.memory(model.mark) for peer in (dropped, other)]
    assert [mark_is_set(mark) for mark in marks] == [True, True]
    took_back.view.detach(0)
    for peer in (dropped, took_back):
        table.release_all(peer)
    assert [mark_is_set(mark) for mark in marks] == [False, True]


def test_a_load_that_nobody_needs_any_more_is_left_out(tmp_path: Path) -> None:
    """Of a server that has gone, for instance: the loads of the next one would wait for it."""
    loader = NotingLoader()
    table = a_session_table(loader)
    model = a_model(scaling(tmp_path / "model.onnx"))
    first, second = (a_peer(number) for number in range(2))
    for peer in (first, second):
        table.bind(peer, model)
    table.release_all(first)
    assert loader.dropped == []
    table.release_all(second)
    assert loader.dropped == loader.asked
    assert len(table) == 0
    table.bind(first, model)
    assert len(loader.asked) == 2, "who asks again gets a load of its own"
