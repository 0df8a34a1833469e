"""A mapped artefact that somebody shortens: the process lives and computes with the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from brisk.artefacts.container import Container
from support.containers import write_container

pytestmark = pytest.mark.usefixtures("private_cache")

SCRIPT = """
import os, subprocess, sys, threading
import numpy as np
from pathlib import Path
from brisk.artefacts.container import Container, ContainerDraft
path = Path(sys.argv[1])
content = np.random.default_rng(0).integers(0, 255, 20_000_000, np.uint8)
with path.open("wb") as file:
    draft = ContainerDraft(file)
    draft.add(content)
    draft.finish(None)
container = Container(path)
if not container.leased.is_held:
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


def test_dropped_pages_are_read_again(tmp_path: Path) -> None:
    container, content = _large(tmp_path / "a.artefact")
    assert np.array_equal(container.view(0), content)
    assert _resident_bytes(container) >= content.nbytes
    container.drop_pages(0)
    assert _resident_bytes(container) < 100_000
    assert np.array_equal(container.view(0), content)
    assert _resident_bytes(container) >= content.nbytes


def test_the_copy_of_a_shortened_file_is_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a.artefact"
    container, content = _large(path)
    if not container.leased.is_held:
        pytest.skip("the file system of the temporary folder has no leases")
    path.write_bytes(b"")
    container.drop_pages(0)
    assert np.array_equal(container.view(0), content)


def _large(path: Path) -> tuple[Container, np.ndarray]:
    content = np.random.default_rng(0).integers(0, 255, 4_000_123, np.uint8)
    return Container(write_container(path, None, [content])), content


def _resident_bytes(container: Container) -> int:
    """Return the resident bytes of the mapping of the file, counted by the kernel for this
    process."""
    text = Path("/proc/self/smaps").read_text()
    begin = container.memory.ctypes.data
    lines = text[text.index(f"{begin:x}-") :].splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss:"))


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
