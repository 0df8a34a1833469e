"""Settings of the C library's allocator for the runtime, which it reads when a process starts."""

from __future__ import annotations

from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"

TUNABLES = {
    "glibc.malloc.hugetlb": "1",
    "glibc.malloc.mmap_threshold": str(64 << 20),
    "glibc.malloc.trim_threshold": str(1 << 30),
    "glibc.malloc.arena_max": "1",
}
"""Huge pages where the kernel grants them on advice, and blocks of weights and activations kept
for the next run instead of being mapped, faulted in and unmapped each time. On a virtual machine a
page fault costs 1.3 µs: 100 MB of fresh memory took 33 ms by small pages and 13 by huge ones.
One heap for all threads: each other one would begin with huge pages of its own.
glibc before 2.35 and other C libraries ignore what they do not know."""


def allocator_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variable for a new runtime; what the user has set in it stays as it is."""
    present = environment.get(VARIABLE, "")
    settings = [setting for setting in present.split(":") if setting]
    named = {setting.partition("=")[0] for setting in settings}
    settings += [f"{name}={value}" for name, value in TUNABLES.items() if name not in named]
    return {VARIABLE: ":".join(settings)}
