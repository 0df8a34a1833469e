"""The reading and completion of ``tritonserver``'s command line."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from brisk.errors import InvalidConfigurationError

LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
_FALSE = ("0", "false", "off", "no")


class Endpoints(NamedTuple):
    """The ``host:port`` of each service; None for a service that is switched off."""

    http: str | None
    grpc: str | None
    metrics: str | None


def option(options: Sequence[str], name: str) -> str | None:
    """Return the last value given for ``--name``, as ``--name=value`` or ``--name value``."""
    values = options_named(options, name)
    return values[-1] if values else None


def with_default(options: Sequence[str], name: str, value: str) -> tuple[str, ...]:
    """Return ``options`` with ``--name=value`` added unless they give ``--name``."""
    if option(options, name) is not None:
        return tuple(options)
    return (*options, f"--{name}={value}")


def on_loopback(options: Sequence[str]) -> tuple[str, ...]:
    """Return ``options`` with the loopback address for every service without an address.

    In tritonserver itself, metrics follow ``--http-address``.
    """
    for name in ("http-address", "grpc-address"):
        options = with_default(options, name, LOOPBACK)
    return tuple(options)


@contextlib.contextmanager
def holding_free_ports(
    options: Sequence[str], *, prefer_default: bool = False
) -> Iterator[tuple[str, ...]]:
    """Add a free port for every service without one, and reserve these ports meanwhile.

    ``prefer_default`` keeps Triton's 8000, 8001 and 8002 if they are free. The ports are bound
    here without listening. Tritonserver, which also sets SO_REUSEADDR, can bind them too, but the
    kernel gives them neither to a process that asks for any port nor to a connection. (Otherwise
    a client that polls a port before its server listens may get that same port, and connect to
    itself.)
    """
    with contextlib.ExitStack() as held:
        for service, default in DEFAULT_PORTS.items():
            if option(options, f"{service}-port") is None:
                bound = held.enter_context(_bind(default if prefer_default else 0))
                options = with_default(options, f"{service}-port", str(bound.getsockname()[1]))
        yield tuple(options)


def _bind(port: int) -> socket.socket:
    """Bind a port of the loopback address, or any free one if it is taken.

    SO_REUSEADDR is set, so lingering connections of an earlier server do not matter.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((LOOPBACK, port))
    except OSError:
        if port == 0:
            bound.close()
            raise
        bound.bind((LOOPBACK, 0))
    return bound


def check_ports(options: Sequence[str]) -> None:
    """Raise InvalidConfigurationError if a service of the server cannot listen on its port.

    Triton itself reports that once all models are loaded, and ends. What only Triton can judge is
    left to it: ports that it may share (``--reuse-http-port``, ``--reuse-grpc-port``), and
    addresses and ports that are none.
    """
    taken: dict[str, str] = {}
    for service, endpoint in endpoints(options)._asdict().items():
        shared = option(options, f"reuse-{service}-port")
        if endpoint is None or (shared is not None and shared.lower() not in _FALSE):
            continue
        problem = _listening_problem(endpoint)
        if (other := taken.setdefault(endpoint, service)) != service:
            problem = f"it is the port of {other}"
        if problem:
            raise InvalidConfigurationError(
                f"{service} cannot listen on {endpoint}: {problem}; choose another port with "
                f"--{service}-port"
            )


def _listening_problem(endpoint: str) -> str:
    """Return why a server cannot listen on an address of this machine; empty if it can, or if the
    text is no address."""
    host, _, port = endpoint.rpartition(":")
    try:
        (family, kind, _, _, address), *_ = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )
    except (ValueError, OSError):
        return ""
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
        try:
            probe.bind(address)
        except (OSError, OverflowError) as error:
            return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else ""
    return ""


def endpoints(options: Sequence[str]) -> Endpoints:
    """Return the addresses at which a client on this machine reaches a server's services."""
    http_host = option(options, "http-address")
    return Endpoints(
        http=_endpoint(options, "http", http_host),
        grpc=_endpoint(options, "grpc", option(options, "grpc-address")),
        metrics=_endpoint(options, "metrics", option(options, "metrics-address") or http_host),
    )


def _endpoint(options: Sequence[str], service: str, host: str | None) -> str | None:
    allowed = option(options, f"allow-{service}")
    if allowed is not None and allowed.lower() in _FALSE:
        return None
    if host in (None, "", "0.0.0.0"):
        host = LOOPBACK
    return f"{host}:{option(options, f'{service}-port') or DEFAULT_PORTS[service]}"


def options_named(options: Sequence[str], name: str) -> list[str]:
    """Return every value given for ``--name``, in order."""
    return [each.value for each in _parsed(options) if each.name == name]


def without_options(options: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return ``options`` without the options named in ``names`` and their values."""
    left_out = {place for each in _parsed(options) if each.name in names for place in each.places}
    return tuple(word for place, word in enumerate(options) if place not in left_out)


class _Option(NamedTuple):
    """An option of a command line, with the positions of its words."""

    name: str
    value: str
    """The value; empty if the option has none, or another option follows."""
    places: range


def _parsed(options: Sequence[str]) -> Iterator[_Option]:
    for place, word in enumerate(options):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = options[place + 1 : place + 2]
        if equals or not following or following[0].startswith("--"):
            yield _Option(name, value, range(place, place + 1))
        else:
            yield _Option(name, following[0], range(place, place + 2))
