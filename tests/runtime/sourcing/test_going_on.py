"""A copy that nobody holds any more goes on for a moment, and who comes back finds it."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from brisk.copies import connection, courier
from brisk.copies.connection import CourierConnection, lock_path
from brisk.copies.manifest import Range
from brisk.errors import UnavailableError
from brisk.sourcing.process import ENDING_S
from brisk.sourcing.room import locked
from support.remote.couriers import CourierHost
from support.remote.entries import end_courier
from support.remote.published import Published, form_of, publish
from support.remote.registries import RegistryServer
from support.waiting import PATIENCE_S, wait_until

Start = Callable[..., CourierHost]
Serve = Callable[..., RegistryServer]
RATE = 2e6
FORM = "model-here.segments"


def bytes_here(host: CourierHost, published: Published) -> int:
    with host.client() as client:
        return int(client.status(published)["bytes_here"])


def copies(host: CourierHost) -> list[object]:
    with host.client() as client:
        return list(client.ask("status", {})["copies"])


def test_bytes_come_while_one_process_has_gone_and_the_next_has_not_come(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 8_000_000)
    registry = serve(published, bytes_per_s=RATE)
    host = start()
    with host.client() as client:
        client.open(published, registry.manifest_url)
    before = bytes_here(host, published)
    wait_until(lambda: bytes_here(host, published) > before + 500_000, "bytes that nobody holds")
    asked = registry.requests.count("/manifest.json")
    with host.client() as client:
        client.open(published, "")
        for _ in client.wait(published, [Range(0, 0, 4_000_000)]):
            pass
    assert registry.requests.count("/manifest.json") == asked


def test_where_nobody_comes_back_it_ends_long_before_all_is_here(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 12_000_000)
    registry = serve(published, bytes_per_s=RATE)
    host = start()
    with host.client() as client:
        client.open(published, registry.manifest_url)
    wait_until(lambda: not copies(host), "its end")
    assert registry.sent_bytes < 3 * RATE


def test_what_nobody_holds_makes_room_at_once(tmp_path: Path, start: Start, serve: Serve) -> None:
    first, second = (publish(tmp_path / name, 12_000_000, seed=len(name)) for name in ("a", "bb"))
    slow, quick = serve(first, bytes_per_s=RATE), serve(second)
    host = start({"BRISK_CACHE_MIB": "20"})
    with host.client() as client:
        client.open(first, slow.manifest_url)
    with host.client() as client:
        client.open(second, quick.manifest_url)
    assert not host.copy_folder(first).exists()


def test_a_source_that_lied_is_asked_anew_by_who_comes_next(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 2_000_000)
    lying = serve(published, change=lambda name, offset, piece: bytes(len(piece)))
    host = start()
    with host.client() as client:
        client.send(
            b'{"open": {"url": "%s", "sha256": "%s"}}\n'
            % (lying.manifest_url.encode(), published.sha256.encode())
        )
        answer = client.answer()
    assert answer is not None
    assert "error" in answer
    assert not copies(host)


def test_the_only_form_comes_before_it_is_taken_and_is_an_artefact_then(
    tmp_path: Path, start: Start, serve: Serve, private_cache: None
) -> None:
    published = publish(tmp_path / "m", 8_000_000, forms={FORM: form_of(2_000_000)})
    registry = serve(published)
    host = start()
    model = published.manifest.files[0]
    artefacts = host.cache / "artefacts" / model.sketch / model.digest
    with host.client() as client:
        client.open(published, registry.manifest_url)
    with host.client() as client:
        client.open(published, "")
        wait_until(
            lambda: any("/model.onnx" in request for request in registry.requests),
            "what comes behind the form",
        )
        asked = [request.split()[0] for request in registry.requests]
        assert asked.index(f"/forms/{FORM}") < asked.index("/model.onnx")
        assert not (artefacts / FORM).exists()
        assert client.take(published, FORM) is not None
        wait_until((artefacts / FORM).exists, "the form among the artefacts")


def test_who_comes_while_a_courier_ends_gets_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that ends accepts nothing more and still holds the lock, so that the first courier
    that is started finds another there, and ends."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    started: list[subprocess.Popen[bytes]] = []
    start_courier = connection._start

    def start_noted() -> subprocess.Popen[bytes]:
        started.append(start_courier())
        return started[-1]

    monkeypatch.setattr(connection, "_start", start_noted)
    copies: list[object] = []

    def ask() -> None:
        with CourierConnection() as opened:
            copies.append(opened.ask("status", {})["copies"])

    client = threading.Thread(target=ask, daemon=True)
    try:
        with lock_path().open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            client.start()
            wait_until(lambda: bool(started) and started[0].poll() == 0, "the first one's end")
        client.join(PATIENCE_S)
        assert copies == [[]]
    finally:
        end_courier()
        client.join(PATIENCE_S)
        for each in started:
            each.wait(PATIENCE_S)


def test_a_courier_ends_soon_though_one_of_its_threads_waits_for_long(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    """A thread waits for the lock of all copies, which somebody else holds."""
    published = publish(tmp_path / "m", 1_000_000)
    registry = serve(published)
    host = start()
    remote = host.cache / "remote"
    remote.mkdir(mode=0o700, parents=True)
    with locked(remote), host.client() as client:
        question = b'{"open": {"url": "%s", "sha256": "%s"}}\n'
        client.send(question % (registry.manifest_url.encode(), published.sha256.encode()))
        wait_until(lambda: bool(copies(host)), "the copy that is opened")
        assert host.process is not None
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(ENDING_S + 10.0) == 0


@pytest.mark.parametrize("is_for_ever", [False, True])
def test_a_command_that_fetches_waits_through_a_short_silence_and_names_a_long_one(
    tmp_path: Path,
    start: Start,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    is_for_ever: bool,
) -> None:
    published = publish(tmp_path / "m", 8_000_000)
    registry = serve(published, bytes_per_s=RATE)
    host = start()
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(host.runtime))
    monkeypatch.setenv("BRISK_CACHE_DIR", str(host.cache))
    file = tmp_path / "model.remote"
    file.write_text(json.dumps({"url": registry.manifest_url, "sha256": published.sha256}))
    silence_s = 2.5
    if is_for_ever:
        monkeypatch.setattr(courier, "STALLED_S", silence_s)
    is_over = threading.Event()

    def fall_silent() -> None:
        wait_until(lambda: registry.sent_bytes > 2_000_000, "some bytes")
        registry.is_silent = True
        is_over.wait(PATIENCE_S if is_for_ever else silence_s)
        registry.bytes_per_s = 0.0
        registry.is_silent = False

    silence = threading.Thread(target=fall_silent, daemon=True)
    silence.start()
    try:
        if is_for_ever:
            with pytest.raises(UnavailableError, match=rf"model\.remote: {registry.url}"):
                courier.fetch(file)
        else:
            assert courier.fetch(file).read_bytes() == published.contents[0]
    finally:
        is_over.set()
        silence.join(PATIENCE_S)
