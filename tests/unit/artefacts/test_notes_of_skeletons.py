"""Notes of forms by skeleton: many are kept, few are read by whoever adds one."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brisk.artefacts import skeletons, store
from brisk.segments.prepared.siblings import note_form

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


def forms_of(*names: str) -> list[Path]:
    store.artefacts_directory().mkdir(parents=True, exist_ok=True)
    forms = [store.artefacts_directory() / f"{name}.segments" for name in names]
    for form in forms:
        form.touch()
    return forms


def test_two_that_are_noted_at_once_see_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one has read the notes as the second one comes, whose recipes are others."""
    one, two = forms_of("one", "two")
    has_read, really = threading.Event(), skeletons.noted_forms

    def noted_forms(skeleton: str) -> dict[Path, str]:
        forms = really(skeleton)
        if not has_read.is_set():
            has_read.set()
            time.sleep(0.3)
        return forms

    monkeypatch.setattr(skeletons, "noted_forms", noted_forms)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(note_form, "skeleton", one, [{"digest": "1", "recipes": None}])
        assert has_read.wait(20)
        second = note_form("skeleton", two, [{"digest": "2", "recipes": None}])
        assert (first.result(), second) == (True, False)
    assert skeletons.is_refused("skeleton")


def test_who_holds_the_notes_and_does_not_go_on_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(skeletons, "LONGEST_CHANGE_S", 0.1)
    (form,) = forms_of("form")
    with skeletons.changing():
        assert note_form("skeleton", form, [])
    assert list(skeletons.noted_forms("skeleton")) == [form]
