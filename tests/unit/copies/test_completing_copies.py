"""What the courier does before it calls a copy whole, and what it leaves if it ends before."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from brisk.artefacts.content import check_listed
from brisk.artefacts.room import NoRoomError, kept_artefacts
from brisk.artefacts.store import artefacts_directory
from brisk.copies.local import HEADER_BYTES, PROGRESS, LocalCopy, progress_header
from brisk.copies.remote import WHOLE, Remote
from brisk.errors import ArtefactError, UnavailableError
from brisk.paths import is_kept
from brisk.sourcing import arriving, process
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.completing import publish_form
from brisk.sourcing.service import CourierService
from brisk.sourcing.sources.downloads import Web
from brisk.sourcing.table import CopyTable
from support.remote.published import Published, fill, form_of, new_copy, publish
from support.waiting import PATIENCE_S, wait_until

CHUNK = 1 << 16

pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return publish(tmp_path / "p", 10 * CHUNK + 77, chunk_bytes=CHUNK, weights_bytes=3 * CHUNK)


def filled(tmp_path: Path, published: Published) -> ArrivingCopy:
    """Return a copy whose chunks are all here."""
    copy = new_copy(tmp_path / "cache" / "remote" / published.sha256, published)
    forms = [number for number, file in enumerate(published.manifest.files) if file.form]
    for number in forms:
        copy.reserve_form(number)
    fill(published, copy, (published.manifest.gathered, *published.manifest.own, *forms))
    return copy


def test_a_comparison_that_is_given_up_leaves_the_copy_as_it_was(
    tmp_path: Path, published: Published
) -> None:
    copy = filled(tmp_path, published)

    def give_up() -> None:
        raise UnavailableError("closed")

    with pytest.raises(UnavailableError, match="closed"):
        copy.finish(give_up)
    assert not copy.is_whole
    assert not copy.is_refused
    copy.finish()
    assert copy.is_whole


def test_a_file_that_was_damaged_meanwhile_is_not_the_manifests_fault(
    tmp_path: Path, published: Published
) -> None:
    """Its chunks are compared again when the copy is opened next, and only they are missing."""
    copy = filled(tmp_path, published)
    all_of_it = copy.here()
    with (copy.folder / "1" / "model.onnx").open("r+b") as file:
        file.seek(5 * CHUNK)
        file.write(b"damage")
    with pytest.raises(OSError, match="damaged") as damaged:
        copy.finish()
    assert damaged.value.filename == str(copy.folder / "1" / "model.onnx")
    assert not copy.is_whole
    assert not copy.is_refused
    with pytest.raises(ArtefactError, match="to be verified"):
        LocalCopy(copy.folder)
    copy.close()
    again = ArrivingCopy(copy.folder)
    assert not again.is_trusted
    list(again.verify())
    assert again.here() == all_of_it & ~(1 << 5)


def test_chunks_count_again_although_their_verification_after_a_boot_was_interrupted(
    tmp_path: Path, published: Published
) -> None:
    copy = filled(tmp_path, published)
    all_of_it = copy.here()
    copy.close()
    progress = copy.folder / PROGRESS
    progress.write_bytes(
        progress_header()[:8].ljust(HEADER_BYTES, b"0") + progress.read_bytes()[64:]
    )
    interrupted = ArrivingCopy(copy.folder)
    assert not interrupted.is_trusted
    verification = interrupted.verify()
    for _ in range(3):
        next(verification)
    interrupted.close()  # the courier ends
    again = ArrivingCopy(copy.folder)
    assert not again.is_trusted
    assert len(list(again.verify())) == again.layout.count
    assert again.here() == all_of_it
    again.close()
    last = ArrivingCopy(copy.folder)
    assert last.is_trusted
    assert last.here() == all_of_it
    assert not os.path.exists(copy.folder / WHOLE)


def test_a_courier_that_nobody_uses_ends_when_it_has_compared_its_copies(
    tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = filled(tmp_path, published)
    copy.close()
    begun, let_go = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> None:
        begun.set()
        assert let_go.wait(PATIENCE_S)
        check_listed(*arguments)

    monkeypatch.setattr(arriving, "check_listed", slowly)
    monkeypatch.setattr(process, "IDLE_S", 0.1)
    monkeypatch.setattr(process, "_LOOK_S", 0.01)

    async def scenario() -> None:
        with ThreadPoolExecutor(2) as executor:
            web = Web()
            table = CopyTable(copy.folder.parent, "host", web, executor, executor)
            service = CourierService(table, 0)
            opened = table.take(Remote("http://127.0.0.1:1/manifest.json", published.sha256))
            await opened.has_head()
            table.give_back(opened)
            await asyncio.to_thread(wait_until, begun.is_set, "the comparison")
            idle = asyncio.create_task(process._until_idle(table, service, None, asyncio.Event()))
            await asyncio.wait([idle], timeout=0.5)
            assert not idle.done()
            let_go.set()
            await asyncio.wait_for(idle, PATIENCE_S)
            assert (copy.folder / WHOLE).exists()
            await table.close()
            await web.close()

    try:
        asyncio.run(scenario())
    finally:
        let_go.set()


def test_an_opening_does_not_wait_while_another_copy_is_completed(
    tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = publish(tmp_path / "o", 2 * CHUNK, chunk_bytes=CHUNK)
    copies = [filled(tmp_path, each) for each in (published, other)]
    for copy in copies:
        copy.close()
    begun, let_go = threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> None:
        begun.set()
        assert let_go.wait(PATIENCE_S)
        check_listed(*arguments)

    monkeypatch.setattr(arriving, "check_listed", slowly)

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as comparing:
            web = Web()
            table = CopyTable(copies[0].folder.parent, "host", web, executor, comparing)
            first, second = (
                Remote("http://127.0.0.1:1/manifest.json", each.sha256)
                for each in (published, other)
            )
            await table.take(first).has_head()
            await asyncio.to_thread(wait_until, begun.is_set, "the comparison")
            await asyncio.wait_for(table.take(second).has_head(), PATIENCE_S / 2)
            let_go.set()
            await table.close()
            await web.close()

    try:
        asyncio.run(scenario())
    finally:
        let_go.set()


def test_a_form_takes_room_among_artefacts_or_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms = {"form.segments": form_of(3 << 20)}
    published = publish(tmp_path / "f", 2 * CHUNK, chunk_bytes=CHUNK, forms=forms)
    copy = filled(tmp_path, published)
    copy.finish()
    number = published.manifest.form_named("form.segments")
    assert number is not None
    form = copy.folder / "forms" / "form.segments"
    old = artefacts_directory() / "model" / "content" / "old.segments"
    old.parent.mkdir(parents=True, mode=0o700)
    old.write_bytes(bytes(2 << 20))
    monkeypatch.setenv("BRISK_CACHE_MIB", "2")
    with pytest.raises(NoRoomError, match="BRISK_CACHE_MIB"):
        publish_form(copy, number)
    assert [each.path for each in kept_artefacts()] == [old]
    assert is_kept(form.stat()), "it is the copy's alone"
    monkeypatch.setenv("BRISK_CACHE_MIB", "4")
    publish_form(copy, number)
    (artefact,) = kept_artefacts()
    assert artefact.path.samefile(form)
