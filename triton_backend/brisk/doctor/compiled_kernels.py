"""Kernels that are compiled on the machine they run on: without a compiler there, there are none.

The CPU image has none, to be small: its layers are computed by torch and oneDNN alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from brisk.compiled.compiler import COMPILERS
from brisk.doctor.base import Deployment, Finding, Verdict

NAME = "compiled kernels"


def look(deployment: Deployment) -> Iterator[Finding]:
    """Looked for where the server's runtime looks, in its container where it is in one."""
    chosen = deployment.environment.get("CXX")
    names = (chosen,) if chosen else COMPILERS
    found = _find(deployment, names)
    if found is not None:
        yield Finding(NAME, Verdict.GOOD, f"by {found}")
        return
    yield Finding(
        NAME,
        Verdict.ADVICE,
        f"no C++ compiler ({', '.join(names)}) for the runtime: there are none",
        "with one thread, ResNet-50 took 1.32, an encoder 1.23 and a small network 2.33 and 3.55 "
        "times as long as with ONNX Runtime",
        "install a C++ compiler (Debian: g++) where the runtime is, or let CXX name one",
    )


def _find(deployment: Deployment, names: tuple[str, ...]) -> Path | None:
    """The first that is there, by its path for the server."""
    root = Path("/" if deployment.server is None else f"/proc/{deployment.server}/root")
    folders = deployment.environment.get("PATH", os.defpath).split(os.pathsep)
    for name in names:
        for folder in [""] if os.path.isabs(name) else folders:
            path = Path(folder) / name
            # A link leads to a place in the server's root, where this process cannot follow it.
            if path.is_absolute() and os.path.lexists(root / path.relative_to("/")):
                return path
    return None
