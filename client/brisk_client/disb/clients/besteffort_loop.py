"""A process of its own that asks one best-effort entry without pause until it is told to end.

Another process than the one that measures latencies, and a nicer one, so that the two share
neither an interpreter nor a turn. The child is this module run as a program.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

import grpc

from brisk_client.workload.sending.generator import BEST_EFFORT_NICE
from brisk_client.workload.sending.requests import SERVICE, UNLIMITED, make_request, model_metadata
from brisk_client.workload.spec.description import Continuous, Task

_READY_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 60.0


@contextlib.contextmanager
def asked_without_pause(url: str, entry: str) -> Iterator[None]:
    """While entered, one request for ``entry`` is in flight, the next as soon as it is answered.

    Raises ConnectionError where the first is not answered, or the child failed meanwhile.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", __name__, url, entry],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], _READY_TIMEOUT_S)[0]:
            raise ConnectionError(f"'{entry}' does not answer")
        if not child.stdout.readline():
            raise ConnectionError(f"the client of '{entry}' has ended; its error is printed above")
        yield
        if child.poll() is not None:
            raise ConnectionError(f"the client of '{entry}' ended while it should have asked")
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=_END_TIMEOUT_S)
        child.kill()
        child.wait()


def main(url: str, entry: str) -> int:
    os.nice(BEST_EFFORT_NICE)
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    task = Task(entry, entry, Continuous(), job_class="besteffort")
    with grpc.insecure_channel(url, options=UNLIMITED) as channel:
        request = make_request(task, model_metadata(channel, task), 0)
        infer = channel.unary_unary(f"{SERVICE}ModelInfer")
        infer(request, timeout=_READY_TIMEOUT_S)
        print("asking", flush=True)
        while not ended.is_set():
            infer(request, timeout=_READY_TIMEOUT_S)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
