"""OpenMP threads that spin while they wait keep a core from whoever has work for it."""

from __future__ import annotations

from collections.abc import Iterator

from brisk.doctor.base import Deployment, Finding, Severity

NAME = "spinning threads"


def look(deployment: Deployment) -> Iterator[Finding]:
    environment = deployment.environment
    count = environment.get("GOMP_SPINCOUNT", "0")
    policy = environment.get("OMP_WAIT_POLICY", "")
    if policy.lower() != "active" and count == "0":
        yield Finding(NAME, Severity.GOOD, "OpenMP threads sleep when they have nothing to do")
        return
    yield Finding(
        NAME,
        Severity.ADVICE,
        f"GOMP_SPINCOUNT is '{count}', OMP_WAIT_POLICY '{policy}'",
        "beside another busy process a large network took half as much time again; on a quiet "
        "machine a small one gained a tenth",
        "unset both, unless Brisk has the machine for itself",
    )
