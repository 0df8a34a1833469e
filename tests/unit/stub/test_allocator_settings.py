"""The allocator's settings that a new runtime gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brisk.stub.runtime_client import runtime_process
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


@pytest.mark.parametrize(
    ("kind", "features", "has_huge_pages"),
    [
        ("0x0005", "0110010100", False),
        ("0x0005", "0110000100", True),  # a balloon that reports nothing
        ("0x0002", "0110010100", True),  # a disk
        ("0x0005", "", True),
        ("no number", "0110010100", True),
    ],
)
def test_memory_that_goes_back_to_the_host_is_taken_by_small_pages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    features: str,
    has_huge_pages: bool,
) -> None:
    (tmp_path / "virtio0").mkdir()
    device = tmp_path / "virtio1"
    device.mkdir()
    (device / "device").write_text(f"{kind}\n")
    (device / "features").write_text(f"{features}\n")
    monkeypatch.setattr(runtime_process, "_VIRTIO", tmp_path)
    assert ("hugetlb=1" in allocator_settings({})[ALLOCATOR_VARIABLE]) is has_huge_pages
    asked_for = {ALLOCATOR_VARIABLE: "glibc.malloc.hugetlb=1"}
    assert "hugetlb=1" in allocator_settings(asked_for)[ALLOCATOR_VARIABLE]
