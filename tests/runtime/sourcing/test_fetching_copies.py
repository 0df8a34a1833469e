"""Couriers as real processes: what is kept of web servers' bytes is what the manifest says."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brisk.copies.local import HEADER_BYTES, PROGRESS, LocalCopy
from brisk.copies.manifest import Range
from brisk.copies.remote import MANIFEST
from brisk.errors import BriskError, InvalidModelError, UnavailableError
from brisk.protocol.runtime_paths import RuntimePaths
from support.remote.couriers import CourierHost, check_equal
from support.remote.published import Published, publish
from support.remote.registries import RegistryServer
from support.waiting import wait_until

Start = Callable[..., CourierHost]
Serve = Callable[..., RegistryServer]


def here(host: CourierHost, published: Published) -> int:
    """Chunks of all files that are noted as here."""
    progress = (host.copy_folder(published) / PROGRESS).read_bytes()[HEADER_BYTES:]
    return progress.count(1)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_copy_is_what_was_published(
    tmp_path: Path, start: Start, serve: Serve, has_ranges: bool
) -> None:
    published = publish(tmp_path / "m")
    registry = serve(published, has_ranges=has_ranges)
    host = start()
    with host.client() as client:
        client.fetch(published, registry.manifest_url)
    check_equal(host, published)
    folder = host.copy_folder(published)
    wait_until(lambda: (folder / "whole").exists(), "the mark that all is on the disk")
    assert folder.stat().st_mode & 0o777 == 0o700


def test_of_ten_thousand_damaged_or_exchanged_chunks_none_is_kept(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    """One byte changed, two chunks exchanged, zeros: whatever a server does to what it sends."""
    chunk = 1 << 16
    published = publish(tmp_path / "m", 40 * chunk, chunk_bytes=chunk, weights_bytes=0)
    source = random.Random(1)
    sent = 0

    def damage(name: str, offset: int, piece: bytes) -> bytes:
        nonlocal sent
        if name != "model.onnx":
            return piece
        sent += 1
        match source.randrange(3):
            case 0:
                place = source.randrange(len(piece))
                return piece[:place] + bytes([piece[place] ^ 1]) + piece[place + 1 :]
            case 1:
                other = (offset + chunk) % (40 * chunk)
                return published.contents[0][other : other + len(piece)]
            case _:
                return bytes(len(piece))

    registry = serve(published, change=damage)
    host = start()
    with host.client() as client:
        client.open(published, registry.manifest_url)
        client.send(
            b'{"await": {"sha256": "%s", "ranges": [[0, 0, %d]]}}\n'
            % (published.sha256.encode(), 40 * chunk)
        )
        told = client.answer()
        while told is not None and "waiting" in told:
            told = client.answer()
    assert told is not None
    assert told["error"]["code"] == InvalidModelError.code
    assert "is not what the manifest says" in told["error"]["message"]
    assert sent >= 1
    copy = LocalCopy(host.copy_folder(published))
    assert copy.missing_bytes(copy.spans([Range(0, 0, 40 * chunk)])) == 40 * chunk
    copy.close()


def test_another_manifest_and_another_model_at_the_url_are_told(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    """The model is replaced while it is fetched: no mixture, but an error that names the place."""
    published = publish(tmp_path / "m", 6_000_000)
    registry = serve(published, bytes_per_s=4e6)
    host = start()
    with host.client() as client:
        client.open(published, registry.manifest_url)
        wait_until(lambda: here(host, published) > 4, "the first chunks")
        other = random.Random(9).randbytes(6_000_000)
        (published.folder / "model.onnx").write_bytes(other)
        with pytest.raises(InvalidModelError, match="is not what the manifest says"):
            list(client.wait(published))
    model = host.copy_folder(published) / "1" / "model.onnx"
    held = model.read_bytes()
    for index in range(0, 6_000_000, 1 << 18):
        piece = held[index : index + (1 << 18)]
        right = published.contents[0][index : index + len(piece)]
        assert (
            piece == right or set(piece) == {0} or index < 1500 or abs(index - 3_000_000) < 1 << 19
        )
    changed = published._replace(sha256="0" * 64)
    with host.client() as client, pytest.raises(InvalidModelError, match="SHA-256"):
        client.open(changed, registry.manifest_url)


def test_a_killed_courier_goes_on_where_it_was(tmp_path: Path, start: Start, serve: Serve) -> None:
    published = publish(tmp_path / "m", 12_000_000)
    registry = serve(published, bytes_per_s=6e6)
    host = start()
    with host.client() as client:
        client.open(published, registry.manifest_url)
        wait_until(lambda: here(host, published) > 20, "half of it")
        host.kill()
    had, registry.sent_bytes, registry.bytes_per_s = here(host, published), 0, 0.0
    host.start()
    with host.client() as client:
        client.fetch(published, registry.manifest_url)
    check_equal(host, published)
    size = sum(len(content) for content in published.contents)
    assert registry.sent_bytes < size - 0.8 * had * (1 << 18) + (1 << 20)


def test_nothing_is_fetched_when_nobody_holds_the_copy(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 8_000_000)
    registry = serve(published, bytes_per_s=2e6)
    host = start()
    with host.client() as client:
        client.open(published, registry.manifest_url)
        wait_until(lambda: here(host, published) > 4, "the first chunks")
    with host.client() as client:
        wait_until(lambda: not client.ask("status", {})["copies"], "its end")
    before = registry.sent_bytes
    time.sleep(0.6)
    assert registry.sent_bytes - before < 500_000  # what was on its way


def test_where_nothing_is_found_and_nobody_answers_the_place_is_named(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 100_000)
    registry = serve(published)
    host = start()
    with host.client() as client:
        with pytest.raises(BriskError, match=r"/nowhere/manifest\.json answers 404"):
            client.open(published, f"{registry.url}/nowhere/manifest.json")
        secret = registry.manifest_url.replace("http://", "http://user:word@") + "?token=word"
        (published.folder / MANIFEST).unlink()
        with pytest.raises(BriskError, match="manifest") as caught:
            client.open(published, secret)
    assert "word" not in str(caught.value)
    assert "word" not in host.log


def test_files_of_this_machine_are_read_only_where_that_is_allowed(
    tmp_path: Path, start: Start
) -> None:
    published = publish(tmp_path / "m", 400_000)
    url = (published.folder / MANIFEST).as_uri()
    with start().client() as client, pytest.raises(BriskError, match="BRISK_REMOTE_URLS"):
        client.open(published, url)
    host = start({"BRISK_REMOTE_URLS": tmp_path.as_uri()})
    with host.client() as client:
        client.fetch(published, url)
    check_equal(host, published)


def test_redirects_to_this_machine_and_to_other_schemes_are_not_followed(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    """The entry's own URL is of this machine, so a redirect within it is; one to a file is not."""
    published = publish(tmp_path / "m", 100_000)
    target = serve(published)
    inside = serve(published, redirect=lambda path: target.url + path)
    outside = serve(published, redirect=lambda path: "file:///etc/passwd")
    endless = serve(published, redirect=lambda path: endless.url + path)
    host = start()
    with host.client() as client:
        client.open(published, inside.manifest_url)
    with host.client() as client:
        for server in (outside, endless):
            other = published._replace(sha256="1" * 64)
            with pytest.raises(BriskError, match="redirect"):
                client.open(other, server.manifest_url)


