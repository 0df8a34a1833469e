"""A copy is whole when its bytes have been compared with the digests that its manifest lists; one
that lists others is kept from processes and hosts."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from brisk.copies.manifest import write_manifest
from brisk.copies.remote import MANIFEST, REFUSED, WHOLE
from brisk.errors import InvalidModelError
from support.remote.couriers import CourierHost, free_ports
from support.remote.published import Published, form_of, publish
from support.remote.registries import RegistryServer
from support.waiting import wait_until

Start = Callable[..., CourierHost]
Serve = Callable[..., RegistryServer]
FORM = "model.segments"


def lying(published: Published, number: int, field: str) -> Published:
    """Return the same files with a manifest that lists another digest or sketch of one of them."""
    files = list(published.manifest.files)
    listed = getattr(files[number], field)
    files[number] = files[number]._replace(**{field: listed[::-1]})
    manifest = published.manifest._replace(files=tuple(files))
    text = write_manifest(manifest)
    (published.folder / MANIFEST).write_bytes(text)
    sha256 = hashlib.sha256(text).hexdigest()
    return published._replace(manifest=manifest, sha256=sha256)


@pytest.mark.parametrize("field", ["digest", "sketch"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_copy_whose_manifest_lies_is_kept_from_processes_and_hosts(
    tmp_path: Path,
    start: Start,
    serve: Serve,
    private_cache: None,
    number: int,
    field: str,
) -> None:
    forms = {FORM: form_of(400_000)}
    published = lying(publish(tmp_path / "m", 600_000, forms=forms), number, field)
    name = published.manifest.files[number].name
    registry = serve(published)
    (port,) = free_ports(1)
    host = start(port=port)
    told = pytest.raises(InvalidModelError, match=f"lists the {field} .* for '{name}'")
    with host.client() as client:
        client.open(published, registry.manifest_url)
        client.take(published, FORM)
        with told:
            list(client.wait(published, is_compared=True))
        for question in (
            lambda: client.open(published, registry.manifest_url),
            lambda: client.take(published, FORM),
            lambda: list(client.wait(published)),
        ):
            with pytest.raises(InvalidModelError, match=f"'{name}'"):
                question()
        with pytest.raises(urllib.error.HTTPError, match="404") as answer:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/copies/{published.sha256}")
        answer.value.close()
    folder = host.copy_folder(published)
    assert (folder / REFUSED).exists()
    assert not (folder / WHOLE).exists()
    assert not list((host.cache / "artefacts").glob("*/*/*.segments"))
    assert host.log.count(f"for '{name}'") == 1
    host.end()
    sent = registry.sent_bytes
    host.start()
    with host.client() as client, pytest.raises(InvalidModelError, match=f"'{name}'"):
        client.open(published, registry.manifest_url)
    with pytest.raises(urllib.error.HTTPError, match="404") as answer:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/copies/{published.sha256}/manifest")
    answer.value.close()
    assert registry.sent_bytes == sent


def test_a_copy_that_was_not_compared_in_time_is_when_it_is_opened_next(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 600_000)
    registry = serve(published)
    host = start()
    with host.client() as client:
        client.fetch(published, registry.manifest_url)
        list(client.wait(published, is_compared=True))
    host.kill()
    note = host.copy_folder(published) / WHOLE
    note.unlink()  # as if it had been killed just before
    host.start()
    with host.client() as client:
        client.open(published, registry.manifest_url)
        list(client.wait(published, is_compared=True))
        assert note.exists()


def test_a_copy_is_completed_although_nobody_uses_it_any_more(
    tmp_path: Path, start: Start, serve: Serve
) -> None:
    published = publish(tmp_path / "m", 30_000_000)
    registry = serve(published)
    host = start()
    with host.client() as client:
        client.fetch(published, registry.manifest_url)
    wait_until((host.copy_folder(published) / WHOLE).exists, "the end of the comparison")
