"""Brisk's side, which brings a file to many hosts: their couriers, which ask each other."""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.artefacts.content import digest_of_file, sketch_of_file
from brisk.copies.manifest import CHUNK_BYTES, ListedFile, Manifest, Range, write_manifest
from brisk.copies.remote import MANIFEST
from brisk.errors import InternalError
from brisk.sourcing.sources.certificates import make_keys
from brisk_bench.fleet.links import Links
from brisk_bench.fleet.namespaces import NamespaceHost
from brisk_bench.fleet.programs import HostProgram, web_server
from brisk_bench.fleet.transfers import Transfer

PORT = 7700
_TIME_OUT_S = 300.0
_END_S = 10.0
_LEAD_S = 0.2
"""The time that the messages to the receivers have before the common start."""

NOTHING, KILLED, CUT = "nothing", "killed", "cut"


@dataclass(frozen=True, slots=True)
class Chain:
    """A transfer in which the first host has a web server, and each other host a courier.

    Each courier has all others as its peers, over TLS.

    ``fault``: what happens half-way to the receiver in the middle.
    """

    links: Links
    scratch: Path
    fault: str = NOTHING

    @property
    def name(self) -> str:
        return "chain" if self.fault == NOTHING else f"chain, one {self.fault}"

    def run(self, hosts: Sequence[NamespaceHost], file: Path) -> Transfer:
        """See ``TransferSide.run``. Does not wait for the host with the fault."""
        registry, *receivers = hosts
        with (
            tempfile.TemporaryDirectory(prefix="brisk-chain-", dir=self.scratch) as name,
            contextlib.ExitStack() as stack,
        ):
            folder = Path(name)
            sha256 = publish_file(file, folder / "published")
            make_keys(folder / "keys", [host.address for host in receivers])
            server = web_server(registry, "files", folder / "published")
            port = stack.enter_context(server).hear(_TIME_OUT_S)["port"]
            programs = [
                stack.enter_context(self._receiver(host, receivers, folder)) for host in receivers
            ]
            for program in programs:  # a courier is in no group of its starter's
                process = int(program.hear(_TIME_OUT_S)["process"])
                stack.callback(_end, process)
            begin_ns = time.monotonic_ns() + round(_LEAD_S * 1e9)
            url = f"http://{registry.address}:{port}/{MANIFEST}"
            for program in programs:
                program.say(url=url, sha256=sha256, begin_ns=begin_ns)
            victim = None if self.fault == NOTHING else len(receivers) // 2
            at_s = (begin_ns - time.monotonic_ns()) / 1e9 + self._half_s(file)
            with self._happening(programs, victim, at_s):
                survivors = [each for number, each in enumerate(programs) if number != victim]
                heard = [program.hear(_TIME_OUT_S) for program in survivors]
            for each in heard:
                if not filecmp.cmp(each["path"], file, shallow=False):
                    raise InternalError(f"{each['path']} holds other bytes")
        return Transfer(
            seconds=(max(each["finished_ns"] for each in heard) - begin_ns) / 1e9,
            processor_s=sum(each["processor_s"] for each in heard),
        )

    def _half_s(self, file: Path) -> float:
        return file.stat().st_size * 4 / (self.links.slowest_mbit_s * 1e6)

    def _receiver(
        self, host: NamespaceHost, receivers: Sequence[NamespaceHost], folder: Path
    ) -> HostProgram:
        own = folder / host.name
        own.mkdir()
        peers = [f"{each.address}:{PORT}" for each in receivers if each is not host]
        environment = {
            **os.environ,
            "BRISK_RUNTIME_DIR": str(own / "run"),
            "BRISK_CACHE_DIR": str(own / "cache"),
            "BRISK_PEERS": ",".join(peers),
            "BRISK_PEER_LISTEN": f"{host.address}:{PORT}",
            "BRISK_PEER_KEYS": str(folder / "keys" / host.address),
        }
        command = [sys.executable, "-m", "brisk_bench.chain.host"]
        return HostProgram(host, command, environment)

    @contextlib.contextmanager
    def _happening(
        self, programs: Sequence[HostProgram], victim: int | None, at_s: float
    ) -> Iterator[None]:
        if victim is None:
            yield
            return
        host = programs[victim].host

        def strike() -> None:
            if self.fault == CUT:
                self.links.cut(host)
            else:
                for process in host.processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, 9)

        timer = threading.Timer(at_s, strike)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            if self.fault == CUT:
                self.links.mend(host)


def _end(process: int) -> None:
    """Kill the process, and wait until it has released its port."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    until_s = time.monotonic() + _END_S
    with contextlib.suppress(OSError):  # a zombie has no program any more
        while os.readlink(f"/proc/{process}/exe") and time.monotonic() < until_s:
            time.sleep(0.01)


def publish_file(file: Path, folder: Path) -> str:
    """Publish a file as weights only, in the new ``folder``; return the manifest's SHA-256."""
    data = file.read_bytes()
    head = data[:CHUNK_BYTES]
    chunks = b"".join(
        hashlib.sha256(data[start : start + CHUNK_BYTES]).digest()
        for start in range(0, len(data), CHUNK_BYTES)
    )
    with file.open("rb") as opened:
        digest = digest_of_file(opened.fileno(), len(data))
        sketch = sketch_of_file(opened.fileno(), len(data))
    manifest = Manifest(
        (
            ListedFile("model.onnx", len(data), "", digest, sketch, chunks),
            ListedFile("head.bin", len(head), "", "", "", hashlib.sha256(head).digest()),
        ),
        0,
        1,
        CHUNK_BYTES,
        (Range(0, 0, len(head)),),
        (Range(0, len(head), len(data) - len(head)),),
        (),
        (),
    )
    folder.mkdir()
    os.link(file, folder / "model.onnx")
    (folder / "head.bin").write_bytes(head)
    text = write_manifest(manifest)
    (folder / MANIFEST).write_bytes(text)
    return hashlib.sha256(text).hexdigest()
