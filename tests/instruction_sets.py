"""The compiled library for several instruction sets, of which this processor has to know one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.compiled import compiler
from brisk.compiled import library as shelf

INSTRUCTION_SETS = {"native": "", "haswell": "avx2", "x86-64": "sse2"}
"""By the compiler's name of an architecture, a flag of ``/proc/cpuinfo`` that it takes.

The latter two are vectors of eight and of four floats, where native ones may be of sixteen.
"""


def compiled_library(architecture: str) -> Iterator[None]:
    """While the fixture lives, this process computes with the library for ``architecture``."""
    processor = Path("/proc/cpuinfo").read_text().split()
    if INSTRUCTION_SETS[architecture] not in {"", *processor}:
        pytest.skip(f"this processor has no {INSTRUCTION_SETS[architecture]}")
    flags = tuple(
        f"-march={architecture}" if flag == "-march=native" else flag for flag in compiler.FLAGS
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "FLAGS", flags)
        patch.setattr(shelf, "_shelf", shelf._Shelf())
        with pytest.MonkeyPatch.context() as compiling:  # a busy machine would time it out
            compiling.setattr(os, "sched_setscheduler", lambda *_: None)
            if shelf.wait_until_settled() is None:
                pytest.skip(f"no compiled library: {shelf.absence()}")
        yield
