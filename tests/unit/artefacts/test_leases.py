"""A mapped artefact that somebody shortens: the process lives and computes with the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.artefacts.container import Container
from unit.artefacts.containers import write_container

pytestmark = pytest.mark.usefixtures("private_cache")

SCRIPT = """
import os, subprocess, sys, threading
import numpy as np
from pathlib import Path
from brisk.artefacts.container import Container
from brisk.artefacts.draft import ContainerDraft
path = Path(sys.argv[1])
content = np.random.default_rng(0).integers(0, 255, 20_000_000, np.uint8)
with path.open("wb") as file:
    draft = ContainerDraft(file, lambda: None)
    draft.add(content)
    draft.finish(None)
container = Container(path)
if not container.is_leased:
    sys.exit(77)
view, expected = container.view(0), int(content[::4096].sum())
reads, ended = [], threading.Event()
def read():
    while not ended.is_set():
        reads.append(int(view[::4096].sum()))
reader = threading.Thread(target=read)
reader.start()
subprocess.run([sys.executable, "-c", f"open({str(path)!r}, 'wb')"], check=True, timeout=40)
reads_before = len(reads)
while len(reads) < reads_before + 3 and reader.is_alive():
    pass
ended.set()
reader.join()
assert path.stat().st_size == 0
assert set(reads) == {expected}
assert np.array_equal(view, content)
"""


def test_a_file_shortened_under_its_readers_neither_ends_them_nor_changes_what_they_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.artefact"
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if ended.returncode == 77:
        pytest.skip("the file system of the temporary folder has no leases")
    assert ended.returncode == 0, ended.stderr


def test_files_can_be_replaced_and_descriptors_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a.artefact"
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        write_container(tmp_path / "b", None).rename(path)
        Container(path)
    path.write_bytes(b"")  # waits for the last lease
    from brisk.artefacts import lease

    lease._watch.look()
    assert len(os.listdir("/proc/self/fd")) <= before
