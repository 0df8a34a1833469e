"""Notes of prepared forms by their models' skeleton: all of a model but its weights' values.

A note is named by the skeleton and lists forms, the latest first. With it a model that has no form
of its own opens no unrelated ones. A note proves nothing: each form states its own skeleton.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from brisk.artefacts import store
from brisk.ownership import make_private

NOTED = "skeletons"
"""The folder, among the artefacts, of the notes."""

MOST_NOTED = 4
"""The most forms noted of a skeleton: one of them is enough, others may be removed meanwhile."""

MOST_KEPT = 1024

LOOKED_AT = 16
"""The number of notes checked at a time, if there are more: with thousands of models that are all
in use, a process that prepares one more must not read the notes of all others."""

LONGEST_CHANGE_S, _LOOK_S = 2.0, 0.01
"""Far above what changing a note takes, and the time between two looks at whether it is done."""

_SUFFIX = ".segments"


def may_be_noted(prefix: str = "") -> bool:
    """Whether there is a note of a skeleton that begins with ``prefix``: else no form starts a
    model of such a one."""
    try:
        with os.scandir(_folder()) as entries:
            return any(entry.name.startswith(prefix) for entry in entries)
    except OSError:
        return False


def noted_forms(skeleton: str) -> dict[Path, str]:
    """Return the noted forms, each with the text noted of it; some of them may be gone."""
    noted = store.read_note(_folder() / skeleton)
    forms = {}
    for each in noted if isinstance(noted, list) else ():
        if not isinstance(each, list) or len(each) != 2 or not isinstance(each[0], str):
            continue
        name = PurePath(each[0])
        if name.suffix == _SUFFIX and not name.is_absolute() and ".." not in name.parts:
            forms[store.artefacts_directory() / name] = str(each[1])
    return forms


def note_forms(skeleton: str, forms: Mapping[Path, str]) -> None:
    """Note all forms that start models of the skeleton from now on, each with a text to
    distinguish it by.

    Empty ``forms``: no form ever does. Raises OSError.
    """
    make_private(_folder())
    root = store.artefacts_directory()
    entries = [[str(path.relative_to(root)), digest] for path, digest in forms.items()]
    text = json.dumps(entries[:MOST_NOTED])
    store.publish(_folder() / skeleton, lambda file: file.write(text.encode()))


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """Open a context in which no other thread or process changes what it has read of the notes.

    Who holds them for ``LONGEST_CHANGE_S`` does not run, and is not waited for. Raises OSError.
    """
    make_private(_folder())
    lock = store.artefacts_directory() / f"{NOTED}.lock"
    until_s = time.monotonic() + LONGEST_CHANGE_S
    with contextlib.ExitStack() as held:
        while not held.enter_context(store.locked(lock, store.FOR_ALL_MACHINES)):
            held.close()
            if time.monotonic() > until_s:
                break
            time.sleep(_LOOK_S)
        yield


def is_refused(skeleton: str) -> bool:
    """Whether it was noted that no form starts other models of the skeleton."""
    return store.read_note(_folder() / skeleton) == []


def forget_unused(most: int = MOST_KEPT) -> None:
    """Check some random notes if there are more than ``most``; remove those whose forms are all
    gone.

    Called as notes are added one by one, this leaves few useless ones.
    """
    with contextlib.suppress(OSError):
        notes = os.listdir(_folder())
        looked_at = min(LOOKED_AT, len(notes)) if len(notes) > most else 0
        for name in random.sample(notes, looked_at):
            forms = noted_forms(name)
            if forms and not any(path.is_file() for path in forms):
                (_folder() / name).unlink()


def _folder() -> Path:
    return store.artefacts_directory() / NOTED
