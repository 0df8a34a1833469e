"""Notes lie beside the artefacts: the latest are kept, and none is looked into for artefacts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from brisk.artefacts import room, store

pytestmark = pytest.mark.usefixtures("private_cache")

MIB = 1 << 20


def sketched(number: int) -> Path:
    return store.artefacts_directory() / f"{number:016x}"


def test_of_the_forms_that_were_not_kept_the_latest_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "MOST_REFUSED", 4)
    notes = store.artefacts_directory() / room.REFUSED
    for number in range(5):
        room.note_refused(sketched(number) / "digest", MIB)
        os.utime(notes / sketched(number).name, (number, number))
    room.make_room(0)
    assert sorted(each.name for each in notes.iterdir()) == [sketched(n).name for n in (3, 4)]


def test_none_is_looked_into_where_all_artefacts_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be thousands of them."""
    form = sketched(1) / "digest" / f"form{room.ARTEFACT}"
    form.parent.mkdir(parents=True)
    form.write_bytes(bytes(MIB))
    notes = [store.artefacts_directory() / name for name in ("known", "refused", "skeletons")]
    for folder in notes:
        folder.mkdir(exist_ok=True)
        (folder / "note").touch()
    looked_into: list[Path] = []

    def listed(folder: Path, really: Callable[[Path], list[Path]] = room.listed) -> list[Path]:
        looked_into.append(folder)
        return really(folder)

    monkeypatch.setattr(room, "listed", listed)
    room.sweep()
    assert [each.path for each in room.kept_artefacts()] == [form]
    monkeypatch.setenv("BRISK_CACHE_MIB", "4")
    room.make_room(4 * MIB)
    assert not form.exists()
    assert form.parent in looked_into
    assert not {*looked_into, *(path.parent for path in looked_into)}.intersection(notes)
