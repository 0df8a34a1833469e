"""The mode by which files that still arrive are known: kept, or put back, or they are refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from brisk.artefacts.content import ITSELF, content_of, find_folder
from brisk.copies.local import LocalCopy, path_in
from brisk.copies.manifest import write_manifest
from brisk.copies.remote import WHOLE, remote_directory
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.paths import KEPT
from brisk.runtime.sessions.identity import copy_at
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.room import make_copy
from support.remote.published import Published, new_copy, publish

CHUNK = 1 << 16
FORM = "one.segments"
MANIFESTS = Path(__file__).resolve().parents[3] / "docker" / "kubernetes.yaml"


@pytest.fixture
def published(tmp_path: Path, private_cache: None) -> Published:
    return publish(
        tmp_path / "published",
        4 * CHUNK,
        chunk_bytes=CHUNK,
        weights_bytes=CHUNK,
        forms={FORM: b"form" * 1000},
    )


@pytest.fixture
def folder(published: Published) -> Path:
    """A copy of which one chunk and the beginning of a form are here."""
    place = remote_directory() / published.sha256
    copy = new_copy(place, published)
    assert copy.put(0, [published.contents[0][:CHUNK]])
    copy.reserve_form(3)
    copy.close()
    return place


def files_of(published: Published, folder: Path) -> list[Path]:
    return [path_in(folder, published.manifest, number) for number in range(4)]


def modes(paths: list[Path]) -> set[int]:
    return {path.stat().st_mode & 0o7777 for path in paths}


def test_what_runs_before_the_server_in_kubernetes_keeps_the_mode(
    published: Published, folder: Path, tmp_path: Path
) -> None:
    (deployment, _) = yaml.safe_load_all(MANIFESTS.read_text())
    (before,) = deployment["spec"]["template"]["spec"]["initContainers"]
    own = tmp_path / "volumes" / "cache" / "own"
    own.parent.mkdir(parents=True)
    remote_directory().parent.rename(own)
    paths = files_of(published, own / "remote" / folder.name)
    for path in paths:
        path.chmod(KEPT | 0o660)  # as a group of the volume gets it
    command = [
        each.replace(" /", f" {tmp_path}/volumes/") if " " in each else each
        for each in before["command"]
    ]
    subprocess.run(command, check=True, timeout=60)
    assert modes(paths) == {KEPT}
    assert own.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["1/model.onnx", "1/data/weights.bin", "gathered"])
def test_a_partial_copy_that_has_lost_it_is_refused(folder: Path, name: str) -> None:
    (folder / name).chmod(0o600)
    with pytest.raises(ArtefactError, match=f"{name} is of a copy that is not whole, and has"):
        LocalCopy(folder)
    with pytest.raises(UnavailableError, match=f"{name} is of a copy that is not whole"):
        copy_at(folder / "1" / "model.onnx")


def test_nothing_is_found_by_the_zeros_of_one(folder: Path, tmp_path: Path) -> None:
    version = tmp_path / "net" / "1"
    version.parent.mkdir()
    version.symlink_to(folder / "1")
    for name in ("model.onnx", "data/weights.bin"):
        (folder / "1" / name).chmod(0o644)
    looks: list[Callable[[], object]] = [
        lambda: find_folder(version / "model.onnx"),
        lambda: content_of(version / "model.onnx", [ITSELF]),
        lambda: content_of(version / "model.onnx", ["data/weights.bin"]),
    ]
    for look in looks:
        with pytest.raises(InvalidModelError, match="mode 0644 instead of 1600"):
            look()


def test_a_whole_copy_without_it_is_a_model_as_any_other(folder: Path) -> None:
    (folder / WHOLE).touch()
    model = folder / "1" / "model.onnx"
    model.chmod(0o600)
    assert copy_at(model) is None
    assert content_of(model, [ITSELF]).digests
    ArrivingCopy(folder).close()
    assert modes([model]) == {0o600}, "its stamp would be another, under the processes that run it"


def test_what_lies_beside_a_model_needs_no_mode(folder: Path) -> None:
    beside = folder / "1" / "other.onnx"
    beside.write_bytes(b"x")
    assert copy_at(beside) is None
    assert content_of(beside, [ITSELF]).digests


def test_opening_a_copy_puts_it_back(published: Published, folder: Path) -> None:
    paths = files_of(published, folder)
    for path in paths:
        path.chmod(0o600)
    copy = ArrivingCopy(folder)
    assert modes(paths) == {KEPT}
    opened = copy_at(folder / "1" / "model.onnx")
    assert opened is not None
    assert not opened.is_whole
    opened.close()
    copy.close()


def test_a_form_that_is_an_artefact_keeps_the_mode_of_artefacts(
    published: Published, folder: Path, tmp_path: Path
) -> None:
    form = files_of(published, folder)[3]
    form.chmod(0o600)
    os.link(form, tmp_path / "artefact")
    ArrivingCopy(folder).close()
    assert modes([form]) == {0o600}


def test_where_no_mode_is_kept_no_copy_is_made(
    published: Published, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fchmod", lambda descriptor, mode: None)  # as such file systems do
    other = folder.parent / "other"
    with pytest.raises(OSError, match="does not keep the mode 1600"):
        make_copy(other, write_manifest(published.manifest), published.manifest)
    assert not other.exists()
    (folder / "1" / "model.onnx").chmod(0o600)
    with pytest.raises(OSError, match=r"mode 1600.*model\.onnx"):
        ArrivingCopy(folder)
