"""Requests to the courier about open copies: forms, awaited bytes, and their progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brisk.copies.connection import CourierConnection, asked_again, resolve
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote, read_remote_file, remote_directory
from brisk.errors import BriskError, UnavailableError

STALLED_S = 10.0
"""The time without a further byte after which a copy counts as not arriving: commands fail, and
requests are refused until some bytes come."""


class FetchProgress(NamedTuple):
    """The progress of awaited bytes.

    ``missing_bytes``: of the chunks that are not here yet.
    ``bytes_per_s``: the speed at which bytes arrive.
    ``problem``: why none arrive just now; empty otherwise.
    """

    missing_bytes: int
    bytes_per_s: float
    problem: str


class Courier(CourierConnection):
    """A connection to the courier, with a method for each request."""

    def open(self, remote: Remote) -> Path:
        """Open a copy; return its folder once the copy's head is here. Raises the courier's
        BriskError."""
        return Path(str(self.ask("open", remote._asdict())["folder"]))

    def take(self, sha256: str, form: str, *, is_begun: bool = False) -> Path | None:
        """Return the path of the prepared form of this name, which arrives from now on; None: it
        is not worth fetching, or was not published. ``is_begun``: None also if none of it arrives
        yet."""
        question = {"sha256": sha256, "form": form, "begun": is_begun}
        path = self.ask("take", question)["path"]
        return None if path is None else Path(str(path))

    def wait(
        self, sha256: str, ranges: Iterable[Range], *, is_compared: bool = False
    ) -> Iterator[FetchProgress]:
        """Yield the progress of the fetch, a few times a second, until all of these bytes are
        here.

        ``is_compared``: until the whole model has also been compared with the listed digests.
        Raises the courier's BriskError.
        """
        parts = [list(part) for part in ranges]
        self.send("await", {"sha256": sha256, "ranges": parts, "compared": is_compared})
        while (answer := self.answer()).keys() == {"waiting"}:
            said = answer["waiting"]
            yield FetchProgress(
                int(said["missing_bytes"]), float(said["bytes_per_s"]), str(said["problem"])
            )

    def status(self) -> list[Mapping[str, Any]]:
        """Return the state of each copy that is being fetched or served."""
        return list(self.ask("status", {})["copies"])


def fetch(remote_file: Path) -> Path:
    """Return what ``resolve`` returns, once all of the model's own files are here and compared
    with the listed digests.

    Raises like ``resolve``, and UnavailableError if nothing arrives for ``STALLED_S``.
    """
    remote = read_remote_file(remote_file)
    path = resolve(remote_file)
    try:
        await_whole(LocalCopy(remote_directory() / remote.sha256), remote.url)
    except BriskError as error:
        raise type(error)(f"{remote_file}: {error}") from error
    return path


def await_whole(copy: LocalCopy, url: str = "") -> None:
    """Block until all of the model's own files are here and compared with the listed digests.

    ``url``: where its manifest lies; empty: where it was opened last. Raises UnavailableError if
    nothing arrives for ``STALLED_S``, InvalidModelError if the manifest lists other digests.
    """
    if copy.is_compared:
        return
    sha256 = copy.folder.name

    def wait() -> None:
        with Courier() as courier:
            courier.open(Remote(url, sha256))
            since_s, least = time.monotonic(), None
            for progress in courier.wait(sha256, copy.all_of_it, is_compared=True):
                if least is None or progress.missing_bytes < least:
                    since_s, least = time.monotonic(), progress.missing_bytes
                elif progress.problem and time.monotonic() - since_s > STALLED_S:
                    raise UnavailableError(progress.problem)

    asked_again(wait)
