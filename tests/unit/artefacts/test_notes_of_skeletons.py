"""Notes of forms by skeleton: many are kept, few are read by whoever adds one."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk.artefacts import skeletons, store

pytestmark = pytest.mark.usefixtures("private_cache")

MOST = 50


def note(number: int, *, has_gone: bool) -> None:
    form = store.artefacts_directory() / f"{number}.segments"
    form.parent.mkdir(parents=True, exist_ok=True)
    if not has_gone:
        form.touch()
    skeletons.note_forms(f"skeleton-{number}", {form: "digest"})


def kept() -> list[Path]:
    return list((store.artefacts_directory() / "skeletons").iterdir())


def test_of_many_that_are_in_use_few_are_read_and_none_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(2 * MOST):
        note(number, has_gone=False)
    paths: list[Path] = []
    really = store.read_note

    def read_note(path: Path) -> object:
        paths.append(path)
        return really(path)

    monkeypatch.setattr(store, "read_note", read_note)
    skeletons.forget_unused(MOST)
    assert 0 < len(paths) <= skeletons.LOOKED_AT
    assert len(kept()) == 2 * MOST


def test_of_those_added_one_by_one_no_more_than_the_bound_are_of_forms_that_have_gone() -> None:
    for number in range(2 * MOST):
        note(number, has_gone=True)
        skeletons.forget_unused(MOST)
        assert len(kept()) <= MOST


def test_within_the_bound_none_is_read_or_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        note(number, has_gone=True)
    monkeypatch.setattr(store, "read_note", lambda path: pytest.fail(f"{path} is read"))
    skeletons.forget_unused(4)
    assert len(kept()) == 4
