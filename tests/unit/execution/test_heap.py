"""Memory given ahead of its use, in processes with the runtime's allocator settings."""

from __future__ import annotations

import os
import subprocess
import sys

from brisk.execution.heap import populate
from brisk.frontend.allocator import allocator_settings

FAULTS = """
import resource, sys
import numpy as np
from brisk.execution.heap import populate, reserve

def faults_of_writing(size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [bytearray(1 << 20) for _ in range(size >> 20)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

address = reserve(32 << 20)
if sys.argv[1] == "populated":
    populate(address, 32 << 20)
print(faults_of_writing(16 << 20))
"""


def test_populated_memory_costs_its_user_no_page_faults() -> None:
    environment = {
        **os.environ,
        **allocator_settings({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}),
    }

    def faults(how: str) -> int:
        command = [sys.executable, "-c", FAULTS, how]
        ended = subprocess.run(
            command, env=environment, capture_output=True, check=True, timeout=60
        )
        return int(ended.stdout)

    assert faults("plain") > 2000
    assert faults("populated") < 500


AHEAD = """
import os, resource
from brisk.compiled.library import wait_until_settled
from brisk.execution.ahead import take_ahead
from brisk.execution.heap import RESERVED_BYTES, reserve

wait_until_settled()
address, threads = reserve(), len(os.listdir("/proc/self/task"))
take_ahead(3, address)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [bytearray(1 << 20) for _ in range((RESERVED_BYTES >> 20) - 8)]
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(len(os.listdir("/proc/self/task")) - threads, faults)
"""


def test_a_worker_has_helpers_and_all_its_memory_before_it_computes() -> None:
    small_pages = allocator_settings({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})
    ended = subprocess.run(
        [sys.executable, "-c", AHEAD],
        env={**os.environ, **small_pages},
        capture_output=True,
        check=True,
        timeout=60,
    )
    helpers, faults = map(int, ended.stdout.split())
    assert helpers == 2
    assert faults < 500


def test_nothing_reserved_is_nothing_populated() -> None:
    populate(0)


GIVING_BACK = """
import ctypes, resource, sys
from brisk.execution.heap import give_back, populate, reserve

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) // 256

def freed(mib):
    blocks = [bytearray(1 << 20) for _ in range(mib)]
    for block in blocks:
        block[::4096] = bytes(len(block[::4096]))

populate(reserve())
freed(int(sys.argv[1]))
before = resident_mib()
given = give_back()
returned = before - resident_mib()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [bytearray(1 << 20) for _ in range(16)]
print(int(given), returned, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
"""


def _give_back(mib: int) -> list[int]:
    environment = {
        **os.environ,
        **allocator_settings({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}),
    }
    command = [sys.executable, "-c", GIVING_BACK, str(mib)]
    ended = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    return [int(word) for word in ended.stdout.split()]


def test_freed_memory_goes_back_but_not_what_the_next_run_needs() -> None:
    given, returned_mib, faults = _give_back(300)
    assert given
    assert returned_mib > 200
    assert faults < 500


def test_little_freed_memory_is_kept() -> None:
    given, returned_mib, faults = _give_back(20)
    assert not given
    assert abs(returned_mib) < 5
    assert faults < 500
