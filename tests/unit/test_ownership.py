"""What another user could have written is neither executed nor mapped."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.artefacts import store
from brisk.artefacts.seals import KEY_BYTES, make_key, read_key
from brisk.errors import InvalidConfigurationError
from brisk.fork_server import build
from brisk.fork_server.build import LAUNCHER, place_launchers
from brisk.fork_server.start import PRELOAD, SERVER_PRELOAD, add_seal
from brisk.ownership import check_directory, check_makable, make_private, open_own
from brisk.protocol.runtime_paths import runtime_place
from brisk.runtime.sessions.open_session import load_session
from brisk.segments.prepared.preparation import prepare
from support.models.segment_models import chain

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
NOBODY = 65534


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "folder" / "file"
    file.parent.mkdir()
    file.write_bytes(b"content")
    return file


@pytest.mark.parametrize(
    "place", ["new/deeper", "file", "file/below", "everybodys/new", "/proc/n"]
)
def test_what_can_be_made_is_told_without_making_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "everybodys").mkdir()
    (tmp_path / "everybodys").chmod(0o777)
    directory = tmp_path / place  # an absolute one stays what it is
    told = made = None
    try:
        check_makable(directory)
    except OSError as error:
        told = str(error)
    assert not directory.is_dir()
    try:
        make_private(directory)
    except OSError as error:
        made = str(error)
    assert told == made
    assert (told is None) == directory.is_dir()


def test_a_file_of_ours_is_opened_and_one_that_others_may_write_is_not(own: Path) -> None:
    os.close(open_own(own))
    for mode in (0o620, 0o602):
        own.chmod(mode)
        with pytest.raises(PermissionError, match=rf"{own} has mode {mode:04o}.*chmod go-w {own}"):
            open_own(own)
    own.chmod(0o644)
    with pytest.raises(PermissionError, match="read or written"):
        open_own(own, is_secret=True)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o775])
def test_a_directory_above_that_others_may_write_is_named(own: Path, mode: int) -> None:
    own.parent.parent.chmod(mode)
    with pytest.raises(PermissionError, match=rf"{own.parent.parent} has mode.*chmod go-w"):
        open_own(own)
    own.parent.parent.chmod(mode | stat.S_ISVTX)
    os.close(open_own(own))


@as_root
def test_files_and_directories_of_others_are_refused(own: Path) -> None:
    os.chown(own, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=f"{own} belongs to user {NOBODY}"):
        open_own(own)
    os.chown(own.parent, NOBODY, NOBODY)
    with pytest.raises(PermissionError, match=f"{own.parent} belongs to user {NOBODY}"):
        check_directory(own.parent)


def test_a_link_or_a_pipe_is_no_file(own: Path) -> None:
    (own.parent / "link").symlink_to(own)
    os.mkfifo(own.parent / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=name):
            open_own(own.parent / name)


def test_what_is_missing_is_made_private_under_any_mask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        make_private(tmp_path / "one" / "two")
    finally:
        os.umask(before)
    for each in (tmp_path / "one", tmp_path / "one" / "two"):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700


@pytest.mark.usefixtures("private_cache")
def test_the_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    key = make_key()
    assert len(key) == KEY_BYTES
    assert make_key() == read_key() == key
    file = tmp_path / "cache" / "artefacts" / "key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]
    file.chmod(0o640)
    with pytest.raises(PermissionError, match="has mode 0640"):
        make_key()


@pytest.mark.usefixtures("private_cache")
@pytest.mark.parametrize("what", ["key", "file", "directory"])
def test_an_artefact_that_others_could_have_made_is_refused_and_the_model_served(
    what: str, tmp_path: Path
) -> None:
    model = chain(tmp_path / "model.onnx")
    artefact = prepare(model, 2).path
    opened = {
        "key": store.artefacts_directory() / "key",
        "file": artefact,
        "directory": artefact.parent,
    }
    opened[what].chmod(0o777)
    rejected: list[str] = []
    session = load_session(model, "cpu", 2, lambda error: rejected.append(str(error)))
    session.close()
    assert session.origin == "model"
    assert len(rejected) == 1
    assert f"{opened[what]} has mode 0777" in rejected[0]


@pytest.mark.usefixtures("private_cache")
@pytest.mark.parametrize("harm", ["bytes", "mode"])
def test_a_cached_executable_that_is_not_ours_is_compiled_anew(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = tmp_path / "backend"
    backend.mkdir()
    if not place_launchers([backend]):
        pytest.skip("there is no C++ compiler")
    wanted = {name: (backend / name).read_bytes() for name in (LAUNCHER, PRELOAD, SERVER_PRELOAD)}
    for file in (tmp_path / "cache" / "native").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o700
        if harm == "bytes":
            file.write_bytes(b"#!/bin/sh\n")
        else:
            file.chmod(0o777)
    assert place_launchers([backend])
    assert {name: (backend / name).read_bytes() for name in wanted} == wanted
    (tmp_path / "cache" / "native").chmod(0o777)
    assert not place_launchers([backend]), "its folder is everybody's"
    assert list(backend.iterdir()) == []


@pytest.mark.parametrize("harm", ["bytes", "mode"])
def test_executables_made_ahead_are_looked_at_too(
    harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share, backend = tmp_path / "share" / "brisk", tmp_path / "backend"
    for folder in (share, backend):
        folder.mkdir(parents=True)
    for name in (LAUNCHER, PRELOAD, SERVER_PRELOAD):
        (share / name).write_bytes(b"made")
        if harm == "mode":
            add_seal(share / name)
            (share / name).chmod(0o666)
    monkeypatch.setattr(build.sys, "prefix", str(tmp_path))
    assert not place_launchers([backend])
    assert list(backend.iterdir()) == []


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder below which a socket's path is not too long."""
    with tempfile.TemporaryDirectory(prefix="brisk-") as folder:
        yield Path(folder)


def test_a_runtime_s_directory_below_one_of_everybody_s_is_refused_by_name(
    short_path: Path,
) -> None:
    """Whoever may rename in it could put another runtime in the place of ours."""
    everybody_s = short_path / "everybody_s"
    everybody_s.mkdir()
    place = runtime_place("cpu", {"BRISK_RUNTIME_DIR": str(everybody_s / "own")})
    for mode in (0o777, 0o770):
        everybody_s.chmod(mode)
        with pytest.raises(InvalidConfigurationError, match=f"{everybody_s} has mode {mode:04o}"):
            place.prepare()
    everybody_s.chmod(0o1777)
    place.prepare()
    place.base.chmod(0o770)
    with pytest.raises(InvalidConfigurationError, match=f"{place.base} has mode 0770"):
        place.prepare()
