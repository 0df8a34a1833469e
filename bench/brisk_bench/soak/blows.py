"""The blows to the server during `brisk bench soak`, one after the other."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from tritonclient.http import InferenceServerClient

from brisk.segments.prepared.form import find_prepared
from brisk_bench.harness.served_entries import SAMPLES
from brisk_bench.harness.served_server import BenchmarkServer
from brisk_bench.samples.expectations import mismatch, read_expectations
from brisk_bench.soak.clients import EACH, FLOOD_PATIENCE_S, flood, run_for_ever
from brisk_bench.soak.entries import (
    CHURNED,
    DISK_BYTES,
    ENDLESS,
    FLOODED,
    FOLDING,
    REPLACED,
    SMALL,
    write_other_weights,
)
from brisk_client.inference import InferenceClient, Transport
from brisk_client.workload.child_process import child_process

PAUSE_S = 6.0
"""The pause between two blows. A request may be running when one worker dies, not when two do."""

SETTLING_S = 2.0
"""The time after a blow in which costs are attributed to it."""

SETTLED_ROUNDS = 2
"""Rounds of all blows after which every stub is connected to both workers, and the flooded models
have sessions of their own, which models that are asked so often get."""

ENDLESS_S = 3.0
STOPPED_S = 5.0
PATIENCE_S = 60.0
AT_ONCE_S = 15.0
"""The most time of a flood that kept no other request waiting: sending it takes some seconds."""

FORM_PATIENCE_S = 180.0
"""The longest wait for a form: they are made one after the other, on processors that are idle."""

_TELLING_S = 20.0
"""The longest wait for a blow's line in the log."""


_ROLES = ("brisk-fore", "brisk-back")
"""The names of workers' processes; see ``brisk.runtime.supervisor``."""


