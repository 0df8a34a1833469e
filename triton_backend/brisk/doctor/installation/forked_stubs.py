"""Whether later models' stubs are forked, with Python and the frontend in memory.

Through Triton, `resnet50` was ready after 34 ms with forked stubs and after 144 to 151 ms without
(`brisk bench cold --parts served`), and a load took a third of the processor time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from brisk.doctor.base import Deployment, Finding, Severity
from brisk.fork_server.build import LAUNCHER
from brisk.fork_server.start import SETTING
from brisk.triton.options import option

NAME = "forked stubs"
DEFAULT_BACKENDS = "/opt/tritonserver/backends"

_COST = "some 0.1 s and 0.15 s of processor time of each model's load"


def look(deployment: Deployment) -> Iterator[Finding]:
    if deployment.server is None:
        yield Finding(NAME, Severity.UNKNOWN, "no running server was found")
        return
    if deployment.environment.get(SETTING) == "0":
        found = f"switched off: each stub starts Python ({SETTING}=0)"
        yield Finding(NAME, Severity.ADVICE, found, _COST, f"remove {SETTING}")
        return
    backends = Path(option(deployment.command, "backend-directory") or DEFAULT_BACKENDS)
    root = Path(f"/proc/{deployment.server}/root")
    if (root / backends.relative_to(backends.anchor) / "brisk" / LAUNCHER).is_file():
        yield Finding(NAME, Severity.GOOD, "from the second model on")
        return
    yield Finding(
        NAME,
        Severity.ADVICE,
        f"'{backends}/brisk' has no {LAUNCHER}: each stub starts Python",
        _COST,
        "install a C++ compiler (Debian: g++), then `brisk install` or `brisk serve` again",
    )
