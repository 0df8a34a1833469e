"""A process of its own that has a server load and unload a model while it is told to.

Another process than the one that measures latencies, so that the two share no interpreter. The
child is this module run as a program.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time

from tritonclient.grpc import InferenceServerClient

_ANSWER_TIMEOUT_S = 120.0


class RepeatedLoads:
    """A context manager around the child; ``start`` and ``stop`` alternate."""

    def __init__(self, grpc_url: str, model: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, grpc_url, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._answer()

    def start(self) -> None:
        self._say("start")

    def stop(self) -> list[float]:
        """Finish the load in progress; what each load since ``start`` took, in seconds."""
        self._say("stop")
        return list(json.loads(self._answer()))

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _ANSWER_TIMEOUT_S)[0]:
            raise TimeoutError(f"the loading process said nothing in {_ANSWER_TIMEOUT_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise ConnectionError("the loading process has ended; its error is printed above")
        return line

    def __enter__(self) -> RepeatedLoads:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _serve(grpc_url: str, model: str) -> None:
    """The child: between a line "start" and a line "stop" load and unload; then say the times."""
    client = InferenceServerClient(grpc_url)
    print("ready", flush=True)
    for _ in sys.stdin:
        took_s = []
        while not select.select([sys.stdin], [], [], 0)[0]:
            before_s = time.perf_counter()
            client.load_model(model)
            took_s.append(time.perf_counter() - before_s)
            client.unload_model(model)
            _wait_unloaded(client, model)
        sys.stdin.readline()
        print(json.dumps(took_s), flush=True)


def _wait_unloaded(client: InferenceServerClient, model: str) -> None:
    """Triton answers an unload before the stub has ended, and the session with it."""
    while any(
        entry.name == model and entry.state != "UNAVAILABLE"
        for entry in client.get_model_repository_index().models
    ):
        time.sleep(0.1)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
