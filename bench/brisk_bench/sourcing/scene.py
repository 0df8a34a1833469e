"""The hosts of ``brisk bench sourcing`` and ``streamed``: a registry, a host that starts models,
and a peer."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brisk.publishing.writing import remote_text
from brisk.sourcing.sources.certificates import make_keys
from brisk_bench.engines.case import Case
from brisk_bench.fleet.links import Carried, Links, UnfitLinksError
from brisk_bench.fleet.namespaces import NamespaceHost, rack
from brisk_bench.fleet.programs import HostProgram, web_server
from brisk_bench.fleet.remote_entries import publish_model

REGISTRY, HOST, PEER = "registry", "host", "peer"
PEER_PORT = 7700
PATIENCE_S = 300.0

EQUAL_MBIT_S = {REGISTRY: 500.0, HOST: 500.0, PEER: 500.0}
"""Rates of the links, by host, in every part but ``levels``."""

_CHECKS = 4
_BETWEEN_CHECKS_S = 2.0

_PACKAGE = "brisk_bench.sourcing"


@dataclass(slots=True)
class Scene:
    """Three hosts with their links.

    ``folder``: what the registry serves, below ``url``.
    """

    registry: NamespaceHost
    host: NamespaceHost
    peer: NamespaceHost
    links: Links
    folder: Path
    scratch: Path
    url: str
    carried: Sequence[Carried] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    """Rates of the links as shaped now, in Mbit/s by host; empty if they are not shaped."""

    def publish(self, file: Path, name: str, *, with_form: bool) -> str:
        """Publish a model; return the text of an entry's ``model.remote`` for it."""
        text = publish_model(file, self.folder / name, with_form=with_form)
        return remote_text(f"{self.url}/{name}", text)

    def shape(self, rates: Mapping[str, float]) -> list[str]:
        """Give links rates, in Mbit/s by host, and check them, unless they have those; return what
        they carry, in words.

        Raises UnfitLinksError if that is not what it should be, also when it is measured again
        after a while: a busy moment does not throw away what has been measured before.
        """
        if self.rates == rates:
            return []
        self.rates = {}
        for host in (self.registry, self.host, self.peer):
            self.links.shape(host, rates[host.name])
        for _ in range(_CHECKS - 1):
            with contextlib.suppress(UnfitLinksError):
                self.carried = self.links.check()
                break
            time.sleep(_BETWEEN_CHECKS_S)
        else:
            self.carried = self.links.check()
        self.rates = rates
        return [str(each) for each in self.carried]

    def mbit_s(self, sender: str) -> float:
        """Return the payload rate from this host to the one that starts models, as measured."""
        return next(
            each.payload_mbit_s
            for each in self.carried
            if each.senders == (sender,) and each.receivers == (HOST,)
        )

    def starting(self, case: Case) -> HostProgram:
        """Return the program that starts the model in the host, not started yet.

        What it leaves when it is killed lies in ``scratch``.
        """
        command = [sys.executable, "-m", f"{_PACKAGE}.host", str(case.file)]
        environment = {**os.environ, "TMPDIR": str(self.scratch)}
        return HostProgram(self.host, command, environment)

    def with_copy(self) -> HostProgram:
        """Return the program in the peer that has a copy, not started yet."""
        place = self.scratch / "peer"
        environment = {
            **os.environ,
            "BRISK_RUNTIME_DIR": str(place / "run"),
            "BRISK_CACHE_DIR": str(place / "cache"),
            "BRISK_PEER_LISTEN": f"{self.peer.address}:{PEER_PORT}",
            "BRISK_PEER_KEYS": str(self.scratch / "keys" / self.peer.address),
        }
        place.mkdir(exist_ok=True)
        return HostProgram(self.peer, [sys.executable, "-m", f"{_PACKAGE}.peer"], environment)

    @property
    def by_peer(self) -> dict[str, str]:
        """The variables that point a courier in the host to the peer."""
        return {
            "BRISK_PEERS": f"{self.peer.address}:{PEER_PORT}",
            "BRISK_PEER_KEYS": str(self.scratch / "keys" / self.host.address),
        }


@contextlib.contextmanager
def scene() -> Iterator[Scene]:
    """Make a scene, whose links are not shaped yet. Raises NoNamespacesError."""
    with (
        tempfile.TemporaryDirectory(prefix="brisk-sourcing-") as name,
        rack([REGISTRY, HOST, PEER]) as machines,  # left first: nothing writes there any more
        contextlib.ExitStack() as stack,
    ):
        scratch = Path(name)
        folder = scratch / "published"
        folder.mkdir()
        registry, host, peer = (machines[each] for each in (REGISTRY, HOST, PEER))
        make_keys(scratch / "keys", [host.address, peer.address])
        server = stack.enter_context(web_server(registry, "files", folder))
        url = f"http://{registry.address}:{server.hear(PATIENCE_S)['port']}"
        yield Scene(registry, host, peer, Links(machines), folder, scratch, url)


def told(program: HostProgram, do: str, **more: Any) -> dict[str, Any]:
    """Send a line to the program that starts models; return its answer."""
    program.say(do=do, **more)
    return program.hear(PATIENCE_S)