class Blows:
    """The blows, what they did, and what was found around them.

    ``faults``: wrong answers and errors of the requests around each blow.
    ``untold``: blows that the log has no line of.
    ``begun_s``: when the first fell (``time.monotonic``).
    ``settled_s``: since when nothing may grow any more, as far as so many blows have fallen.
    ``files``: how many all processes had open, after each blow since then.
    """

    def __init__(self, server: BenchmarkServer, repository: Path, cache: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.untold: list[str] = []
        self.notes: list[str] = []
        self.files: list[int] = []
        self.begun_s = self.settled_s = 0.0
        self._spans: list[tuple[float, float, str]] = []
        self._server = server
        self._repository = repository
        self._cache = cache
        self._random = random.Random(0)
        (*_, self._expected) = read_expectations(SAMPLES / SMALL)
        self._churned = self._computed(repository / CHURNED / "1" / "model.onnx")

    def make(self, seconds: float) -> None:
        """Strike in rotation, a blow every PAUSE_S or later; return some seconds before
        ``seconds`` are over."""
        self.begun_s = self.settled_s = time.monotonic()
        end_s = self.begun_s + seconds - PAUSE_S - STOPPED_S
        blows = (
            self._churn,
            self._kill,
            self._damage,
            self._fill,
            self._stop,
            self._replace,
            self._run_for_ever,
            self._flood,
            self._load_for_ever,
        )
        number = 0
        while time.monotonic() < end_s:
            time.sleep(PAUSE_S)
            begin_s = time.monotonic()
            blow = blows[number % len(blows)]
            self._try(blow)
            self._try(self._ask_in_every_class)
            name = blow.__name__.strip("_").replace("_", " ")
            self._spans.append((begin_s, time.monotonic() + SETTLING_S, name))
            number += 1
            self.files.append(self._open_files())
            if number in (len(blows), SETTLED_ROUNDS * len(blows)):
                self.files.clear()
                self.settled_s = time.monotonic()
        self._try(self._free)

    def is_outside(self, begin_s: float, end_s: float) -> bool:
        """Whether a time from ``begin_s`` to ``end_s`` is one between blows."""
        return begin_s >= self.begun_s and all(
            end_s < first or begin_s > last for first, last, _ in self._spans
        )

    def during(self, begin_s: float, end_s: float) -> str:
        """Return the blows that fell in such a time, in words."""
        names = [name for first, last, name in self._spans if end_s >= first and begin_s <= last]
        return ", ".join(names) or "none"

    def _try(self, blow: Callable[[], None]) -> None:
        try:
            blow()
        except Exception as error:  # noqa: BLE001  # every failure is a finding
            self.faults.append(f"{blow.__name__}: {type(error).__name__}: {error}"[:300])

    @contextlib.contextmanager
    def _told(self, what: str, pattern: str) -> Iterator[None]:
        """Run a blow, counted as ``what``; expect a log line of ``pattern`` soon after it."""
        before = len(self._server.triton.log_text())
        yield
        self.counts[what] += 1
        self._await_line(what, pattern, before)

    def _await_line(self, what: str, pattern: str, before: int) -> None:
        """Wait for a line after the first ``before`` characters of the log.

        Without one within _TELLING_S, ``what`` is added to ``untold``.
        """
        until_s = time.monotonic() + _TELLING_S
        while not re.search(pattern, self._server.triton.log_text()[before:]):
            if time.monotonic() > until_s:
                self.untold.append(f"the log does not tell of: {what}")
                return
            time.sleep(0.2)

    def _churn(self) -> None:
        """Load a model, ask it, unload it."""
        with self._told("model loaded, asked and unloaded", f"successfully unloaded '{CHURNED}'"):
            self._load(CHURNED)
            self._ask(CHURNED, "normal", self._churned)
            self._unload(CHURNED)

    def _kill(self) -> None:
        """Kill a worker, the foreground one or the other; the supervisor is left alone."""
        with self._told("worker killed", r"worker \d+ \(brisk-\w+\) died \(SIGKILL\)"):
            os.kill(self._random.choice(self._workers()), signal.SIGKILL)

    def _stop(self) -> None:
        """Stop the foreground worker, which all clients wait for, and never continue it."""
        with self._told("worker stopped", "was stopped by a signal, and others wait for it"):
            (worker,) = (each for each in self._workers() if self._role_of(each) == "brisk-fore")
            os.kill(worker, signal.SIGSTOP)

    def _damage(self) -> None:
        """Damage the prepared form of the churned model, then load that; the form is made anew."""
        path = self._prepared()
        with self._told("artefact damaged", "is damaged"):
            data = bytearray(path.read_bytes())
            place = self._random.randrange(len(data) - 16)
            data[place : place + 16] = self._random.randbytes(16)
            damaged = path.with_name(path.name + ".damaged")
            damaged.write_bytes(data)
            damaged.chmod(path.stat().st_mode)
            damaged.replace(path)  # a form in use stays as it is; the next reader sees the damage
            self._load(CHURNED)
            self._ask(CHURNED, "normal", self._churned)
        self._await_form(lambda: path.exists() and path.read_bytes() != data)
        self._unload(CHURNED)

    def _prepared(self) -> Path:
        """Return the churned model's form, which is made while the model is loaded."""
        self._load(CHURNED)
        self._await_form(lambda: self._find_prepared() is not None)
        self._unload(CHURNED)
        path = self._find_prepared()
        assert path is not None
        return path

    def _await_form(self, is_there: Callable[[], bool]) -> None:
        until_s = time.monotonic() + FORM_PATIENCE_S
        while not is_there():
            if time.monotonic() > until_s:
                raise TimeoutError(f"the prepared form is not there after {FORM_PATIENCE_S:g} s")
            time.sleep(0.2)

    def _find_prepared(self) -> Path | None:
        model = self._repository / CHURNED / "1" / "model.onnx"
        return find_prepared(model, (), {"BRISK_CACHE_DIR": str(self._cache)})

    def _fill(self) -> None:
        """Fill the cache's disk, load a model that has no form yet, make room again."""
        if self._free_bytes() > DISK_BYTES:
            self.notes[:] = ["the full disk was left out: no file system may be mounted here"]
            return
        if path := self._find_prepared():
            shutil.rmtree(path.parent)
        with self._told("disk filled", "No space left on device"):
            with contextlib.suppress(OSError), (self._cache / "ballast").open("wb") as file:
                while True:
                    file.write(b"\0" * 2**20)
            self._load(CHURNED)
            self._ask(CHURNED, "normal", self._churned)
            time.sleep(SETTLING_S)
        self._free()
        self._unload(CHURNED)

    def _replace(self) -> None:
        """Replace the file of a served model, which must answer as before until it is loaded."""
        file = self._repository / REPLACED / "1" / "model.onnx"
        original, other = file.with_name("kept"), file.with_name("other")
        shutil.copy(file, original)
        write_other_weights(file, other, np.float32(1.1))
        expected = self._computed(other)
        with self._told("model file replaced", f"successfully loaded '{REPLACED}'"):
            other.replace(file)
            for _ in range(10):
                self._ask(REPLACED, "normal")
                time.sleep(0.2)
            self._load(REPLACED)
            self._ask(REPLACED, "normal", expected)
            original.replace(file)
            for _ in range(10):
                self._ask(REPLACED, "normal", expected)
                time.sleep(0.2)
            self._load(REPLACED)
            self._ask(REPLACED, "normal")

    def _run_for_ever(self) -> None:
        with (
            self._told("run without end", f"model '{ENDLESS}' has computed one segment for"),
            child_process(
                "a client", run_for_ever, self._server.grpc, ENDLESS, ENDLESS_S
            ) as child,
        ):
            begun = child.hear(PATIENCE_S)
            self._ask_in_every_class()
            ended = child.hear(PATIENCE_S)
            if begun != "begun" or "cancel" not in ended.lower():
                self.faults.append(f"a run without end: {begun}; {ended}")

    def _flood(self) -> None:
        """Flood ten models with requests.

        The log reports it, unless all are answered as fast as they come.
        """
        arguments = (self._server.grpc, FLOODED, self._expected)
        before, begun_s = len(self._server.triton.log_text()), time.monotonic()
        with child_process("the flood", flood, *arguments) as child:
            answered, refused, faults = child.hear(FLOOD_PATIENCE_S)
        if time.monotonic() - begun_s < AT_ONCE_S:
            self.counts["flood of ten models, answered as it came"] += 1
        else:
            what = "flood of ten models, held back"
            self.counts[what] += 1
            self._await_line(what, r"\d+ requests are in flight", before)
        self.counts["requests of floods answered"] += answered
        self.counts["requests of floods refused"] += refused
        self.faults += faults[:3]
        if answered + refused + len(faults) != EACH * len(FLOODED):
            self.faults.append("a flood has lost requests")

    def _load_for_ever(self) -> None:
        """Unload a model whose optimising has no end; the worker is replaced at last.

        After the second time the model is not optimised any more.
        """
        pattern = "although nobody waits for it: this|workers have died while its sessions were"
        with self._told("model optimised without end", pattern):
            self._load(FOLDING)
            self._ask_in_every_class()
            self._churn()
            time.sleep(ENDLESS_S)
            self._unload(FOLDING)
            self._ask_in_every_class()

    def _load(self, name: str) -> None:
        with contextlib.closing(self._triton()) as triton:
            triton.load_model(name)

    def _unload(self, name: str) -> None:
        """Unload a model and wait until its stub has gone, too."""
        with contextlib.closing(self._triton()) as triton:
            triton.unload_model(name)
            until_s = time.monotonic() + PATIENCE_S
            while _reason(triton, name) != "unloaded":
                if time.monotonic() > until_s:
                    raise TimeoutError(f"'{name}' is not unloaded after {PATIENCE_S:g} s")
                time.sleep(0.05)

    def _triton(self) -> InferenceServerClient:
        return InferenceServerClient(
            self._server.http, connection_timeout=PATIENCE_S, network_timeout=PATIENCE_S
        )

    def _workers(self) -> list[int]:
        runtime = {each.pid for each in self._server.processes() if each.kind == "runtime"}
        return [pid for pid in sorted(runtime) if self._role_of(pid) in _ROLES]

    def _role_of(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip()
        return ""

    def _free(self) -> None:
        (self._cache / "ballast").unlink(missing_ok=True)

    def _free_bytes(self) -> int:
        status = os.statvfs(self._cache)
        return status.f_frsize * status.f_bavail

    def _ask_in_every_class(self) -> None:
        for job_class in ("realtime", "normal", "besteffort"):
            self._ask(SMALL, job_class)

    def _ask(
        self, model: str, job_class: str, expected: Mapping[str, np.ndarray] | None = None
    ) -> None:
        with InferenceClient(self._server.http, Transport.HTTP) as client:
            outputs = client.infer(
                model, self._expected.inputs, parameters={"brisk_class": job_class}
            )
        self.counts["request around a blow"] += 1
        if problem := mismatch(outputs, expected or self._expected.outputs):
            self.faults.append(f"wrong: {model}, {job_class}: {problem}")

    def _computed(self, file: Path) -> dict[str, np.ndarray]:
        """Return the answer by ONNX Runtime alone."""
        session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(self._expected.inputs)), strict=True))

    def _open_files(self) -> int:
        count = 0
        for process in self._server.processes():
            with contextlib.suppress(OSError):
                count += len(os.listdir(f"/proc/{process.pid}/fd"))
        return count


def _reason(triton: InferenceServerClient, model: str) -> str:
    """Return the reason why a model is not available."""
    index = triton.get_model_repository_index()
    return next(str(each.get("reason", "")) for each in index if each["name"] == model)
