"""What runs in the host of ``brisk bench streamed``: for each line that it is told one start.

A new server with an empty cache, which serves another model and has its courier, then the load of
an entry, its first answer and its warm ones.
The clock starts when the load is asked for; what is downloaded before a load counts, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tritonclient.grpc import InferenceServerClient

from brisk.artefacts.room import ARTEFACT
from brisk.copies.local import LocalCopy, remote_directory
from brisk.copies.manifest import Range
from brisk.errors import ArtefactError
from brisk_client.benchmarks.engines.agreement import agree_by_name
from brisk_client.benchmarks.harness.served_entries import sample_file, write_brisk_entry
from brisk_client.benchmarks.harness.served_server import (
    WITHOUT_COMPLETION,
    BenchmarkServer,
    benchmark_server,
)
from brisk_client.benchmarks.start.case import Case, case_of
from brisk_client.disb.wire import wait_until_settled
from brisk_client.inference import InferenceClient, Transport

WARM_RUNS = 20
REST_S = 2.0
"""Until what the server does behind its first load is done."""

ENTRY, OTHER = "model", "other"
"""What is started; what the server serves already."""

_LOOK_S = 0.005


def main(model: str) -> None:
    case = case_of(model)
    for line in sys.stdin:
        print(json.dumps(start(case, json.loads(line))), flush=True)


def start(case: Case, told: dict[str, Any]) -> dict[str, float]:
    """``told``: ``remote``, the text of an entry's ``model.remote``, or ``url``, of a model to
    download. Seconds from the ask to the last byte and the first answer; of a warm answer; of the
    same again when it is unloaded and loaded once more, from what is here now."""
    with tempfile.TemporaryDirectory(prefix="brisk-streamed-") as folder:
        repository, cache = Path(folder) / "models", Path(folder) / "cache"
        write_brisk_entry(repository, case.file, ENTRY, {})
        file = repository / ENTRY / "1" / "model.onnx"
        file.unlink()
        write_brisk_entry(repository, sample_file("mlp/1"), OTHER, {})
        environment = {"BRISK_CACHE_DIR": str(cache)}
        options = [WITHOUT_COMPLETION, "--model-control-mode=explicit"]
        with benchmark_server(repository, environment, options) as server:
            client = InferenceServerClient(server.grpc)
            client.load_model(OTHER)
            _start_courier(server, environment)
            time.sleep(REST_S)
            begun_s = time.perf_counter()
            if "url" in told:
                with urllib.request.urlopen(told["url"]) as response, open(file, "wb") as target:
                    shutil.copyfileobj(response, target, 1 << 20)
                last_s = time.perf_counter() - begun_s
                client.load_model(ENTRY)
                ready_s = time.perf_counter() - begun_s
                answered_s = _ask(server, case, 1)[0][1] - begun_s
            else:
                (file.with_name("model.remote")).write_text(told["remote"])
                with _last_byte(cache, json.loads(told["remote"])["sha256"]) as seen:
                    client.load_model(ENTRY)
                    ready_s = time.perf_counter() - begun_s
                    answered_s = _ask(server, case, 1)[0][1] - begun_s
                last_s = seen[-1] - begun_s if seen else float("nan")
            wait_until_settled(server.place, ENTRY, "normal")  # and all of it is here

            warm_s = statistics.median(took_s for took_s, _ in _ask(server, case, WARM_RUNS))
            _unload(client)
            begun_s = time.perf_counter()
            client.load_model(ENTRY)
            again_s = _ask(server, case, 1)[0][1] - begun_s
            client.close()
    return {
        "ready_s": ready_s,
        "last_s": last_s,
        "first_s": answered_s,
        "warm_s": warm_s,
        "again_s": again_s,
    }


def _start_courier(server: BenchmarkServer, environment: Mapping[str, str]) -> None:
    """As ``brisk serve`` does when it starts, where a repository has such entries."""
    code = "from brisk.copies.courier import Courier; Courier().close()"
    own = {**os.environ, **environment, "BRISK_RUNTIME_DIR": str(server.place.base)}
    subprocess.run([sys.executable, "-c", code], env=own, check=True)


def _unload(client: InferenceServerClient) -> None:
    client.unload_model(ENTRY)
    while any(
        entry.name == ENTRY and entry.state != "UNAVAILABLE"
        for entry in client.get_model_repository_index().models
    ):
        time.sleep(0.05)
    time.sleep(0.5)  # until its sessions are let go of


@contextlib.contextmanager
def _last_byte(cache: Path, sha256: str) -> Iterator[list[float]]:
    """Notes when all bytes that the start reads were here: of the form that was taken, or of the
    weights."""
    seen: list[float] = []
    is_over = threading.Event()
    folder = remote_directory({"BRISK_CACHE_DIR": str(cache)}) / sha256

    def look() -> None:
        copy: LocalCopy | None = None
        while not is_over.wait(_LOOK_S):
            if copy is None:
                with contextlib.suppress(OSError, ArtefactError):
                    copy = LocalCopy(folder)
                continue
            if _has_all(copy):
                seen.append(time.perf_counter())
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def _has_all(copy: LocalCopy) -> bool:
    taken = [
        number
        for number, file in enumerate(copy.manifest.files)
        if file.form.endswith(ARTEFACT) and copy.path(number).exists()
    ]
    if taken:
        size = copy.manifest.files[taken[0]].size
        return copy.is_here(copy.spans([Range(taken[0], 0, size)]))
    return copy.is_here(copy.spans(copy.manifest.order))


def _ask(server: BenchmarkServer, case: Case, count: int) -> list[tuple[float, float]]:
    """Of each request what it took, and when it was answered, in seconds."""
    found = []
    with InferenceClient(server.grpc, Transport.GRPC) as client:
        for _ in range(count):
            begun_s = time.perf_counter()
            outputs = client.infer(ENTRY, case.inputs)
            ended_s = time.perf_counter()
            if not agree_by_name(outputs, case.expected):
                raise SystemExit(f"{case.name}: a wrong answer")
            found.append((ended_s - begun_s, ended_s))
    return found


if __name__ == "__main__":
    main(sys.argv[1])
