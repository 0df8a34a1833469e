"""Auto-completion of configurations: Triton runs a second stub for every load to ask for it.

A Python-based backend's load took 1.4 s with it and 0.2 s without, measured with complete
configurations; the second is a fixed wait in Triton.
"""

from __future__ import annotations

from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity
from brisk.triton.options import option

NAME = "auto-complete"


def look(deployment: Deployment) -> Iterator[Finding]:
    if deployment.server is None:
        yield Finding(NAME, Severity.UNKNOWN, "no running server was found")
        return
    value = option(deployment.command, "disable-auto-complete-config")
    if value is not None and value.lower() not in ("false", "0"):
        yield Finding(NAME, Severity.GOOD, "switched off")
        return
    incomplete = [
        file.parent.name
        for repository in deployment.repositories
        for file in sorted(repository.glob("*/config.pbtxt"))
        if file.is_file()  # a FIFO would be waited for
        and ("input" not in file.read_text() or "output" not in file.read_text())
    ]
    first = "start the server with --disable-auto-complete-config"
    if incomplete:
        names = ", ".join(incomplete[:5]) + (" …" if len(incomplete) > 5 else "")
        first = (
            f"write complete configurations with `brisk config MODEL_DIR` ({names}), then {first}"
            "; `brisk serve` does the same by itself, and changes no entry"
        )
    yield Finding(
        NAME,
        Severity.ADVICE,
        "on: every load asks a stub of its own to complete the configuration",
        "about 1.2 s of each model's load (1.4 s against 0.2 s)",
        first,
    )
