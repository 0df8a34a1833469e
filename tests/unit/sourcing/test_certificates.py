"""Keys of hosts: made once, for nobody else to read, and refused where others could."""

from __future__ import annotations

import os
import resource
import shutil
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.sourcing.sources.certificates import (
    AUTHORITY,
    AUTHORITY_KEY,
    CERTIFICATE,
    KEY,
    make_keys,
    read_keys,
)

pytest.importorskip("cryptography", reason="certificates are made with it")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    make_keys(folder, ["a", "10.0.0.2"])
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(folder)): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file()
    }


def test_each_host_gets_a_folder_and_the_authoritys_key_stays_above(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folders = make_keys(folder, ["a", "10.0.0.2", "fd00::1", "gpu-1.example"])
    assert [each.name for each in folders] == ["a", "10.0.0.2", "fd00::1", "gpu-1.example"]
    assert {each.name for each in folder.iterdir()} == {
        *(each.name for each in folders),
        *(AUTHORITY, AUTHORITY_KEY),
    }
    for each in folders:
        assert {file.name for file in each.iterdir()} == {AUTHORITY, CERTIFICATE, KEY}
        assert (each / AUTHORITY).read_bytes() == (folder / AUTHORITY).read_bytes()
        read_keys(each)


def test_nobody_else_reads_a_key_or_writes_anything(keys: Path) -> None:
    for folder in (keys, keys / "a"):
        assert mode(folder) == 0o700
    assert mode(keys / AUTHORITY_KEY) == 0o600
    assert mode(keys / "a" / KEY) == 0o600
    for path in (keys / AUTHORITY, keys / "a" / AUTHORITY, keys / "a" / CERTIFICATE):
        assert mode(path) & 0o777 & ~0o644 == 0


def test_whatever_the_mask_keys_are_for_oneself(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        make_keys(tmp_path / "keys", ["a"])
    finally:
        os.umask(mask)
    test_nobody_else_reads_a_key_or_writes_anything(tmp_path / "keys")


def test_what_is_there_is_never_overwritten(keys: Path) -> None:
    before = contents(keys)
    with pytest.raises(InvalidConfigurationError, match="a is there already; remove it first"):
        make_keys(keys, ["b", "a"])
    assert contents(keys) == before
    assert not (keys / "b").exists()
    make_keys(keys, ["b"])
    after = contents(keys)
    assert {name: after[name] for name in before} == before
    assert after[f"b/{AUTHORITY}"] == before[AUTHORITY]


def test_an_authority_whose_making_was_broken_off_is_completed(keys: Path) -> None:
    (keys / AUTHORITY).unlink()
    for folder in make_keys(keys, ["b"]):
        read_keys(folder)
    assert (keys / AUTHORITY).read_bytes() == (keys / "b" / AUTHORITY).read_bytes()


def test_a_disk_that_is_full_leaves_no_half_of_a_key(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            make_keys(folder, ["a"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert contents(folder) == {}
    for each in make_keys(folder, ["a"]):
        read_keys(each)


def test_no_host_is_made_by_another_key_than_the_authoritys(keys: Path) -> None:
    """It is kept elsewhere, for safety's sake."""
    (keys / AUTHORITY_KEY).unlink()
    for _ in range(2):
        with pytest.raises(InvalidConfigurationError, match=r"ca\.key is missing, the key of"):
            make_keys(keys, ["b"])
    assert not (keys / AUTHORITY_KEY).exists()
    assert not (keys / "b").exists()


def test_one_host_named_twice_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError):
        make_keys(tmp_path / "keys", ["a", "a"])
    assert not (tmp_path / "keys").exists()


HOSTLESS = [
    *("", ".", "..", "../a", "a/b", "/a", "a\\b", "a b", "a\0b", "-a", ".a", "a/", "ü", "a\nb"),
    *("a" * 300, AUTHORITY, AUTHORITY_KEY),
]


@pytest.mark.parametrize("name", HOSTLESS)
def test_what_names_no_host_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="is no name or address of a host"):
        make_keys(tmp_path / "keys", ["b", name])
    assert not (tmp_path / "keys").exists()


def _readable(folder: Path) -> None:
    (folder / KEY).chmod(0o640)


def _writable(folder: Path) -> None:
    (folder / CERTIFICATE).chmod(0o664)


def _open_folder(folder: Path) -> None:
    folder.chmod(0o770)


def _open_above(folder: Path) -> None:
    folder.parent.chmod(0o777)


def _linked(folder: Path) -> None:
    other = (folder / KEY).rename(folder / "other")
    (folder / KEY).symlink_to(other)


def _anothers(folder: Path) -> None:
    shutil.copyfile(folder.parent / "10.0.0.2" / KEY, folder / KEY)


def _no_key(folder: Path) -> None:
    (folder / KEY).unlink()


def _no_text(folder: Path) -> None:
    (folder / CERTIFICATE).write_bytes(b"")


def _no_authority(folder: Path) -> None:
    (folder / AUTHORITY).write_bytes(b"x")


def _no_folder(folder: Path) -> None:
    shutil.rmtree(folder)


SPOILT = [_readable, _writable, _open_folder, _open_above, _linked, _anothers, _no_key]


@pytest.mark.parametrize("spoil", [*SPOILT, _no_text, _no_authority, _no_folder])
def test_keys_that_cannot_be_trusted_or_used_are_refused(
    keys: Path, spoil: Callable[[Path], None]
) -> None:
    folder = keys / "a"
    read_keys(folder)
    spoil(folder)
    with pytest.raises(InvalidConfigurationError, match="as 'brisk hosts init' makes them"):
        read_keys(folder)


def test_a_folder_that_others_may_read_is_used_while_the_key_is_ones_own(keys: Path) -> None:
    (keys / "a").chmod(0o755)
    read_keys(keys / "a")


def test_an_authority_whose_key_others_could_read_makes_no_hosts(keys: Path) -> None:
    (keys / AUTHORITY_KEY).chmod(0o644)
    with pytest.raises(PermissionError, match="could be read or written by other users"):
        make_keys(keys, ["b"])
    assert not (keys / "b").exists()


def talk(server: Path, client: Path, name: str) -> tuple[str, str]:
    """A handshake in memory; the versions that both ends speak."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    above = read_keys(server).server.wrap_bio(to_server, to_client, server_side=True)
    below = read_keys(client).client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for end in (below, above):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return str(above.version()), str(below.version())


@pytest.mark.parametrize("name", ["a", "10.0.0.2"])
def test_hosts_of_one_authority_talk_by_the_newest_version(keys: Path, name: str) -> None:
    other = {"a": "10.0.0.2", "10.0.0.2": "a"}[name]
    assert talk(keys / name, keys / other, name) == ("TLSv1.3", "TLSv1.3")


def test_a_host_that_is_not_who_was_asked_for_is_refused(keys: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid"):
        talk(keys / "a", keys / "10.0.0.2", "b")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid"):
        talk(keys / "10.0.0.2", keys / "a", "10.0.0.3")


def test_a_host_of_another_authority_is_refused(keys: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "others", ["a"])
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(keys / "a", tmp_path / "others" / "a", "a")
    with pytest.raises(ssl.SSLCertVerificationError):
        talk(tmp_path / "others" / "a", keys / "a", "a")
