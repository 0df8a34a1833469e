"""Rows beyond what memory should hold lie in a file that nobody else sees."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest

from brisk.exits.data import rows as rows_module
from brisk.exits.data.rows import Rows
from brisk.exits.data.samples import SampleGroups, Samples

PARTS = [np.arange(12, dtype=np.float32).reshape(4, 3) + 100 * number for number in range(5)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for rows of which two parts are more than memory should hold."""
    monkeypatch.setattr(rows_module, "MOST_WAITING_BYTES", PARTS[0].nbytes + 1)
    return tmp_path


def joined(parts: list[np.ndarray], folder: Path | None = None) -> np.ndarray:
    rows = Rows(folder)
    for part in parts:
        rows.append(part)
    return rows.joined()


def is_mapped(array: np.ndarray) -> bool:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array.base, mmap.mmap)


def test_rows_of_a_file_are_those_of_memory(folder: Path) -> None:
    in_memory, mapped = joined(PARTS), joined(PARTS, folder)
    assert not is_mapped(in_memory)
    assert is_mapped(mapped)
    assert mapped.dtype == in_memory.dtype
    assert np.array_equal(mapped, in_memory)
    assert np.array_equal(mapped[[17, 2]], in_memory[[17, 2]])
    assert list(folder.iterdir()) == [], "it has no name"


def test_few_rows_stay_in_memory(folder: Path) -> None:
    assert not is_mapped(joined(PARTS[:1], folder))


def test_rows_of_several_shapes_are_numbered_as_in_memory(folder: Path) -> None:
    others = [np.full((2, 5), number, np.float32) for number in range(7)]
    parts = [Samples({"x": each}) for pair in zip(PARTS, others, strict=False) for each in pair]
    in_memory, mapped = SampleGroups.of(parts), SampleGroups.of(iter(parts), folder)
    assert [is_mapped(group.inputs["x"]) for group in mapped.groups] == [True, True]
    for one, other in zip(in_memory.groups, mapped.groups, strict=True):
        assert np.array_equal(one.inputs["x"], other.inputs["x"])
    for ours, theirs in zip(in_memory.places, mapped.places, strict=True):
        assert np.array_equal(ours, theirs)
    order = np.random.default_rng(0).permutation(len(in_memory))
    taken, expected = mapped.take(order), in_memory.take(order)
    assert np.array_equal(taken.largest.inputs["x"], expected.largest.inputs["x"])


def test_no_rows_are_no_groups(folder: Path) -> None:
    assert len(SampleGroups.of(iter(()), folder)) == 0
