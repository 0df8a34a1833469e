"""The checks of ``brisk doctor``: what costs a deployment time or reliability, and what to change.

A check only reads; it changes nothing, and starts no lasting process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from brisk.doctor import gpus, installation, machine
from brisk.doctor.deployment import Deployment, Finding, Findings, Severity

CHECKS: dict[str, Callable[[Deployment], Findings]] = {
    "server": machine.server,
    "runtime's Python": installation.interpreter,
    "runtime": installation.runtime,
    "GPUs": gpus.gpus,
    "settings": machine.settings,
    "threads": machine.threads,
    "spinning threads": machine.spinning,
    "scheduling classes": machine.scheduling_classes,
    "freezing": machine.freezing,
    "scheduling groups": machine.scheduling_groups,
    "shared memory": machine.shared_memory,
    "left regions": machine.left_regions,
    "open files": machine.open_files,
    "cache": installation.cache,
    "artefacts": installation.artefacts,
    "auto-complete": installation.auto_complete,
    "forked stubs": installation.forked_stubs,
    "entries": installation.entries,
    "names of entries": installation.names,
    "operators": installation.operators,
}


def examine(deployment: Deployment) -> Iterator[tuple[str, Finding]]:
    """Run all checks; yield each finding with its check's name. A check that raises an error
    yields a finding about that, and the others go on."""
    for name, check in CHECKS.items():
        try:
            yield from ((name, finding) for finding in check(deployment))
        except Exception as error:  # noqa: BLE001  # the other checks must run
            text = f"the check itself failed: {type(error).__name__}: {error}"
            yield name, Finding(Severity.UNKNOWN, text)
