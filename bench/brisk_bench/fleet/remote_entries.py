"""A server with an empty cache, and an entry of it whose model lies elsewhere.

Used in a host of a rack (``brisk_bench.fleet``). The server serves another model and has its
courier before anything is measured. Clocks start when the load is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import InferenceServerClient

from brisk.artefacts.room import ARTEFACT
from brisk.copies.courier import Courier
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range, write_manifest
from brisk.copies.remote import MANIFEST, remote_directory
from brisk.errors import ArtefactError
from brisk.publishing.describing import cuts_of, describe
from brisk.publishing.writing import publish
from brisk.segments.prepared.preparation import is_prepared, prepare
from brisk_bench.engines.agreement import agree_by_name
from brisk_bench.engines.case import Case
from brisk_bench.harness.served_entries import (
    sample_file,
    signature_of,
    write_brisk_entry,
    write_config,
)
from brisk_bench.harness.served_server import (
    WITHOUT_COMPLETION,
    BenchmarkServer,
    benchmark_server,
    unload_model,
)
from brisk_bench.harness.surroundings import environment, wait_until_settled
from brisk_client.inference import InferenceClient, Transport

ENTRY, OTHER = "model", "other"
"""The entry that is started, and the one that the server serves already."""

FORM, WEIGHTS = "form", "weights"
"""The parts of a copy that a start has read: the prepared form, or the weights."""

WARM_RUNS = 20
REST_S = float(os.environ.get("_BRISK_BENCH_REST_S", "2"))
"""The time in which the server finishes its work after its first load. Tests, which judge no
figure, wait less."""

_LET_GO_S = 0.5
"""The wait after an unload until sessions are released."""

_LOOK_S = 0.005
_LAST_BYTE_S = 120.0
"""The longest wait for the last byte after a first answer."""

COURIER = ("-c", "from brisk.copies.courier import Courier; Courier().close()")
"""Arguments with which Python starts a host's courier, as ``brisk serve`` does."""


@dataclass(frozen=True, slots=True)
class RemoteStart:
    """One start of a model that lies elsewhere, in seconds from when the load was asked for.

    ``last_s``: when the last needed byte was here. A model that reads rows of a table may answer
      before.
    ``took``: FORM or WEIGHTS.
    ``needed_bytes``: the size of that, with the head.
    ``sources``: bytes that came until the first answer, by sender.
    """

    ready_s: float
    last_s: float
    first_s: float
    took: str
    needed_bytes: int
    sources: Mapping[str, int]


class RemoteHost:
    """The server, its entries and its cache, while ``remote_host`` is entered."""

    def __init__(
        self, server: BenchmarkServer, client: InferenceServerClient, repository: Path, cache: Path
    ) -> None:
        self.server = server
        self.client = client
        self.repository = repository
        self.cache = cache

    def place_remote(self, case: Case, remote: str) -> Path:
        """Give ENTRY the ``model.remote`` with this text; return the folder of its version."""
        folder = write_config(self.repository, ENTRY, signature_of(case.file), "brisk")
        (folder / "model.remote").write_text(remote)
        return folder

    def start_remote(self, case: Case, remote: str) -> RemoteStart:
        """Load ENTRY, whose model lies elsewhere, and ask once."""
        self.place_remote(case, remote)
        sha256 = str(json.loads(remote)["sha256"])
        with _watched(remote_directory({"BRISK_CACHE_DIR": str(self.cache)}) / sha256) as watch:
            begun_s = time.perf_counter()
            self.client.load_model(ENTRY)
            ready_s = time.perf_counter() - begun_s
            first_s = self.ask(case, 1)[0][1] - begun_s
            sources = self._sources(sha256)
            watch.wait()
        return RemoteStart(
            ready_s, watch.at_s - begun_s, first_s, watch.took, watch.needed_bytes, sources
        )

    def start(self, case: Case, name: str = ENTRY) -> float:
        """Load an entry and ask once; return the seconds until its answer."""
        begun_s = time.perf_counter()
        self.client.load_model(name)
        return self.ask(case, 1, name)[0][1] - begun_s

    def ask(self, case: Case, count: int, name: str = ENTRY) -> list[tuple[float, float]]:
        """Return for each request how long it took, and when it was answered, in seconds.

        Ends the program if an answer is wrong.
        """
        answers = []
        with InferenceClient(self.server.grpc, Transport.GRPC) as client:
            for _ in range(count):
                begun_s = time.perf_counter()
                outputs = client.infer(name, case.inputs)
                ended_s = time.perf_counter()
                if not agree_by_name(outputs, case.expected):
                    raise SystemExit(f"{case.name}: a wrong answer")
                answers.append((ended_s - begun_s, ended_s))
        return answers

    def warm_s(self, case: Case, name: str = ENTRY) -> float:
        """Return the median time of an answer once the entry has settled."""
        wait_until_settled(self.server.place, name, "normal")
        return statistics.median(took_s for took_s, _ in self.ask(case, WARM_RUNS, name))

    def unload(self, name: str = ENTRY) -> None:
        """Unload an entry, and wait until its sessions are let go of."""
        unload_model(self.client, name)
        time.sleep(_LET_GO_S)

    def _sources(self, sha256: str) -> Mapping[str, int]:
        """Return bytes by sender, as the courier reports; empty if the copy is no longer open."""
        with environment({"BRISK_RUNTIME_DIR": str(self.server.place.base)}), Courier() as courier:
            for status in courier.status():
                if status["sha256"] == sha256:
                    sources = status.get("sources", [])
                    return {str(each["name"]): int(each["bytes_total"]) for each in sources}
        return {}


