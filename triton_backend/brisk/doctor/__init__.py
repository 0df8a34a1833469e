"""The checks of ``brisk doctor``: what costs a deployment time or reliability, and what to change.

A check only reads; it changes nothing, and starts no lasting process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from brisk.doctor import gpus, installation, machine
from brisk.doctor.deployment import Deployment, Finding, Findings, problem, unknown
from brisk.errors import InvalidConfigurationError

CHECKS: dict[str, Callable[[Deployment], Findings]] = {
    "server": machine.server,
    "runtime's Python": installation.interpreter,
    "runtime directory": installation.runtime_directory,
    "runtime": installation.runtime,
    "GPUs": gpus.gpus,
    "settings": machine.settings,
    "threads": machine.threads,
    "server's threads": machine.instance_threads,
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
    """Run all checks; yield each finding with its check's name.

    A check that raises InvalidConfigurationError yields a problem of its text, once: checks that
    need the same setting later refer to the first. A check that raises another error yields a
    finding about that. In either case the others go on.
    """
    told_by: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            findings = check(deployment)
        except InvalidConfigurationError as error:
            findings = _of_setting(str(error), told_by)
        except Exception as error:  # noqa: BLE001  # the other checks must run
            findings = unknown(f"the check itself failed: {type(error).__name__}: {error}")
        for finding in findings:
            told_by.setdefault(finding.found, name)
            yield name, finding


def _of_setting(text: str, told_by: Mapping[str, str]) -> Findings:
    """Return the finding about a wrong setting. ``told_by``: the checks of earlier findings, by
    their texts."""
    if text in told_by:
        return unknown(f"not to be told before '{told_by[text]}' is mended")
    return problem(text, "no model can be loaded", "a value that can be used, as the text says")
