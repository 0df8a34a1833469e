"""The running runtime against this installation: after an update the old one may still run."""

from __future__ import annotations

from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity
from brisk.errors import BriskError, ProtocolError, UnavailableError
from brisk.protocol.channel import greet
from brisk.protocol.runtime_paths import RuntimePaths, runtime_place

NAME = "runtime"
TIMEOUT_S = 5.0


def look(deployment: Deployment) -> Iterator[Finding]:
    try:
        yield Finding(
            NAME, Severity.GOOD, _greet(runtime_place(deployment.device, deployment.environment))
        )
    except UnavailableError as error:
        yield Finding(NAME, Severity.UNKNOWN, str(error))
    except BriskError as error:
        yield Finding(
            NAME,
            Severity.PROBLEM,
            str(error),
            "models of the newer backend cannot be loaded until the older runtime ends",
            "stop all servers that use it; it ends by itself BRISK_IDLE_EXIT_S (10 s) later",
        )


def _greet(place: RuntimePaths) -> str:
    try:
        connection = place.connect(TIMEOUT_S)
    except OSError:
        raise UnavailableError(f"none runs at {place.directory}") from None
    with connection:
        try:
            answer = greet(connection)
        except (OSError, EOFError) as error:
            raise ProtocolError(f"the runtime at {place.directory} is silent: {error}") from error
    return f"Brisk {answer.version}, protocol {answer.protocol}, worker {answer.pid}"
