"""What looks at the files of caches cost, and what is told of those that fail."""

from __future__ import annotations

import dataclasses
import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.exits.cascade_file import digest_of, write_cascade
from brisk.exits.files.versions import caches_file, make_private_folder
from brisk.runtime.early_exit.adaptation import Adaptation
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.early_exit.first_learning import FirstLearning
from brisk.runtime.sessions import served_caches
from brisk.runtime.sessions.segment_session import SegmentSession, load_segment_session
from support.exits.exits_model import Model, make_model
from support.waiting import wait_until

LOOK_S = 0.02


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """With caches beside it, and a private folder."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    made = make_model(tmp_path / "model.onnx")
    make_private_folder(made.file)
    return made


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    """What a test opens is closed after it, which ends its being watched."""
    yield
    while _OPENED:
        _OPENED.pop().close()


_OPENED: list[SegmentSession] = []


def watched(model: Model, watch: CacheWatch) -> SegmentSession:
    """Return a session that is served with the model's caches, whose files ``watch`` looks at."""
    session = load_segment_session(model.file, 1, None, None)
    _OPENED.append(session)
    while session.is_loading:
        session.table.wait(1)
    caches = watch.open(session)
    assert caches is not None
    watch.serve(session, caches)
    return session


def revision(session: SegmentSession) -> int | None:
    served = session.caches.served
    return None if served is None else served.cascade.revision


def test_the_next_version_is_read_without_all_of_the_model_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, read = watched(model, CacheWatch(Adaptation(0.0), LOOK_S)), []

    def digested(file: Path) -> str:
        read.append(file)
        return digest_of(file)

    monkeypatch.setattr(served_caches, "digest_of", digested)
    write_cascade(caches_file(model.file), dataclasses.replace(model.cascade, revision=6))
    wait_until(lambda: revision(session) == 6, "the next version")
    assert read == []


def test_what_fails_at_each_look_is_told_once_a_while(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the newest warnings, which `brisk status` shows, would soon be this one alone."""
    looks = 0

    def failing(*_: object) -> None:
        nonlocal looks
        looks += 1
        raise PermissionError(errno.EPERM, "somebody else's samples")

    first = FirstLearning(1 << 20, is_on=False, learns=True)
    monkeypatch.setattr(first, "drop", failing)
    watched(model, CacheWatch(Adaptation(0.0), LOOK_S, first))
    wait_until(lambda: looks > 3, "looks")
    assert caplog.text.count("somebody else's samples") == 1


def test_looks_at_many_models_leave_most_of_a_processor_to_requests(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_s = 0.0

    def look(*_: object) -> None:
        nonlocal computed_s
        before_s = time.thread_time()
        while time.thread_time() < before_s + 0.005:
            pass
        computed_s += 0.005

    monkeypatch.setattr(CacheWatch, "_look", look)
    watch = CacheWatch(None, 0.2)
    session = watched(model, watch)
    caches = watch.open(session)
    assert caches is not None
    begun_s = time.monotonic()
    for _ in range(20):
        watch.serve(session, caches)
    wait_until(lambda: computed_s > 0.09, "looks at most of them")
    assert computed_s <= 0.1 * (time.monotonic() - begun_s)
