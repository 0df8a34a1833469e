"""The program in the host that starts models: one start for each line that it reads.

    python -m brisk_bench.sourcing.host MODEL

``keep``: a server that stays, of the model as an ordinary entry and as one that lies elsewhere,
whose copy is fetched. ``here``: a start of one of its entries, unloaded before and after, from
memory or from the disk. ``away``: a start of a new server with an empty cache. ``bucket``: the
same, by a repository of Triton's own in a bucket. ``new``: the same by ``model.remote`` or a
download, for ``brisk bench streamed``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brisk.copies.local import LocalCopy
from brisk.copies.remote import remote_directory
from brisk_bench.cold.page_cache import (
    DISK,
    cached_bytes,
    disk_seconds,
    drop_pages,
    files_of,
    read_pages,
)
from brisk_bench.engines.case import Case, case_of
from brisk_bench.engines.process import prepare_apart
from brisk_bench.fleet.remote_entries import COURIER, ENTRY, OTHER, RemoteHost, remote_host, whole
from brisk_bench.harness.programs import answer_each
from brisk_bench.harness.served_entries import write_brisk_entry
from brisk_bench.harness.served_server import FAILURES

PLAIN = "plain"
"""The entry whose model lies in the repository."""

_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "anybody",
    "AWS_SECRET_ACCESS_KEY": "anything",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Credentials, which a client of S3 needs to sign with; the bucket does not check them."""

FORCED_COURIER = ("-m", "brisk_bench.sourcing.forced_courier")


class SourcedStarts:
    """The starts that a line may ask for: its ``do`` is the name of a method."""

    def __init__(self, case: Case, stack: contextlib.ExitStack) -> None:
        self._case = case
        self._stack = stack
        self._kept: RemoteHost | None = None
        self._copy: LocalCopy | None = None
        self._siblings: dict[str, tuple[Case, Path]] = {}

    def keep(self, remote: str) -> dict[str, Any]:
        """Start the server that stays, with the whole copy and the ordinary entry's form."""
        host = self._kept = self._stack.enter_context(remote_host())
        host.start_remote(self._case, remote)
        host.warm_s(self._case)
        host.unload()
        write_brisk_entry(host.repository, self._case.file, PLAIN, {})
        prepare_apart(host.repository / PLAIN / "1" / "model.onnx", host.cache)
        host.start(self._case, PLAIN)
        warm_s = host.warm_s(self._case, PLAIN)
        host.unload(PLAIN)
        environment = {"BRISK_CACHE_DIR": str(host.cache)}
        folder = remote_directory(environment) / json.loads(remote)["sha256"]
        self._copy = LocalCopy(folder)
        return {"warm_s": warm_s}

    def here(self, entry: str, place: str) -> dict[str, Any]:
        """Start from what is on this host, in its memory or on its disk."""
        host, copy = self._kept, self._copy
        assert host is not None
        assert copy is not None
        contents = whole(copy)
        assert contents is not None
        _, parts = contents
        files = files_of(host.cache)
        bytes_per_s = 0.0
        if place == DISK:
            needed = [copy.path(each) for each in dict.fromkeys(part.file for part in parts)]
            size = sum(file.stat().st_size for file in needed)
            bytes_per_s = size / disk_seconds(needed)
            drop_pages(files)
        else:
            read_pages(files)
        cached = cached_bytes(files)
        first_s = host.start(self._case, entry)
        host.unload(entry)
        return {
            "first_s": first_s,
            "cached": cached,
            "needed_bytes": sum(part.size for part in parts),
            "bytes_per_s": bytes_per_s,
        }

    def away(
        self,
        remote: str,
        environment: dict[str, str] | None = None,
        forced: bool = False,
        sibling: str = "",
        warm: bool = False,
    ) -> dict[str, Any]:
        """Start a new server that has nothing, and load the model.

        ``sibling``: a file with a model that the server has, warm.
        ``warm``: also measure how long a warm answer takes.
        """
        courier = FORCED_COURIER if forced else COURIER
        other, cache = (Path(sibling), self._cache_of(sibling)) if sibling else (None, None)
        with remote_host(environment, other, courier, cache) as host:
            if sibling:
                sibling_case, _ = self._siblings[sibling]
                host.warm_s(sibling_case, OTHER)
            started = host.start_remote(self._case, remote)
            warm_s = host.warm_s(self._case, ENTRY) if warm else 0.0
        return {**asdict(started), "warm_s": warm_s}

    def bucket(self, repository: str) -> dict[str, Any]:
        """Start a new server that has nothing, and load an entry of its repository in a bucket."""
        with remote_host(_CREDENTIALS, repositories=[repository]) as host:
            return {"first_s": host.start(self._case)}

    def new(self, remote: str = "", url: str = "") -> dict[str, Any]:
        """Start a new server that has nothing, and load the model: one that lies elsewhere by
        ``remote``, or one that is downloaded from ``url`` first.

        Returns seconds from the ask to the last byte and the first answer; of a warm answer; of
        the same again when it is unloaded and loaded once more, from what is here now.
        """
        with remote_host() as host:
            if url:
                write_brisk_entry(host.repository, self._case.file, ENTRY, {})
                file = host.repository / ENTRY / "1" / "model.onnx"
                file.unlink()
                begun_s = time.perf_counter()
                with urllib.request.urlopen(url) as response, open(file, "wb") as target:
                    shutil.copyfileobj(response, target, 1 << 20)
                last_s = time.perf_counter() - begun_s
                host.client.load_model(ENTRY)
                ready_s = time.perf_counter() - begun_s
                first_s = host.ask(self._case, 1)[0][1] - begun_s
                times = {"ready_s": ready_s, "last_s": last_s, "first_s": first_s}
            else:
                started = host.start_remote(self._case, remote)
                times = {name: getattr(started, name) for name in ("ready_s", "last_s", "first_s")}
            warm_s = host.warm_s(self._case)
            host.unload()
            return {**times, "warm_s": warm_s, "again_s": host.start(self._case)}

    def _cache_of(self, model: str) -> Path:
        """Return a cache with the model's prepared form, made once."""
        if model not in self._siblings:
            cache = Path(self._stack.enter_context(tempfile.TemporaryDirectory()), "cache")
            prepare_apart(Path(model), cache)
            self._siblings[model] = case_of(model), cache
        return self._siblings[model][1]


def main(model: str) -> None:
    """Answer the lines. A failure ends the program with one message."""
    with contextlib.ExitStack() as stack:
        starts = SourcedStarts(case_of(model), stack)
        answer_each(lambda do, **told: getattr(starts, do)(**told), FAILURES)


if __name__ == "__main__":
    main(sys.argv[1])
