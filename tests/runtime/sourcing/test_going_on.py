"""A copy that nobody holds any more goes on for a moment, and who comes back finds it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from brisk.copies.manifest import Range
from support.remote.couriers import CourierHost
from support.remote.published import Published, form_of, publish
from support.remote.registries import RegistryServer
from support.waiting import wait_until

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
