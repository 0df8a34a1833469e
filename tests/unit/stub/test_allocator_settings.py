"""The allocator's settings that a new runtime gets."""

from __future__ import annotations

import subprocess
import sys

from brisk.stub.runtime_client.runtime_process import (
    ALLOCATOR_VARIABLE,
    TUNABLES,
    allocator_settings,
)


def test_what_the_user_has_set_stays() -> None:
    ours = allocator_settings(
        {ALLOCATOR_VARIABLE: "glibc.malloc.hugetlb=0:glibc.malloc.tcache_count=3"}
    )
    settings = ours[ALLOCATOR_VARIABLE].split(":")
    assert settings[:2] == ["glibc.malloc.hugetlb=0", "glibc.malloc.tcache_count=3"]
    assert len(settings) == 1 + len(TUNABLES)


def test_a_process_starts_with_them() -> None:
    settings = allocator_settings({})
    ended = subprocess.run(
        [sys.executable, "-c", "print(len(bytearray(200_000_000)))"],
        env=settings,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr) == ("200000000\n", "")
