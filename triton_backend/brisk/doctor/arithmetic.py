"""Entries whose arithmetic is far slower here than elsewhere: low precision without AVX-512.

No request says that it took thirty times as long as it would have elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Verdict
from brisk.errors import InvalidModelError
from brisk.graph.arithmetic import ADVISED_FROM, processor_flags, slow_arithmetic

NAME = "arithmetic"


def look(deployment: Deployment) -> Iterator[Finding]:
    files = [
        file
        for repository in deployment.repositories
        for file in sorted(repository.glob("*/*/model.onnx"))
        if file.parent.name.isdecimal()
    ]
    flags = processor_flags()
    if not files or not flags or deployment.device != "cpu":
        reason = "no model repository was given or found" if not files else "no CPU to look at"
        yield Finding(NAME, Verdict.UNKNOWN, reason)
        return
    if deployment.environment.get("BRISK_ENGINE", "auto") != "brisk":
        found = "what Brisk's own kernels are slow at, ONNX Runtime computes"
        yield Finding(NAME, Verdict.GOOD, found)
        return
    slow = 0
    for file in files:
        try:
            kinds = [each for each in slow_arithmetic(file, flags) if each.worst >= ADVISED_FROM]
        except InvalidModelError:
            continue  # the check of operators says what is wrong with it
        for each in kinds:
            slow += 1
            yield Finding(
                NAME,
                Verdict.ADVICE,
                f"{file}: {each.kind}, on a processor without AVX-512",
                f"such models took {each.times} times as long as with ONNX Runtime",
                "let ONNX Runtime compute it: BRISK_ENGINE=auto",
            )
    if not slow:
        yield Finding(NAME, Verdict.GOOD, "no model computes in a precision that is slow here")