def test_a_full_disk_is_told_with_what_is_needed_and_leaves_nothing(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    if os.geteuid():
        pytest.skip("a small file system is root's to mount")
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", place], check=False
    ).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        published = publish(tmp_path / "m", 6_000_000)
        registry = serve(published)
        host = start({"BRISK_CACHE_DIR": str(place)})
        full = r"needs 6300000 bytes .*are free"
        with host.client() as client, pytest.raises(UnavailableError, match=full):
            client.open(published, registry.manifest_url)
        left = [path for path in (place / "remote").iterdir() if path.is_dir()]
        assert not any((folder / MANIFEST).exists() for folder in left)
        small = publish(tmp_path / "s", 1_000_000)
        with host.client() as client:
            client.fetch(small, serve(small).manifest_url)
        with host.client() as client:
            wait_until(lambda: not client.ask("status", {})["copies"], "its end")
            with pytest.raises(UnavailableError, match=full):
                client.open(published, registry.manifest_url)
        assert (place / "remote" / small.sha256 / MANIFEST).exists(), "removing it is not enough"
        host.end()
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_copies_that_nobody_uses_make_room(tmp_path: Path, start: Start, serve: Serve) -> None:
    first, second = (publish(tmp_path / f"{n}", 1_500_000, seed=n) for n in (1, 2))
    host = start({"BRISK_CACHE_MIB": "3"})
    with host.client() as client:
        client.fetch(first, serve(first).manifest_url)
    with host.client() as client:
        wait_until(lambda: not client.ask("status", {})["copies"], "its end")
        client.fetch(second, serve(second).manifest_url)
    assert not (host.copy_folder(first) / MANIFEST).exists()
    check_equal(host, second)
    with host.client() as client:
        client.open(second, serve(second).manifest_url)  # held from now on
        with host.client() as other, pytest.raises(UnavailableError, match="BRISK_CACHE_MIB"):
            other.open(first, serve(first).manifest_url)


def test_a_courier_ends_when_it_is_told_and_another_one_leaves_it_alone(start: Start) -> None:
    host = start()
    again = CourierHost(host.folder)
    again.start()  # finds the first one there
    assert again.process is not None
    assert again.process.wait(10) == 0
    assert host.process is not None
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(10) == 0
    assert not host.place.exists()


def test_a_courier_that_serves_others_knows_whether_a_runtime_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from brisk.sourcing.process import is_runtime_there

    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "run"))
    assert not is_runtime_there()
    place = RuntimePaths(tmp_path / "run", "cpu")
    place.prepare()
    lock = place.try_lock()
    assert lock is not None
    assert is_runtime_there()
    os.close(lock)
    assert place.lock_path.exists()  # it has crashed
    assert not is_runtime_there()


def test_a_courier_that_looks_for_a_runtime_survives_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime removes its lock and its directory, also between two steps of who looks."""
    from brisk.sourcing.process import is_runtime_there

    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "run"))
    is_over = threading.Event()

    def come_and_go() -> None:
        place = RuntimePaths(tmp_path / "run", "cpu")
        while not is_over.is_set():
            place.prepare()
            lock = place.try_lock()
            assert lock is not None
            place.remove(lock)

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come_and_go)
        try:
            for _ in range(3000):
                is_runtime_there()
        finally:
            is_over.set()
        coming.result()


def test_a_courier_may_open_as_many_files_as_the_system_allows(start: Start) -> None:
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, usual), most))
    try:
        host = start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))
    assert host.process is not None
    assert resource.prlimit(host.process.pid, resource.RLIMIT_NOFILE) == (most, most)
