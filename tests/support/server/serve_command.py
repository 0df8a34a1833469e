"""``brisk serve`` as a user runs it, for tests: one process that becomes the server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk.triton.options import holding_free_ports, option
from support.server.running import Endings, private_runtime

READY_TIMEOUT_S = 60.0


class ServeCommand:
    """A running ``brisk serve``. ``runtime``: its $BRISK_RUNTIME_DIR."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path, runtime: Path):
        self.process = process
        self.url = url
        self.runtime = runtime
        self._log = log

    def url_of(self, service: str) -> str:
        """Return ``host:port`` of ``http``, ``grpc`` or ``metrics``."""
        return f"127.0.0.1:{option(self.options, f'{service}-port')}"

    @property
    def log_text(self) -> str:
        return self._log.read_text()

    @property
    def views(self) -> list[Path]:
        folder = self.runtime / "views"
        return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []

    @property
    def options(self) -> list[str]:
        """The words of the command line of the server that the command became."""
        words = Path(f"/proc/{self.process.pid}/cmdline").read_bytes().split(b"\0")
        return [os.fsdecode(word) for word in words]

    def get(self, path: str) -> Any:
        """Return the answer's document. Raises HTTPError, with the server's words, where it
        refuses."""
        try:
            with urllib.request.urlopen(f"{self.url}/v2/{path}", timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            error.add_note(error.read().decode())
            raise
        return json.loads(text) if text else None

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer's document. Raises AssertionError with the server's words where it
        refuses."""
        data = json.dumps(body or {}).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(f"{self.url}/v2/{path}", data=data), timeout=30
            ) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None
        return json.loads(text) if text else None

    def load(self, name: str, **parameters: str) -> None:
        self.post(f"repository/models/{name}/load", {"parameters": parameters})

    def ask(self, name: str, rows: int = 2) -> list[float]:
        """Return ``y`` of an entry that takes ``x`` of ``rows`` times 4 ones."""
        tensor = {"name": "x", "shape": [rows, 4], "datatype": "FP32", "data": [1.0] * rows * 4}
        answer = self.post(f"models/{name}/infer", {"inputs": [tensor]})
        return next(list(out["data"]) for out in answer["outputs"] if out["name"] == "y")

    def why(self, name: str) -> str:
        """Return the server's reason for a model that is not available."""
        return next(
            entry.get("reason", "")
            for entry in self.post("repository/index")
            if entry["name"] == name
        )


@contextlib.contextmanager
def serving(
    folder: Path,
    repositories: Sequence[Path],
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    working_directory: Path | None = None,
    endings: Endings | None = None,
    under: Sequence[str] = (),
) -> Iterator[ServeCommand]:
    """Yield a ready ``brisk serve``; it ends behind the block, with all that it has started, or
    among ``endings``. ``under``: the words of a program that becomes the command.

    What is raised within says how the server's log ends.
    """
    always = ("--exit-on-error=false", "--strict-readiness=false", "--exit-timeout-secs=10")
    log = folder / "serve.log"
    if log.exists():  # of one that may not have ended yet
        log.rename(folder / f"serve-{time.monotonic_ns()}.log")
    with contextlib.ExitStack() as ended:
        runtime = ended.enter_context(private_runtime())
        options = ended.enter_context(holding_free_ports([*always, *options]))
        own = {
            "BRISK_RUNTIME_DIR": str(runtime),
            "BRISK_CACHE_DIR": str(folder / "cache"),
            "BRISK_ARTEFACTS": "off",
            "BRISK_SAMPLED_SHARE": "0",
        }
        command = [*under, str(Path(sys.executable).with_name("brisk")), "serve"]
        for repository in repositories:
            command += ["--repository", str(repository)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, **(environment or {})},
                cwd=working_directory,
            )
        ended.callback(_end, process)
        served = ServeCommand(
            process, f"http://127.0.0.1:{option(options, 'http-port')}", log, runtime
        )
        try:
            _wait_ready(served)
            yield served
        except Exception as error:
            error.add_note(f"the log of brisk serve ends:\n{served.log_text[-6000:]}")
            raise
        finally:
            if endings is not None:
                endings.begin(ended.pop_all())


Serving = Callable[..., contextlib.AbstractContextManager[ServeCommand]]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(served: ServeCommand) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while True:
        with contextlib.suppress(OSError):
            served.get("health/live")
            served.get("health/ready")
            return
        if served.process.poll() is not None or time.monotonic() > deadline_s:
            raise AssertionError("brisk serve is not ready")
        time.sleep(0.05)