@contextlib.contextmanager
def remote_host(
    more: Mapping[str, str] | None = None,
    other: Path | None = None,
    courier: Sequence[str] = COURIER,
    cache_from: Path | None = None,
    repositories: Sequence[str] = (),
) -> Iterator[RemoteHost]:
    """Run a new server with an empty cache.

    ``more``: added to its environment. ``other``: what it serves as OTHER; None: a small sample.
    ``courier``: with which arguments a Python starts its courier. ``cache_from``: a cache whose
    artefacts it has from the beginning. ``repositories``: further ones of Triton's.
    """
    with tempfile.TemporaryDirectory(prefix="brisk-remote-") as name:
        repository, cache = Path(name) / "models", Path(name) / "cache"
        write_brisk_entry(repository, other or sample_file("mlp/1"), OTHER, {})
        if cache_from is not None:
            subprocess.run(["cp", "-a", str(cache_from), str(cache)], check=True)
        variables = {"BRISK_CACHE_DIR": str(cache), **(more or {})}
        options = [WITHOUT_COMPLETION, "--model-control-mode=explicit"]
        if repositories:  # else it is this one alone
            every = (str(repository), *repositories)
            options += [f"--model-repository={each}" for each in every]
        with benchmark_server(repository, variables, options) as server:
            client = InferenceServerClient(server.grpc)
            own = {**os.environ, **variables, "BRISK_RUNTIME_DIR": str(server.place.base)}
            subprocess.run([sys.executable, *courier], env=own, check=True)
            client.load_model(OTHER)
            time.sleep(REST_S)
            try:
                yield RemoteHost(server, client, repository, cache)
            finally:
                client.close()


def publish_model(file: Path, folder: Path, *, with_form: bool) -> bytes:
    """Publish a model into a folder, preparing it first if needed; return the manifest's text."""
    threads = len(os.sched_getaffinity(0))
    cuts = cuts_of(file)
    if with_form and not is_prepared(file, threads, cuts):
        prepare(file, threads, cuts)
    described = describe(file, threads, with_form=with_form)
    publish(described, str(folder))
    text = write_manifest(described.manifest)
    assert (folder / MANIFEST).read_bytes() == text
    return text


def whole(copy: LocalCopy) -> tuple[str, list[Range]] | None:
    """Return what a copy has whole, all of a form or all weights, and where; None before that.

    A start needs no more than one of them. What it does not take comes later, or never.
    """
    files = copy.manifest.files
    for number, file in enumerate(files):
        if file.form.endswith(ARTEFACT) and copy.path(number).exists():
            parts = [Range(number, 0, file.size)]
            if copy.is_here(copy.spans(parts)):
                return FORM, parts
    parts = list(copy.manifest.order)
    return (WEIGHTS, parts) if copy.is_here(copy.spans(parts)) else None


class _Seen:
    """The observation of a copy while it arrives.

    ``at_s``: when all that was taken was here.
    """

    def __init__(self) -> None:
        self.at_s = 0.0
        self.took = ""
        self.needed_bytes = 0
        self._is_here = threading.Event()

    def wait(self) -> None:
        """Wait until all is here. Ends the program if that does not come."""
        if not self._is_here.wait(_LAST_BYTE_S):
            raise SystemExit(f"not all bytes came within {_LAST_BYTE_S:g} s")

    def look(self, copy: LocalCopy) -> bool:
        """Whether a form is here, or the weights; if so, note when and what."""
        contents = whole(copy)
        if contents is None:
            return False
        self.at_s = time.perf_counter()
        self.took, parts = contents
        self.needed_bytes = copy.manifest.gathered_range.size + sum(part.size for part in parts)
        self._is_here.set()
        return True


@contextlib.contextmanager
def _watched(folder: Path) -> Iterator[_Seen]:
    """Look at a copy from outside until all has arrived, or the block is left."""
    watch = _Seen()
    is_over = threading.Event()

    def look() -> None:
        copy: LocalCopy | None = None
        while not is_over.wait(_LOOK_S):
            if copy is None:
                with contextlib.suppress(OSError, ArtefactError):
                    copy = LocalCopy(folder)
            elif watch.look(copy):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join()
