"""Rows of tables: the chunks that they lie in, and runs that wait for them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.errors import UnavailableError
from brisk.runtime.arrivals.rows import ArrivingRows, ArrivingTable
from brisk.segments.program import LoadedSegment
from brisk.segments.source import SegmentSpec
from support.remote.published import Published, chunk_of, new_copy, publish


def test_every_byte_of_a_row_lies_in_its_chunks_and_no_other_chunk_is_asked_for() -> None:
    generator = random.Random(3)
    for _ in range(300):
        rows, row_bytes = generator.randint(1, 200), generator.randint(1, 400)
        chunk, offset = generator.choice([64, 128, 256]), generator.randint(0, 1000)
        table = ArrivingTable(0, "ids", Range(0, offset, rows * row_bytes), rows)
        ids = np.array([generator.randint(-rows - 3, rows + 3) for _ in range(12)])
        right = set()
        for number in ids.tolist():
            row = number + rows if number < 0 else number
            if 0 <= row < rows:
                start = offset + row * row_bytes
                right.update(byte // chunk for byte in range(start, start + row_bytes))
        assert table.chunks(ids.reshape(3, 4), chunk).tolist() == sorted(right)


class Arriving:
    """A copy of a table of 4,000 rows of 1,024 bytes, in which nothing is yet."""

    def __init__(self, folder: Path) -> None:
        self.published: Published = publish(folder / "published", 4_096_000)
        folder = folder / "remote" / self.published.sha256
        self.arriving = new_copy(folder, self.published)
        self.told: list[str] = []
        self.is_unloaded = False
        model = self.published.manifest.model
        self.rows = ArrivingRows(
            LocalCopy(folder),
            [ArrivingTable(1, "ids", Range(model, 0, 4_096_000), 4000)],
            lambda: self.is_unloaded or threading.current_thread().name == "brisk-rows",
            lambda: None,
            self.told.append,
        )

    def put_rows(self, ids: np.ndarray) -> None:
        """The chunks that they lie in."""
        manifest = self.published.manifest
        for chunk in self.rows.tables[0].chunks(ids, manifest.chunk_bytes).tolist():
            part = manifest.chunk_range(manifest.model, chunk)
            index = self.arriving.layout.stretch(part).start
            assert self.arriving.put(index, [chunk_of(self.published, self.arriving, index)])


@pytest.fixture
def arriving(tmp_path: Path) -> Arriving:
    return Arriving(tmp_path)


def segment_of(ran: list[Any]) -> LoadedSegment:
    def run(feeds: Mapping[str, Any], outputs: list[str], options: Any) -> Sequence[Any]:
        ran.append(feeds)
        return []

    spec = SegmentSpec(1, ("ids",), ("y",), (), "")
    return LoadedSegment(spec, run, ("ids",), ["y"], (0,), (1,), (), False, None)  # type: ignore[arg-type]


def test_a_run_that_comes_too_soon_waits_for_its_rows(arriving: Arriving) -> None:
    ran: list[Any] = []
    ids = np.array([[0, 3999, -2]])
    guarded = arriving.rows.guarded(1, segment_of(ran))
    running = threading.Thread(target=guarded.run, args=({"ids": ids}, ["y"], None))
    running.start()
    arriving.put_rows(np.array([0]))
    time.sleep(0.1)
    assert not ran
    arriving.put_rows(ids)
    running.join(10)
    assert len(ran) == 1
    assert not arriving.rows.is_whole
    assert arriving.rows.are_here({"ids": ids})
    assert not arriving.rows.are_here({"ids": np.array([2000])})
    arriving.put_rows(np.arange(4000))
    assert arriving.rows.is_whole


def test_a_run_of_an_unloaded_model_ends(arriving: Arriving) -> None:
    ran: list[Any] = []
    arriving.is_unloaded = True
    with pytest.raises(UnavailableError, match="unloaded"):
        arriving.rows.guarded(1, segment_of(ran)).run({"ids": np.array([1])}, ["y"], None)
    assert not ran


def test_other_segments_and_other_inputs_wait_for_nothing(arriving: Arriving) -> None:
    segment = segment_of([])
    assert arriving.rows.guarded(0, segment) is segment
    assert arriving.rows.are_here({"mask": np.array([1])})
    assert arriving.rows.are_here({"ids": np.array([], np.int64)})
    assert arriving.rows.are_here({"ids": np.array([4000, -4001, 1 << 60])})
