"""Blobs of which single pages are verified: damage is found where it is read, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brisk.artefacts.checksum import PAGE_BYTES
from brisk.artefacts.container import Container, ContainerWriter
from brisk.artefacts.paged import PagedBlob, write_sums
from brisk.errors import ArtefactError

ROW_BYTES = 1500
"""Rows begin anywhere in a page, and every third lies on two."""

ROWS = 20
TABLE = np.random.default_rng(1).integers(0, 256, ROWS * ROW_BYTES, np.uint8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    writer = ContainerWriter()
    assert (writer.add(TABLE), write_sums(TABLE, writer)) == (0, 1)
    with (tmp_path / "a").open("wb") as file:
        writer.write(file, None, lambda: None)
    return tmp_path / "a"


def damaged(path: Path, number: int, offset: int) -> Container:
    at = Container(path).place(number).offset + offset
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    return Container(path)


def rows_that_are_refused(container: Container) -> list[int]:
    refused = []
    for row in range(ROWS):
        blob = PagedBlob(container, 0, 1)
        try:
            blob.verify_rows(np.array([row]), ROW_BYTES)
        except ArtefactError:
            refused.append(row)
    return refused


def test_all_rows_of_a_whole_table_pass(path: Path) -> None:
    blob = PagedBlob(Container(path), 0, 1)
    blob.verify_rows(np.arange(ROWS), ROW_BYTES)
    blob.verify_rows(np.array([3, 3, 0]), ROW_BYTES)
    blob.verify_rows(np.zeros(0, np.int64), ROW_BYTES)


@pytest.mark.parametrize("page", range(len(TABLE) // PAGE_BYTES))
def test_exactly_the_rows_on_a_damaged_page_are_refused(path: Path, page: int) -> None:
    container = damaged(path, 0, page * PAGE_BYTES + 700)
    begin, end = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
    expected = [
        row for row in range(ROWS) if row * ROW_BYTES < end and (row + 1) * ROW_BYTES > begin
    ]
    assert rows_that_are_refused(container) == expected


def test_a_damaged_page_is_refused_again_and_others_pass_beside_it(path: Path) -> None:
    blob = PagedBlob(damaged(path, 0, 5), 0, 1)
    for _ in range(2):
        with pytest.raises(ArtefactError, match="blob 0: a page of it is damaged"):
            blob.verify_rows(np.array([7, 0]), ROW_BYTES)
    blob.verify_rows(np.array([7, 19]), ROW_BYTES)


@pytest.mark.parametrize(("blob", "offset"), [(1, 0), (1, 8), (0, len(TABLE) - 1)])
def test_damage_in_the_sums_or_behind_the_last_page_is_found_at_once(
    path: Path, blob: int, offset: int
) -> None:
    with pytest.raises(ArtefactError, match="damaged"):
        PagedBlob(damaged(path, blob, offset), 0, 1)


def test_sums_of_another_number_of_pages_are_refused(path: Path) -> None:
    with pytest.raises(ArtefactError, match="blob 1 has 0 pages, not 7"):
        PagedBlob(Container(path), 1, 1)
