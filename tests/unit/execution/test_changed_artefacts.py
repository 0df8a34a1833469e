"""Artefacts with any one field changed: without the key refused, with it no crash.

The first is what somebody can do who may write the file, the second what a fault of our own writer
could do. Every field of header, manifest, step tables and of the nodes that are kept apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.artefacts.container import Container
from brisk.artefacts.place import cache_directory
from brisk.errors import ArtefactError
from brisk.execution.preparation import prepare
from unit.execution.changed_artefacts import changed_files, unkeyed
from unit.execution.starting_models import CPU
from unit.native.test_small_runs import Network

TESTS = Path(__file__).resolve().parents[2]
TIMEOUT_S = 230.0
PARTS = 8
"""Of all changes: a test may not take longer than some minutes."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the compiled library that is there already."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "native").symlink_to(cache_directory() / "native")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(cache))


def build(folder: Path) -> Path:
    """A run of small layers, one that is the compiled library's among them; one that is alone."""
    network = Network((4, 12, 12), 9)
    network.add("Conv", network.weight(8, 4, 3, 3), network.weight(8), pads=[1, 1, 1, 1])
    network.add("Relu")
    network.add("Conv", network.weight(8, 1, 3, 3), pads=[1, 1, 1, 1], group=8)
    network.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    network.add("Conv", network.weight(512, 8, 1, 1), network.weight(512))
    network.add("Conv", network.weight(8, 128, 3, 3), pads=[1, 1, 1, 1], group=4)
    network.add("GlobalAveragePool")
    network.add("Flatten")
    network.add("Gemm", network.weight(5, 8), transB=1)
    network.add("Softmax")
    return network.save(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model"))


@pytest.fixture
def artefact(model: Path) -> Path:
    return prepare(model, CPU, 2, is_measured=False).path


def test_whoever_lacks_the_key_can_change_no_field(artefact: Path, tmp_path: Path) -> None:
    path, count = tmp_path / "changed.artefact", 0
    for _, content in changed_files(artefact, unkeyed):
        path.write_bytes(content())
        path.chmod(0o600)
        with pytest.raises(ArtefactError, match=r"not an artefact|sealed by another key"):
            Container(path)
        count += 1
    assert count > 3000


@pytest.mark.parametrize("part", range(PARTS))
def test_with_the_key_a_changed_field_is_refused_or_does_no_harm(
    model: Path, artefact: Path, tmp_path: Path, part: int
) -> None:
    """No crash, nor an error of what the executor indexes by. A field may lead to other answers,
    of the same memory: a writer with such a fault has written another network.
    """
    changed = tmp_path / "changed.artefact"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "unit.execution.changed_artefacts", model, artefact, changed),
            *(str(part), str(PARTS)),
        ],
        cwd=TESTS,
        env={**os.environ, "MALLOC_PERTURB_": "85"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, f"{lines[-1:]}: {ended.stderr[-2000:]}"
    assert lines[0] == "nothing : equal"
    assert lines[-1] == "end"
    told = dict(line.rsplit(" : ", 1) for line in lines[:-1])
    assert len(told) > 3000 / PARTS
    tables = [record["blobs"][0] for record in Container(artefact).content["runs"]]
    steps = tuple(f"blob {number} step" for number in tables)
    strange = [
        (name, outcome)
        for name, outcome in told.items()
        if name.startswith(steps) and outcome not in ("refused", "equal", "other")
    ]
    assert strange == []
