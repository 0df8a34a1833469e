"""A blob of which only the pages that are read need to be whole.

An embedding table is most of a small encoder's bytes, and a request looks up a few of its rows.
The sums of its pages lie in a blob of their own; the table's checksum is made of them, so they
are as trustworthy as the manifest.
"""

from __future__ import annotations

import numpy as np

from brisk.artefacts.checksum import PAGE_BYTES, checksum_of_pages, page_sums, whole_pages
from brisk.artefacts.container import Container, ContainerWriter
from brisk.errors import ArtefactError


def write_sums(content: np.ndarray, writer: ContainerWriter) -> int:
    """The number of a new blob, the page sums of a blob's bytes."""
    return writer.add(page_sums(content).view(np.uint8), is_indexed=True)


class PagedBlob:
    """Thread-safe: two threads may verify the same page."""

    def __init__(self, container: Container, number: int, sums: int) -> None:
        """``sums``: the blob that ``write_sums`` made.

        Raises ArtefactError where that does not fit the blob's checksum, or what lies behind the
        blob's last whole page is damaged.
        """
        self._name = f"{container.path}: blob {number}"
        content = container.view(number)
        listed = np.frombuffer(container.copied(sums), np.uint8)
        count = whole_pages(content) // PAGE_BYTES
        if listed.size != 8 * count:
            raise ArtefactError(f"{self._name} has {count} pages, not {listed.size / 8:g}")
        self._sums = listed.view(np.uint64)
        found = checksum_of_pages(content.size, self._sums, content[count * PAGE_BYTES :])
        if found != container.place(number).checksum:
            raise ArtefactError(f"{self._name}: its page sums or its end are damaged")
        self._pages = content[: count * PAGE_BYTES].reshape(count, PAGE_BYTES)
        self._verified = np.zeros(count, bool)

    def verify_rows(self, rows: np.ndarray, row_bytes: int) -> None:
        """Compare the pages on which these rows lie with their sums, each page once.

        ``rows``: int64, within the blob. Raises ArtefactError where a page is damaged.
        """
        starts = rows * row_bytes
        first, last = starts // PAGE_BYTES, (starts + row_bytes - 1) // PAGE_BYTES
        most = row_bytes // PAGE_BYTES + 2
        pages = np.unique(np.minimum(first[:, None] + np.arange(most), last[:, None]))
        pages = pages[pages < len(self._sums)]
        pages = pages[~self._verified[pages]]
        if not np.array_equal(page_sums(self._pages[pages].reshape(-1)), self._sums[pages]):
            raise ArtefactError(f"{self._name}: a page of it is damaged")
        self._verified[pages] = True
