"""Shared memory: the allocator against a model."""

from __future__ import annotations

import os
import random
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from brisk.errors import ProtocolError, UnavailableError
from brisk.protocol.records import AttachSlab, DetachSlab, Region
from brisk.protocol.shared_memory import (
    ALIGNMENT,
    MAX_SLAB_BYTES,
    Arena,
    ArenaView,
    SlabChange,
)
from support.open_files import nothing_left_open
from support.runtime.arena_views import follow

SLAB_BYTES = 64 * 1024
SIZES = st.integers(0, 3 * SLAB_BYTES) | st.integers(0, 300)


class ArenaBesideItsModel(RuleBasedStateMachine):
    """Any order of allocations and frees, and a peer that follows what is announced."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(SLAB_BYTES)
        self.view = ArenaView()
        self.regions: dict[Region, bytes] = {}
        self.known: set[int] = set()

    def follow(self, changes: list[SlabChange]) -> None:
        follow(self.view, changes)
        for record, descriptor in changes:
            (self.known.remove if descriptor is None else self.known.add)(record.slab)

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        region = self.arena.allocate(size)
        assert region.size == size
        assert region.offset % ALIGNMENT == 0
        content = random.randbytes(min(size, 32))
        self.arena.memory(region)[: len(content)] = content
        self.regions[region] = content

    @precondition(lambda self: self.regions)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        region = data.draw(st.sampled_from(list(self.regions)))
        del self.regions[region]
        self.arena.free(region)

    @rule()
    def announce(self) -> None:
        self.follow(self.arena.take_changes())

    @rule()
    def another_peer_comes(self) -> None:
        self.view.clear()
        self.known.clear()
        self.follow(self.arena.announce_all())

    @invariant()
    def regions_never_overlap(self) -> None:
        ordered = sorted(self.regions, key=lambda region: (region.slab, region.offset))
        for first, second in pairwise(ordered):
            if first.slab == second.slab:
                assert first.offset + max(first.size, 1) <= second.offset

    @invariant()
    def the_counts_are_right(self) -> None:
        statistics = self.arena.statistics()
        padded = sum(max(ALIGNMENT, -(-r.size // ALIGNMENT) * ALIGNMENT) for r in self.regions)
        assert statistics["used_bytes"] == padded
        assert statistics["slabs"] <= len({region.slab for region in self.regions}) + 1

    @invariant()
    def the_peer_reads_what_was_written(self) -> None:
        for region, content in self.regions.items():
            if region.slab in self.known:
                assert bytes(self.view.memory(region)[: len(content)]) == content

    def teardown(self) -> None:
        for region in self.regions:
            self.arena.free(region)
        assert self.arena.statistics()["used_bytes"] == 0
        assert self.arena.statistics()["slabs"] <= 1
        self.arena.close()
        self.view.clear()


ArenaBesideItsModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
test_the_allocator_agrees_with_its_model = ArenaBesideItsModel.TestCase


def test_neighbours_given_back_in_any_order_are_one_stretch_again() -> None:
    arena = Arena(SLAB_BYTES)
    order = random.Random(3)
    for _ in range(30):
        regions = [arena.allocate(SLAB_BYTES // 16) for _ in range(16)]
        assert arena.statistics()["slabs"] == 1
        order.shuffle(regions)
        for region in regions:
            arena.free(region)
        whole = arena.allocate(SLAB_BYTES)
        assert (whole.offset, arena.statistics()["slabs"]) == (0, 1)
        arena.free(whole)
    arena.close()


def test_of_several_empty_slabs_one_is_kept() -> None:
    arena = Arena(SLAB_BYTES)
    regions = [arena.allocate(SLAB_BYTES) for _ in range(5)]
    view = ArenaView()
    follow(view, arena.take_changes())
    for region in regions:
        arena.free(region)
    assert arena.statistics() == {"slabs": 1, "slab_bytes": SLAB_BYTES, "used_bytes": 0}
    given_up = arena.take_changes()
    assert all(isinstance(change.record, DetachSlab) for change in given_up)
    assert [change.descriptor for change in given_up] == [None] * 4
    arena.close()


def test_of_several_empty_slabs_the_largest_goes() -> None:
    arena = Arena(SLAB_BYTES)
    small, large = arena.allocate(100), arena.allocate(20 * SLAB_BYTES)
    arena.free(large)
    arena.free(small)
    assert arena.statistics() == {"slabs": 1, "slab_bytes": SLAB_BYTES, "used_bytes": 0}
    region = arena.allocate(100)
    arena.memory(region)[:] = bytes(100)
    arena.close()


def test_a_slab_that_came_and_went_untold_is_never_told() -> None:
    arena = Arena(SLAB_BYTES)
    kept, gone = arena.allocate(SLAB_BYTES), arena.allocate(SLAB_BYTES)
    arena.free(kept)
    arena.free(gone)
    (change,) = arena.take_changes()
    assert change.record == AttachSlab(kept.slab, SLAB_BYTES)
    assert change.descriptor is not None
    os.close(change.descriptor)
    arena.close()


def test_each_follower_is_told_every_change_once_from_its_first_announcement_on() -> None:
    arena, views = Arena(SLAB_BYTES), {"one": ArenaView(), "other": ArenaView()}
    with nothing_left_open():
        first = arena.allocate(SLAB_BYTES)
        follow(views["one"], arena.announce_all("one"))
        second = arena.allocate(SLAB_BYTES)
        follow(views["other"], arena.announce_all("other"))
        arena.free(first)
        arena.free(second)
        arena.memory(first)[0] = 7
        assert len(arena.take_changes("other")) == 1
        follow(views["one"], arena.take_changes("one"))
        assert views["one"].memory(first)[0] == 7
        with pytest.raises(ProtocolError, match="is unknown"):
            views["one"].memory(second)
        assert arena.take_changes("one") == []
        arena.close()
        for view in views.values():
            view.clear()


def test_a_copy_to_send_outlives_the_slab() -> None:
    arena, view = Arena(SLAB_BYTES), ArenaView()
    regions = [arena.allocate(SLAB_BYTES) for _ in range(2)]
    changes = arena.take_changes()
    for region in regions:
        arena.free(region)
    arena.close()
    follow(view, changes)


def test_closing_gives_descriptors_and_mappings_back() -> None:
    with nothing_left_open():
        arena, view = Arena(SLAB_BYTES), ArenaView()
        for size in (1, SLAB_BYTES, 5 * SLAB_BYTES):
            arena.allocate(size)
        follow(view, arena.take_changes())
        arena.close()
        view.clear()


def test_a_view_outlives_its_arena() -> None:
    """A response may still be read while the connection that brought it closes."""
    arena = Arena(SLAB_BYTES)
    region = arena.allocate(5)
    memory = arena.memory(region)
    memory[:] = b"alive"
    arena.close()
    assert bytes(memory) == b"alive"


def test_more_memory_than_a_system_can_have_is_unavailable() -> None:
    refused = pytest.raises(UnavailableError, match="bytes of shared memory asked for at once")
    with nothing_left_open(), refused:
        Arena().allocate(MAX_SLAB_BYTES + 1)


def test_a_slab_can_neither_shrink_nor_grow() -> None:
    arena = Arena(SLAB_BYTES)
    arena.allocate(1)
    (change,) = arena.take_changes()
    assert change.descriptor is not None
    for size in (0, 2 * SLAB_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(change.descriptor, size)
    os.close(change.descriptor)
    arena.close()


def test_beside_others_the_lowest_place_is_taken() -> None:
    """So that many at once touch no more memory than they need."""
    arena, size = Arena(SLAB_BYTES), SLAB_BYTES // 16
    held = [arena.allocate(size) for _ in range(3)]
    for _ in range(3):
        region = arena.allocate(size)
        assert region.offset == 3 * size
        arena.free(region)
    arena.free(held[1])
    assert arena.allocate(size).offset == size
