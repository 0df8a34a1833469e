"""What is asked of the courier besides opening a copy: what is wanted of it, and how far it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brisk.copies.connection import CourierConnection, resolve
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.copies.remote import Remote, read_remote_file, remote_directory
from brisk.errors import UnavailableError


class FetchProgress(NamedTuple):
    """How far what is awaited has come. ``problem``: why nothing comes just now; empty else."""

    missing_bytes: int
    bytes_per_s: float
    problem: str


class Courier(CourierConnection):
    """A connection, and what can be asked."""

    def open(self, remote: Remote) -> Path:
        """The folder of the copy, whose head is here. Raises BriskError, as the courier says."""
        return Path(str(self.ask("open", remote._asdict())["folder"]))

    def take(self, sha256: str, form: str, *, is_begun: bool = False) -> Path | None:
        """The prepared form of this name, which arrives from now on; None where it is not worth
        fetching, or none was published. ``is_begun``: or nothing of it comes yet."""
        question = {"sha256": sha256, "form": form, "begun": is_begun}
        path = self.ask("take", question)["path"]
        return None if path is None else Path(str(path))

    def wait(self, sha256: str, ranges: Iterable[Range]) -> Iterator[FetchProgress]:
        """Yield how far the fetch has come, some times a second, until all of these bytes are
        here."""
        self.send("await", {"sha256": sha256, "ranges": [list(part) for part in ranges]})
        while (answer := self.answer()).keys() == {"waiting"}:
            said = answer["waiting"]
            yield FetchProgress(
                int(said["missing_bytes"]), float(said["bytes_per_s"]), str(said["problem"])
            )

    def status(self) -> list[Mapping[str, Any]]:
        """Return the state of each copy that is being fetched or served."""
        return list(self.ask("status", {})["copies"])


def fetch(remote_file: Path) -> Path:
    """Do what ``resolve`` does, and return when all of the model's own files are here."""
    remote = read_remote_file(remote_file)
    path = resolve(remote_file)
    copy = LocalCopy(remote_directory() / remote.sha256)
    if not copy.is_whole:
        with Courier() as courier:
            courier.open(remote)
            for progress in courier.wait(remote.sha256, copy.all_of_it):
                if progress.problem and not progress.bytes_per_s:
                    raise UnavailableError(f"{remote_file}: {progress.problem}")
    return path
